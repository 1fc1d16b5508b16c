//! File descriptors: none leaks, and running out of them is survived. One test, alone in its process, because it counts
//! the descriptors of the process.

mod support;

use std::fs::File;

use support::*;
use transport::*;

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn two_hundred_connections_leave_nothing_and_a_full_table_is_survived() {
    for scheme in Scheme::LISTENING {
        drop(pair(scheme));
        let before = open_descriptors();
        let listener = Listener::bind(&fresh_address(scheme)).unwrap();
        let address = listener.address().clone();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..50 {
                    let security = match (scheme, round % 5) {
                        // Some that fail on the way.
                        (Scheme::Tls, 0) => ClientSecurity::Fingerprint([0; 32]),
                        _ => client_security(scheme),
                    };
                    let _ =
                        connect(&address, &security, Preamble::new(ConnectionKind::Lane, 0, SESSION), SOON);
                }
            });
            for _ in 0..50 {
                let _ = listener.accept().unwrap().unwrap().serve(&server_security(), soon());
            }
        });
        drop(listener);
        assert_eq!(open_descriptors(), before, "{scheme}");
    }
    delayed_connections_leave_nothing();
    a_full_table_is_survived();
}

fn delayed_connections_leave_nothing() {
    let before = open_descriptors();
    for _ in 0..10 {
        let (client, server) = pair(Scheme::Tcp);
        drop(client.delayed(std::time::Duration::from_millis(1)).unwrap());
        drop(server);
    }
    // The pumps end by themselves, a moment later.
    let deadline = soon();
    while open_descriptors() > before {
        assert!(std::time::Instant::now() < deadline, "a pump holds its connection");
        std::thread::yield_now();
    }
}

fn a_full_table_is_survived() {
    let listener = Listener::bind(&fresh_address(Scheme::Unix)).unwrap();
    let Address::Unix(path) = listener.address().clone() else { unreachable!() };
    let stopper = listener.stopper();
    let turned_away = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let second = std::os::unix::net::UnixStream::connect(&path).unwrap();
    allow_descriptors(open_descriptors() as u64 + 20);
    let mut hoard: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let acceptor = std::thread::spawn(move || listener.accept().unwrap().is_some());
    // The waiting clients are turned away rather than left hanging, and the listener does not spin or fail.
    use std::io::Read;
    assert_eq!((&turned_away).read(&mut [0; 1]).unwrap(), 0);
    assert_eq!((&second).read(&mut [0; 1]).unwrap(), 0);
    hoard.clear();
    let _third = std::os::unix::net::UnixStream::connect(&path).unwrap();
    assert!(acceptor.join().unwrap(), "with descriptors again, it accepts again");
    stopper.stop();
}

fn allow_descriptors(count: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live rlimit.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    limit.rlim_cur = count;
    // SAFETY: the pointer is to a live rlimit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
}
