// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The items of the tree: names, numbers, modes.

use linux::hugepagectl;
use polyfuse_kernel::fuse_attr;
use units::{Domain, Node, PageSize};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;

/// The number by which the kernel knows the root without asking.
const ROOT: u64 = 1;
const DEVICE: u64 = 2;
/// Inode numbers are smaller: of 16,383 nodes, and a kernel has at most 1024.
const INO_BITS: u32 = 24;

/// A file of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FileKind {
    Zeroable,
    Zeroed,
    Low,
}

impl FileKind {
    const ALL: [Self; 3] = [Self::Zeroable, Self::Zeroed, Self::Low];

    fn name(self) -> &'static str {
        match self {
            Self::Zeroable => "zeroable_hugepages",
            Self::Zeroed => "zeroed_hugepages",
            Self::Low => "zeroed_low",
        }
    }

    pub(super) fn can_be_written(self) -> bool {
        self != Self::Zeroed
    }
}

/// A directory or file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Item {
    Root,
    /// `hugepagectl`
    Device,
    /// `nodeN`
    Node(Node),
    /// `nodeN/hugepages`
    Sizes(Node),
    /// `nodeN/hugepages/hugepages-SIZEkB`
    Domain(Domain),
    File(Domain, FileKind),
}

/// The owners of the files, and the rights of others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Of files that can be written.
    pub(super) mode: u32,
}

impl Item {
    pub(super) fn is_directory(self) -> bool {
        !matches!(self, Self::Device | Self::File(..))
    }

    /// What a directory of it has, given the domains there are, in order.
    pub(super) fn children(self, domains: &[Domain]) -> Vec<(String, Self)> {
        match self {
            Self::Root => {
                let mut nodes: Vec<_> = domains.iter().map(|domain| domain.node).collect();
                nodes.dedup();
                let nodes = nodes.into_iter().map(|node| (format!("node{node}"), Self::Node(node)));
                nodes.chain([("hugepagectl".to_owned(), Self::Device)]).collect()
            }
            Self::Node(node) => vec![("hugepages".to_owned(), Self::Sizes(node))],
            Self::Sizes(node) => {
                let here = domains.iter().filter(|domain| domain.node == node);
                let name = |domain: &Domain| format!("hugepages-{}kB", domain.page_size.kib());
                here.map(|domain| (name(domain), Self::Domain(*domain))).collect()
            }
            Self::Domain(domain) => FileKind::ALL
                .map(|kind| (kind.name().to_owned(), Self::File(domain, kind)))
                .to_vec(),
            Self::Device | Self::File(..) => Vec::new(),
        }
    }

    /// Its inode number: always the same, and unique.
    pub(super) fn ino(self) -> u64 {
        let place = |domain: Domain, tag: u64| {
            let shift = u64::from(domain.page_size.bytes().trailing_zeros());
            16 + (u64::from(domain.node.0) << 9 | shift << 3 | tag)
        };
        match self {
            Self::Root => ROOT,
            Self::Device => DEVICE,
            Self::Node(node) => 16 + (u64::from(node.0) << 9),
            Self::Sizes(node) => 16 + (u64::from(node.0) << 9) + 1,
            Self::Domain(domain) => place(domain, 0),
            Self::File(domain, FileKind::Zeroable) => place(domain, 1),
            Self::File(domain, FileKind::Zeroed) => place(domain, 2),
            Self::File(domain, FileKind::Low) => place(domain, 3),
        }
    }

    /// The item with this inode number.
    fn from_ino(ino: u64) -> Option<Self> {
        let place = match ino {
            ROOT => return Some(Self::Root),
            DEVICE => return Some(Self::Device),
            ino => ino.checked_sub(16)?,
        };
        let node = Node(u32::try_from(place >> 9).ok()?);
        let (shift, tag) = (place >> 3 & 0x3f, place & 7);
        let domain = || Some(Domain { node, page_size: PageSize::new(1 << shift)? });
        Some(match (shift, tag) {
            (0, 0) => Self::Node(node),
            (0, 1) => Self::Sizes(node),
            (_, 0) => Self::Domain(domain()?),
            (_, 1) => Self::File(domain()?, FileKind::Zeroable),
            (_, 2) => Self::File(domain()?, FileKind::Zeroed),
            (_, 3) => Self::File(domain()?, FileKind::Low),
            _ => return None,
        })
    }

