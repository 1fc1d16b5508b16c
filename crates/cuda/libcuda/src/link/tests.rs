use super::{
    connect::{Opened, build},
    wired::*,
    *,
};
use cuda_wire::{Notice, PROTOCOL_VERSION, VaRange, Welcome};
use std::{sync::mpsc, thread};
use transport::{ClientSecurity, Connection};
use worker_link::Tokens;

/// What the worker keeps of pushed bytes.
const WINDOW: u64 = 100;

pub(super) fn config() -> Config {
    Config {
        workers: Vec::new(),
        names: Vec::new(),
        security: ClientSecurity::Plain,
        tokens: Tokens::one(""),
        delay: None,
        lanes: None,
        stall_timeout: PATIENCE,
        await_all: false,
        spin: None,
        patience: PATIENCE,
        users: Vec::new(),
        survive: None,
        accept: false,
        cut_every: None,
        timeline: None,
        content: false,
        standbys: Vec::new(),
        keeper: None,
        class: 0,
    }
}

/// A link over real connections, and the worker's ends of the command and the events connection.
fn linked() -> (SharedLink, Connection, Connection) {
    let (command, worker_command) = connected("unix");
    let (events, worker_events) = connected("unix");
    let address = "unix:/worker".parse().unwrap();
    let welcome = Welcome {
        protocol: PROTOCOL_VERSION,
        session_secret: [0; 32],
        cuda_version: 13000,
        devices: Vec::new(),
        va: VaRange { base: 0, bytes: 0 },
        push_window_bytes: WINDOW,
        memory_credit_bytes: 0,
    };
    let config = config();
    let opened = Opened { command, events, lanes: Vec::new(), welcome };
    let link = build(opened, None, &config, &address).unwrap();
    (link, worker_command, worker_events)
}

/// Announces a push of `bytes` on another thread.
fn announced(link: &SharedLink, bytes: u64) -> mpsc::Receiver<Option<TransferId>> {
    let (told, hears) = mpsc::channel();
    let link = Arc::clone(link);
    thread::spawn(move || told.send(link.announce_push_soon(bytes)));
    hears
}

#[test]
fn a_push_waits_until_the_worker_has_consumed_enough() {
    let (link, _command, mut events) = linked();
    let mut consumed = |bytes| events.tx.send(&[&Notice::PushConsumed { bytes }.to_frame()]).unwrap();
    assert!(link.announce_push_soon(WINDOW).is_some());
    assert_eq!(link.announce_push(1), None, "the window is full");
    let waits = announced(&link, 60);
    consumed(50);
    until("the notice is handled", || link.push_window.load(Ordering::Relaxed) == 50);
    assert!(waits.try_recv().is_err(), "50 of 60 bytes are not enough");
    consumed(50);
    assert!(waits.recv_timeout(PATIENCE).unwrap().is_some());
    assert_eq!(link.push_window.load(Ordering::Relaxed), 40);
    assert_eq!(link.announce_push_soon(WINDOW + 1), None, "the window never holds that much");
    link.lose(&LinkEnd::Ended);
}

#[test]
fn a_lost_worker_ends_the_wait_of_a_push() {
    let (link, _command, events) = linked();
    assert!(link.announce_push_soon(WINDOW).is_some());
    let waits = announced(&link, 1);
    drop(events);
    // The push that follows fails; only the wait must end.
    assert!(waits.recv_timeout(PATIENCE).unwrap().is_some());
    assert!(link.is_lost());
}
