//! Which user has the other end of a connection over loopback.
//!
//! Instances of several tenants run on one machine, and each could dial the port of another's Runtime API. The kernel knows
//! whose a socket is.

use std::net::SocketAddr;

/// The user of the socket that dialled.
pub(crate) fn user_of(local: SocketAddr, peer: SocketAddr) -> Option<u32> {
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    find(&table, peer, local)
}

/// The user of the socket with this own and this other address, in the kernel's table.
fn find(table: &str, own: SocketAddr, other: SocketAddr) -> Option<u32> {
    let (own, other) = (shown(own)?, shown(other)?);
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is_it = words.next() == Some(&own) && words.next() == Some(&other);
        is_it.then(|| words.nth(4)?.parse().ok())?
    })
}

/// As the table has it: bytes of the address as the processor stores them.
fn shown(address: SocketAddr) -> Option<String> {
    let SocketAddr::V4(address) = address else { return None };
    Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_of_this_process_is_this_user_s() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, peer) = listener.accept().unwrap();
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(user_of(server.local_addr().unwrap(), peer), Some(own));
        assert_eq!(user_of(server.local_addr().unwrap(), "127.0.0.1:1".parse().unwrap()), None);
        drop(client);
    }
}