    /// The number by which the kernel knows this item. It encodes the item, so that the daemon
    /// keeps no table of look-ups: an `O_PATH` descriptor holds a number and takes no memory here.
    ///
    /// Each look-up of a file has another number, and so each open file an inode of its own. The
    /// kernel holds the inode's lock while a write waits for its answer. A second writer of the
    /// same inode would sleep for that lock, where no signal reaches it.
    pub(super) fn number(self, lookup: u64) -> u64 {
        if self.is_directory() { self.ino() } else { lookup << INO_BITS | self.ino() }
    }

    /// The item with that number.
    pub(super) fn from_number(number: u64) -> Option<Self> {
        Self::from_ino(number & ((1 << INO_BITS) - 1))
    }

    /// Its type and mode.
    pub(super) fn mode(self, access: &Access) -> u32 {
        match self {
            Self::File(_, kind) if !kind.can_be_written() => REGULAR | access.mode & 0o444,
            Self::File(..) | Self::Device => REGULAR | access.mode,
            _ => DIRECTORY | 0o755,
        }
    }

    pub(super) fn attr(self, access: &Access) -> fuse_attr {
        let Access { uid, gid, .. } = *access;
        let (nlink, size) = if self.is_directory() { (2, 0) } else { (1, FILE_SIZE) };
        let mode = self.mode(access);
        let blksize = 4096;
        fuse_attr { ino: self.ino(), size, mode, nlink, uid, gid, blksize, ..Default::default() }
    }
}

/// What stat shows, as in sysfs; and no write is shorter than its file, which would make the kernel
/// let it wait for others.
const FILE_SIZE: u64 = 4096;

/// The domain that an ioctl's struct names; `None` if no machine can have it.
pub(super) fn domain_of(node: i32, page_shift: u32) -> Option<Domain> {
    let bytes = 1_u64.checked_shl(page_shift)?;
    let page_size = PageSize::new(bytes)?;
    Some(Domain { node: Node(u32::try_from(node).ok()?), page_size })
}

/// What one write(2) hands over: a page, as in sysfs. The rest is left.
pub(super) const MAX_WRITE_BYTES: usize = 4096;

/// What a file takes of a write, and the text in it. A null byte ends that, as in sysfs: a program
/// in C may write a string with its end.
pub(super) fn taken(data: &[u8]) -> (usize, &[u8]) {
    let data = &data[..data.len().min(MAX_WRITE_BYTES)];
    let end = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    (data.len(), &data[..end])
}

