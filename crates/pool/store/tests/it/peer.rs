//! Another process that leads and writes, to be killed and frozen.
//!
//! It is this very test program, asked to run [`the_other_process`] alone.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use pool_store::{
    Campaign, Candidacy, Elector, Leadership, Location, Outcome, Revision, Standing, Store, Transaction,
};
use rustix::process::{Pid, Signal, getpid, kill_process};

use crate::conformance::SOON;

const LOCATION: &str = "POOL_STORE_PEER_LOCATION";
const FREEZE_AFTER: &str = "POOL_STORE_PEER_FREEZE_AFTER";

pub(crate) fn candidacy(address: &str) -> Candidacy {
    Candidacy { name: "work".into(), address: address.into(), ttl: Duration::from_secs(2) }
}

/// Leads, and writes `work/<tenure>/<number>` as fast as it can. Says what it did only once it is done.
#[test]
#[ignore = "the other process of the tests that kill one"]
fn the_other_process() {
    let location: Location = std::env::var(LOCATION).expect("started by a test").parse().unwrap();
    let store = location.open().unwrap();
    match std::env::var(FREEZE_AFTER) {
        // No other thread, which could be in the middle of a transaction at that moment.
        Ok(count) => match store.campaign(&candidacy("peer")).unwrap() {
            Campaign::Won(leadership) => write(&*store, &leadership, count.parse().ok()),
            Campaign::Led(leader) => panic!("{leader:?}"),
        },
        Err(_) => {
            let elector = Elector::start(store.clone(), candidacy("peer"));
            loop {
                if let Standing::Leading(leadership) = elector.standings().recv().unwrap() {
                    return write(&*store, &leadership, None);
                }
            }
        }
    }
}

fn write(store: &dyn Store, leadership: &Leadership, freeze_after: Option<u64>) {
    println!("\npeer leading {}", leadership.tenure);
    for number in 0.. {
        if freeze_after == Some(number) {
            kill_process(getpid(), Signal::STOP).unwrap();
            // The signal stops this thread a little later. It must not be in the middle of a write by then.
            std::thread::sleep(Duration::from_millis(200));
        }
        let key = format!("work/{:020}/{number:08}", leadership.tenure.0);
        let transaction = Transaction::new().when(leadership.condition()).put(key, "x".repeat(200));
        match store.commit(&transaction) {
            Ok(Outcome::Committed { .. }) => println!("\npeer done {number}"),
            Ok(Outcome::Conflict { .. }) => break,
            // A frozen process finds its connection timed out; the next write tells.
            Err(error) => println!("\npeer error {error}"),
        }
    }
    println!("\npeer refused");
}

pub(crate) enum Said {
    Leading(Revision),
    Done(u64),
    Refused,
    Error(String),
}

pub(crate) struct Peer {
    child: Child,
    lines: Receiver<Said>,
    /// What it has said and the test has not read yet.
    unread: VecDeque<Said>,
}

impl Peer {
    pub(crate) fn start(location: &str) -> Self {
        Self::spawn(location, None)
    }

    /// Freezes itself between two writes, this many writes after it began to lead.
    pub(crate) fn start_to_freeze(location: &str, after: u64) -> Self {
        Self::spawn(location, Some(after))
    }

    fn spawn(location: &str, freeze_after: Option<u64>) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "peer::the_other_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env(LOCATION, location)
            .envs(freeze_after.map(|after| (FREEZE_AFTER, after.to_string())))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(said) = parse(&line) {
                    let _ = tell.send(said);
                }
            }
        });
        Self { child, lines, unread: VecDeque::new() }
    }

    fn next(&mut self) -> Said {
        self.unread.pop_front().unwrap_or_else(|| self.lines.recv_timeout(SOON).expect("the peer goes on"))
    }

    /// Waits until it leads.
    pub(crate) fn leading(&mut self) -> Revision {
        loop {
            if let Said::Leading(tenure) = self.next() {
                return tenure;
            }
        }
    }

    /// Waits until it has done so much.
    pub(crate) fn done(&mut self, count: u64) {
        loop {
            match self.next() {
                Said::Done(number) if number + 1 >= count => return,
                Said::Refused => panic!("the peer was replaced"),
                _ => {}
            }
        }
    }

    /// Waits until the store refuses it. Tells how much it had been told was done, since it was last asked.
    pub(crate) fn refused(&mut self) -> Option<u64> {
        let mut last = None;
        loop {
            match self.next() {
                Said::Refused => return last,
                Said::Done(number) => last = Some(number),
                Said::Error(error) => eprintln!("peer: {error}"),
                Said::Leading(_) => panic!("it leads once"),
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// kill -9. Tells the number of the last write it had been told was done, if it said so since it was last asked.
    pub(crate) fn kill(mut self) -> Option<u64> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let rest = self.unread.drain(..).chain(self.lines.iter());
        rest.filter_map(|said| if let Said::Done(number) = said { Some(number) } else { None }).last()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn parse(line: &str) -> Option<Said> {
    let mut words = line.strip_prefix("peer ")?.splitn(2, ' ');
    let (verb, rest) = (words.next()?, words.next().unwrap_or_default());
    Some(match verb {
        "leading" => Said::Leading(Revision(rest.parse().unwrap())),
        "done" => Said::Done(rest.parse().unwrap()),
        "refused" => Said::Refused,
        "error" => Said::Error(rest.to_owned()),
        other => panic!("{other}"),
    })
}
