// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What travels through `/dev/fuse`: requests and replies.
//!
//! The structs are `polyfuse-kernel`'s. A message that is shorter than its struct is answered
//! EINVAL; the kernel sends none.

use linux::Errno;
use polyfuse_kernel as abi;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The longest write that the kernel sends in one piece. More than is taken of one
/// ([`MAX_WRITE_BYTES`](super::item::MAX_WRITE_BYTES)), or the rest would come as a write of its
/// own.
const MAX_PIECE_BYTES: u32 = 8192;
/// ABI 7.38: writes through one open file go on side by side. Newer than the crate.
const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// Who asks, as the kernel says it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Its thread's number here; 0 if it is in a pid namespace that is not visible from here.
    pub(super) thread: u32,
}

/// The request.
#[derive(Debug)]
pub(super) enum Op {
    Init {
        flags: u32,
    },
    Lookup {
        name: Vec<u8>,
    },
    /// The kernel has forgotten items. Not answered.
    Forget,
    GetAttr,
    SetAttr {
        valid: u32,
    },
    Open {
        flags: i32,
    },
    OpenDir,
    Read {
        handle: u64,
        offset: u64,
        size: usize,
    },
    ReadDir {
        handle: u64,
        offset: u64,
        size: usize,
    },
    Write {
        handle: u64,
        data: Vec<u8>,
    },
    Release {
        handle: u64,
    },
    StatFs,
    Ioctl {
        handle: u64,
        number: u32,
        data: Vec<u8>,
    },
    Poll {
        handle: u64,
        waiter: u64,
        wake: bool,
    },
    /// The caller of an earlier request got a signal. Not answered.
    Interrupt {
        unique: u64,
    },
    /// A name should come or go.
    Rename,
    Create,
    /// The kernel remembers the answer ENOSYS, and stops asking.
    Unknown,
}

/// One request.
#[derive(Debug)]
pub(super) struct FuseRequest {
    pub(super) unique: u64,
    /// The number by which the kernel knows the item that it is about.
    pub(super) number: u64,
    pub(super) caller: Caller,
    pub(super) op: Op,
}

fn take<T: FromBytes>(bytes: &[u8]) -> Result<(T, &[u8]), Errno> {
    T::read_from_prefix(bytes).map_err(|_| Errno::INVAL)
}

fn size(bytes: u32) -> usize {
    bytes as usize
}

impl FuseRequest {
    /// Takes a message apart.
    ///
    /// # Errors
    /// The number to answer and EINVAL.
    pub(super) fn parse(message: &[u8]) -> Result<Self, (u64, Errno)> {
        let (header, body): (abi::fuse_in_header, _) = take(message).map_err(|e| (0, e))?;
        let op = Op::parse(&header, body).map_err(|e| (header.unique, e))?;
        let caller = Caller { uid: header.uid, gid: header.gid, thread: header.pid };
        Ok(Self { unique: header.unique, number: header.nodeid, caller, op })
    }

    /// Memory that it takes while it waits.
    pub(super) fn bytes(&self) -> usize {
        let more = match &self.op {
            Op::Lookup { name } => name.len(),
            Op::Write { data, .. } | Op::Ioctl { data, .. } => data.len(),
            _ => 0,
        };
        size_of::<Self>() + more
    }
}

impl Op {
    fn parse(header: &abi::fuse_in_header, body: &[u8]) -> Result<Self, Errno> {
        use abi::fuse_opcode as code;
        let Ok(opcode) = code::try_from(header.opcode) else { return Ok(Self::Unknown) };
        Ok(match opcode {
            code::FUSE_INIT => {
                let (init, _): (abi::fuse_init_in, _) = take(body)?;
                if init.major != abi::FUSE_KERNEL_VERSION {
                    return Err(Errno::PROTO);
                }
                Self::Init { flags: init.flags }
            }
            code::FUSE_LOOKUP => {
                Self::Lookup { name: body.strip_suffix(b"\0").unwrap_or(body).to_vec() }
            }
            code::FUSE_FORGET | code::FUSE_BATCH_FORGET => Self::Forget,
            code::FUSE_GETATTR => Self::GetAttr,
            code::FUSE_SETATTR => {
                let (set, _): (abi::fuse_setattr_in, _) = take(body)?;
                Self::SetAttr { valid: set.valid }
            }
            code::FUSE_OPEN => {
                let (open, _): (abi::fuse_open_in, _) = take(body)?;
                Self::Open { flags: open.flags.cast_signed() }
            }
            code::FUSE_OPENDIR => Self::OpenDir,
            code::FUSE_READ | code::FUSE_READDIR => {
                let (read, _): (abi::fuse_read_in, _) = take(body)?;
                let (handle, offset, size) = (read.fh, read.offset, size(read.size));
                match opcode {
                    code::FUSE_READ => Self::Read { handle, offset, size },
                    _ => Self::ReadDir { handle, offset, size },
                }
            }
            code::FUSE_WRITE => {
                let (write, data): (abi::fuse_write_in, _) = take(body)?;
                let data = data.get(..size(write.size)).ok_or(Errno::INVAL)?;
                Self::Write { handle: write.fh, data: data.to_vec() }
            }
            code::FUSE_RELEASE | code::FUSE_RELEASEDIR => {
                let (release, _): (abi::fuse_release_in, _) = take(body)?;
                Self::Release { handle: release.fh }
            }
            code::FUSE_STATFS => Self::StatFs,
            code::FUSE_IOCTL => {
                let (ioctl, data): (abi::fuse_ioctl_in, _) = take(body)?;
                let data = data.get(..size(ioctl.in_size)).ok_or(Errno::INVAL)?;
                Self::Ioctl { handle: ioctl.fh, number: ioctl.cmd, data: data.to_vec() }
            }
            code::FUSE_POLL => {
                let (poll, _): (abi::fuse_poll_in, _) = take(body)?;
                let wake = poll.flags & abi::FUSE_POLL_SCHEDULE_NOTIFY != 0;
                Self::Poll { handle: poll.fh, waiter: poll.kh, wake }
            }
            code::FUSE_INTERRUPT => {
                let (interrupt, _): (abi::fuse_interrupt_in, _) = take(body)?;
                Self::Interrupt { unique: interrupt.unique }
            }
            code::FUSE_CREATE | code::FUSE_MKNOD => Self::Create,
            code::FUSE_SYMLINK
            | code::FUSE_MKDIR
            | code::FUSE_UNLINK
            | code::FUSE_RMDIR
            | code::FUSE_RENAME
            | code::FUSE_RENAME2
            | code::FUSE_LINK => Self::Rename,
            _ => Self::Unknown,
        })
    }
}