/// A number of pages as the files take it: decimal, with a newline or without.
pub(super) fn parse_pages(text: &[u8]) -> Option<u64> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The same, or `max`.
pub(super) fn parse_pages_or_max(text: &[u8]) -> Option<u64> {
    match text {
        b"max" | b"max\n" => Some(hugepagectl::ALL),
        _ => parse_pages(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Domain = Domain { node: Node(0), page_size: PageSize::MIB_2 };
    const LARGE: Domain = Domain { node: Node(0), page_size: PageSize::GIB_1 };
    const FAR: Domain = Domain { node: Node(3), page_size: PageSize::MIB_2 };

    fn walk(item: Item, path: &str, found: &mut Vec<(String, Item)>) {
        for (name, child) in item.children(&[SMALL, LARGE, FAR]) {
            let path = format!("{path}/{name}");
            walk(child, &path, found);
            found.push((path, child));
        }
    }

    #[test]
    fn the_tree_has_the_names_of_sysfs() {
        let mut found = Vec::new();
        walk(Item::Root, "", &mut found);
        let at = |path: &str| found.iter().find(|(p, _)| p == path).map(|(_, item)| *item);
        assert_eq!(found.len(), 1 + 2 + 2 + 3 + 9);
        assert_eq!(at("/hugepagectl"), Some(Item::Device));
        let file = "/node3/hugepages/hugepages-2048kB/zeroable_hugepages";
        assert_eq!(at(file), Some(Item::File(FAR, FileKind::Zeroable)));
        let file = "/node0/hugepages/hugepages-1048576kB/zeroed_low";
        assert_eq!(at(file), Some(Item::File(LARGE, FileKind::Low)));
        let mut numbers: Vec<_> = found.iter().map(|(_, item)| item.ino()).collect();
        numbers.extend([ROOT]);
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), found.len() + 1, "each has a number of its own");
    }

    // Promise P248.
    #[test]
    fn number_says_which_item_it_is() {
        let mut found = vec![(String::new(), Item::Root)];
        walk(Item::Root, "", &mut found);
        for (path, item) in found {
            let numbers = [1, 2, (1 << 40) - 1].map(|lookup| item.number(lookup));
            assert!(numbers.iter().all(|n| Item::from_number(*n) == Some(item)), "{path}");
            assert_eq!(numbers[0] == numbers[1], item.is_directory(), "{path}");
        }
        let last = Domain { node: Node(1023), page_size: PageSize::new(1 << 40).unwrap() };
        let last = Item::File(last, FileKind::Low);
        assert_eq!(Item::from_number(last.number(7)), Some(last));
        for number in [0, 3, 15, 16 + 7, 16 + (5 << 3 | 1)] {
            assert_eq!(Item::from_number(number), None, "{number}");
        }
    }

    #[test]
    fn modes_are_as_configured_at_most() {
        let access = Access { uid: 0, gid: 7, mode: 0o660 };
        let mode = |item: Item| item.attr(&access).mode & 0o777;
        assert_eq!(mode(Item::File(SMALL, FileKind::Zeroable)), 0o660);
        assert_eq!(mode(Item::File(SMALL, FileKind::Zeroed)), 0o440);
        assert_eq!((mode(Item::Device), mode(Item::Root)), (0o660, 0o755));
        assert_eq!(Item::Device.attr(&access).gid, 7);
    }

    #[test]
    fn a_write_is_a_page_at_most_and_its_text_ends_at_a_null_byte() {
        assert_eq!(taken(b"12\n"), (3, &b"12\n"[..]));
        assert_eq!(taken(b"12\0\0x"), (5, &b"12"[..]));
        assert_eq!(taken(b""), (0, &b""[..]));
        assert_eq!(taken(&[b'0'; 5000]), (MAX_WRITE_BYTES, &[b'0'; MAX_WRITE_BYTES][..]));
    }

    #[test]
    fn numbers_of_pages_are_decimal() {
        for (text, pages) in [("0", 0), ("7\n", 7), ("18446744073709551615", u64::MAX)] {
            assert_eq!(parse_pages(text.as_bytes()), Some(pages), "{text:?}");
        }
        let bad = ["", "\n", "x", "max1", "-1", "1x", "0x10", "1 2", " ", "1.5", "1\n\n", " 1"];
        for text in bad.iter().chain(&["18446744073709551616"]) {
            assert_eq!(parse_pages_or_max(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse_pages_or_max(b"max\n"), Some(u64::MAX));
        assert_eq!(parse_pages(b"max"), None);
    }

    #[test]
    fn no_domain_is_out_of_range() {
        assert_eq!(domain_of(0, 21), Some(SMALL));
        for (node, shift) in [(-1, 21), (i32::MIN, 21), (0, 0), (0, 64), (0, u32::MAX)] {
            assert_eq!(domain_of(node, shift), None, "{node} {shift}");
        }
    }
}
