//! Peers in a process of their own, which is then killed.

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use support::*;
use transport::*;

const ADDRESS: &str = "DXPU_TEST_ADDRESS";
const FINGERPRINT: &str = "DXPU_TEST_FINGERPRINT";

/// No test: what the other process does. `the_death_of_a_process_is_noticed_at_once` starts this file's program once more
/// with `--ignored` and the name of this function. Nothing else runs it, and alone it fails.
#[test]
#[ignore = "the other process of the_death_of_a_process_is_noticed_at_once, no test of its own"]
fn child_connects_and_waits_to_be_killed() {
    let address = std::env::var(ADDRESS)
        .unwrap_or_else(|_| panic!("no test: only the_death_of_a_process_is_noticed_at_once starts it"));
    let address: Address = address.parse().unwrap();
    let security = match address.scheme() {
        Scheme::Tls => {
            ClientSecurity::Fingerprint(std::env::var(FINGERPRINT).unwrap().parse::<Fingerprint>().unwrap().0)
        }
        _ => ClientSecurity::Plain,
    };
    let preamble = Preamble::new(ConnectionKind::Command, 0, SESSION);
    let mut connection = connect(&address, &security, preamble, SOON).unwrap();
    connection.tx.send(&[b"alive"]).unwrap();
    println!("ready");
    // Blocks until killed.
    let _ = connection.rx.recv_exact(&mut [0; 1 << 16]);
}

on_every_transport! {
    fn the_death_of_a_process_is_noticed_at_once(scheme) {
        let listener = Listener::bind(&fresh_address(scheme)).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "child_connects_and_waits_to_be_killed"])
            .env(ADDRESS, listener.address().to_string())
            .env(FINGERPRINT, IDENTITY.fingerprint().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let server = listener.accept().unwrap().unwrap().serve(&server_security(), soon()).unwrap();
        let (mut tx, mut rx, _closer) = server.split();
        let mut text = [0; 5];
        rx.recv_exact(&mut text).unwrap();
        assert_eq!(&text, b"alive");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("ready")));
        // One thread blocked in each direction.
        let sender = std::thread::spawn(move || while tx.send(&[&[1; 1 << 20]]).is_ok() {});
        let receiver = std::thread::spawn(move || rx.recv(&mut [0; 1]));
        std::thread::sleep(std::time::Duration::from_millis(50));
        child.kill().unwrap();
        let started = Instant::now();
        child.wait().unwrap();
        // The end, or an error that says that it was not a clean one; never a byte, never silence.
        assert!(!matches!(receiver.join().unwrap(), Ok(1..)));
        sender.join().unwrap();
        assert!(started.elapsed() < std::time::Duration::from_secs(5));
    }

    fn a_forked_child_that_abandons_a_connection_leaves_it_to_its_parent(scheme) {
        let (mut client, mut server) = pair(scheme);
        // SAFETY: the child calls only what is made for a forked child (and the allocator, which glibc prepares for
        // a fork), and leaves by _exit.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            client.closer.abandon();
            drop(client);
            // SAFETY: never returns.
            unsafe { libc::_exit(0) };
        }
        let mut status = -1;
        // SAFETY: waits for our own child; the pointer is to a live integer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(server.rx.try_recv(&mut [0; 10]).unwrap(), None, "the peer must notice nothing");
        client.tx.send(&[b"parent"]).unwrap();
        let mut text = [0; 6];
        server.rx.recv_exact(&mut text).unwrap();
        server.tx.send(&[&text]).unwrap();
        client.rx.recv_exact(&mut text).unwrap();
        assert_eq!(&text, b"parent");
    }
}