/// The body of a reply.
#[derive(Debug, Clone, Default)]
pub(super) struct TreeReply(pub(super) Vec<u8>);

impl TreeReply {
    fn from_body(body: &(impl IntoBytes + Immutable)) -> Self {
        Self(body.as_bytes().to_vec())
    }

    /// Success alone.
    pub(super) fn empty() -> Self {
        Self::default()
    }

    pub(super) fn data(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    pub(super) fn init(offered: u32) -> Self {
        // Look-ups in one directory go on side by side.
        let flags = offered & abi::FUSE_PARALLEL_DIROPS;
        let (max_write, time_gran) = (MAX_PIECE_BYTES, 1);
        Self::from_body(&abi::fuse_init_out { flags, max_write, time_gran, ..Default::default() })
    }

    /// An item, known by `number` from now on. Each name is looked up each time.
    pub(super) fn entry(number: u64, attr: abi::fuse_attr) -> Self {
        let attr_valid = ATTR_VALID;
        Self::from_body(&abi::fuse_entry_out {
            nodeid: number,
            attr_valid,
            attr,
            ..Default::default()
        })
    }

    pub(super) fn attr(attr: abi::fuse_attr) -> Self {
        Self::from_body(&abi::fuse_attr_out { attr_valid: ATTR_VALID, attr, ..Default::default() })
    }

    /// `direct`: reads and writes come here, past every cache.
    pub(super) fn open(handle: u64, direct: bool) -> Self {
        let direct = if direct { abi::FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES } else { 0 };
        Self::from_body(&abi::fuse_open_out { fh: handle, open_flags: direct, padding: 0 })
    }

    pub(super) fn written(bytes: usize) -> Self {
        let size = u32::try_from(bytes).unwrap_or(u32::MAX);
        Self::from_body(&abi::fuse_write_out { size, padding: 0 })
    }

    pub(super) fn stat_fs() -> Self {
        let st =
            abi::fuse_kstatfs { bsize: 4096, frsize: 4096, namelen: 255, ..Default::default() };
        Self::from_body(&abi::fuse_statfs_out { st })
    }

    /// An ioctl that worked, and what the caller gets back.
    pub(super) fn ioctl(bytes: &[u8]) -> Self {
        let mut reply = Self::from_body(&abi::fuse_ioctl_out::default());
        reply.0.extend_from_slice(bytes);
        reply
    }

    pub(super) fn poll(events: u32) -> Self {
        Self::from_body(&abi::fuse_poll_out { revents: events, padding: 0 })
    }

    /// Adds a directory entry, unless that makes the reply longer than `limit`. `next` is where
    /// reading goes on behind it.
    pub(super) fn push_entry(
        &mut self,
        (ino, mode): (u64, u32),
        name: &str,
        next: u64,
        limit: usize,
    ) -> bool {
        // Entries begin at multiples of 8 bytes.
        let length = (size_of::<abi::fuse_dirent>() + name.len()).next_multiple_of(8);
        if self.0.len() + length > limit {
            return false;
        }
        let namelen = u32::try_from(name.len()).unwrap_or(u32::MAX);
        // The type is the upper part of the mode, as in struct dirent.
        let entry = abi::fuse_dirent { ino, off: next, namelen, typ: mode >> 12, name: [] };
        let end = self.0.len() + length;
        self.0.extend_from_slice(entry.as_bytes());
        self.0.extend_from_slice(name.as_bytes());
        self.0.resize(end, 0);
        true
    }
}

/// For how many seconds the kernel may rely on owner and mode, which never change.
const ATTR_VALID: u64 = 1;
