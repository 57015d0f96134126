// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The user at the other end of a TCP connection, if it is on this machine. The kernel finds that
//! one socket by its two addresses (sock_diag(7)), without walking a table. 8 us.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use crate::error::{Errno, ErrorContext, Result};

/// `SOCK_DIAG_BY_FAMILY`, of netlink's messages.
const BY_FAMILY: u16 = 20;
const IPPROTO_TCP: u8 = 6;
/// Of a netlink message.
const HEADER: usize = 16;
/// Both ports, both addresses, an interface and a cookie.
const ID: usize = 48;
/// `struct inet_diag_req_v2` behind its header.
const REQUEST: usize = HEADER + 8 + ID;
/// Of `struct inet_diag_msg`, behind its header: user and inode.
const USER: usize = HEADER + 4 + ID + 12;
const INODE: usize = USER + 4;
const ANSWER: usize = INODE + 4;

/// Asks the kernel. One for each thread.
#[derive(Debug)]
pub struct TcpOwners(OwnedFd);

impl TcpOwners {
    /// Opens the way to ask.
    ///
    /// # Errors
    /// Those of `socket`: a kernel or sandbox without netlink.
    pub fn open() -> Result<Self> {
        let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        let socket = socket_with(AddressFamily::NETLINK, kind, flags, Some(netlink::SOCK_DIAG));
        socket.map(Self).or_call(|| "socket(AF_NETLINK, SOCK_DGRAM, NETLINK_SOCK_DIAG)".to_owned())
    }

    /// The user at the `peer` end of a connection to `local`. `None` if the end is in no process of
    /// this network namespace: it is another machine's, or was closed already.
    ///
    /// # Errors
    /// Those of asking.
    pub fn of(&self, local: SocketAddr, peer: SocketAddr) -> Result<Option<u32>> {
        let what = || format!("sock_diag(TCP, {peer} to {local})");
        // What came too late for an earlier question.
        let mut answer = [0; 512];
        while recv(&self.0, &mut answer, RecvFlags::DONTWAIT).is_ok() {}
        send(&self.0, &question(local, peer), SendFlags::empty()).or_call(what)?;
        // The kernel answers within the call above.
        let (len, _) = recv(&self.0, &mut answer, RecvFlags::DONTWAIT).or_call(what)?;
        read(&answer[..len]).or_call(what)
    }
}

fn question(local: SocketAddr, peer: SocketAddr) -> [u8; REQUEST] {
    let mut text = [0; REQUEST];
    let mut put = |at: usize, bytes: &[u8]| text[at..at + bytes.len()].copy_from_slice(bytes);
    // An IPv4 client of a listener for both has a socket of IPv4.
    let (local, peer) = (canonical(local), canonical(peer));
    let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    const REQUEST_FLAG: u16 = 1;
    put(0, &u32::try_from(REQUEST).unwrap_or_default().to_ne_bytes());
    put(4, &BY_FAMILY.to_ne_bytes());
    put(6, &REQUEST_FLAG.to_ne_bytes());
    put(HEADER, &[u8::try_from(family.as_raw()).unwrap_or_default(), IPPROTO_TCP]);
    put(HEADER + 4, &u32::MAX.to_ne_bytes());
    let id = HEADER + 8;
    put(id, &peer.port().to_be_bytes());
    put(id + 2, &local.port().to_be_bytes());
    for (at, address) in [(id + 4, peer), (id + 20, local)] {
        match address.ip() {
            IpAddr::V4(ip) => put(at, &ip.octets()),
            IpAddr::V6(ip) => put(at, &ip.octets()),
        }
    }
    // An address of one link's alone says which.
    if let SocketAddr::V6(peer) = peer {
        put(id + 36, &peer.scope_id().to_ne_bytes());
    }
    // Any cookie.
    put(id + 40, &[u8::MAX; 8]);
    text
}

fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V6(_) => address,
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
    }
}

fn read(answer: &[u8]) -> Result<Option<u32>, Errno> {
    const ERROR: u16 = 2;
    const LISTENS: u8 = 10;
    let word = |at: usize| {
        let bytes = answer.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    match kind {
        Some(ERROR) => {
            let code = word(HEADER).unwrap_or_default().cast_signed();
            match Errno::from_raw_os_error(-code) {
                Errno::NOENT => Ok(None),
                errno => Err(errno),
            }
        }
        Some(BY_FAMILY) if answer.len() >= ANSWER => {
            // A socket that its process has closed has no inode, and the user of one that waits for
            // its connections is not who connected.
            let is_open = word(INODE) != Some(0) && answer[HEADER + 1] != LISTENS;
            Ok(word(USER).filter(|_| is_open))
        }
        _ => Err(Errno::PROTO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn pair(address: &str) -> Option<(TcpStream, TcpStream, SocketAddr)> {
        let listener = TcpListener::bind(address).ok()?;
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, peer) = listener.accept().unwrap();
        Some((ours, accepted, peer))
    }

    #[test]
    fn the_user_of_a_local_connection_is_known_until_it_is_closed() {
        let owners = TcpOwners::open().unwrap();
        let user = rustix::process::getuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Some((ours, accepted, peer)) = pair(address) else { continue };
            let local = accepted.local_addr().unwrap();
            assert_eq!(owners.of(local, peer).unwrap(), Some(user), "{address}");
            drop(ours);
            assert_ne!(owners.of(local, peer).unwrap(), Some(u32::MAX));
        }
        let elsewhere = "192.0.2.1:9".parse().unwrap();
        assert_eq!(owners.of("127.0.0.1:9".parse().unwrap(), elsewhere).unwrap(), None);
    }

    #[test]
    fn the_user_of_a_socket_without_a_process_is_not_believed() {
        let mut answer = [0; ANSWER];
        answer[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        answer[USER] = 7;
        assert_eq!(read(&answer), Ok(None), "closed");
        answer[INODE] = 1;
        assert_eq!(read(&answer), Ok(Some(7)));
        answer[HEADER + 1] = 10;
        assert_eq!(read(&answer), Ok(None), "a listener");
        assert_eq!(read(&answer[..40]), Err(Errno::PROTO));
    }
}
