//! For tests: a real connection, and a worker's end of it.

use std::{
    thread,
    time::{Duration, Instant},
};
use transport::{Address, ClientSecurity, Connection, ConnectionKind, Listener, Preamble, ServerSecurity};

/// Longer than anything takes on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Our end and the worker's, over `scheme`: `tcp`, `unix` or `shm`.
pub(super) fn connected(scheme: &str) -> (Connection, Connection) {
    let directory = tempfile::tempdir().unwrap();
    let address = match scheme {
        "tcp" => "tcp:127.0.0.1:0".to_owned(),
        scheme => format!("{scheme}:{}/socket", directory.path().display()),
    };
    let listener = Listener::bind(&address.parse::<Address>().unwrap()).unwrap();
    let address = listener.address().clone();
    let client = thread::spawn(move || {
        let preamble = Preamble::new(ConnectionKind::Command, 0, [1; 16]);
        transport::connect(&address, &ClientSecurity::Plain, preamble, PATIENCE).unwrap()
    });
    let deadline = Instant::now() + PATIENCE;
    let mut worker = listener.accept().unwrap().unwrap();
    worker.read_preamble(deadline).unwrap();
    let worker = worker.serve(&ServerSecurity::Plain, deadline).unwrap();
    (client.join().unwrap(), worker)
}

/// Waits until `condition` holds.
pub(super) fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}
