//! Three members of etcd on this machine, real processes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pool_store::{Etcd, EtcdSettings, Store};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::conformance::{SOON, eventually};

pub(crate) const MEMBERS: usize = 3;

pub(crate) struct Cluster {
    folder: TempDir,
    scheme: &'static str,
    client_ports: Vec<u16>,
    peer_ports: Vec<u16>,
    /// For the members' command line.
    more_arguments: Vec<String>,
    members: Vec<Option<Child>>,
}

impl Cluster {
    /// Starts three members and waits until they have a leader.
    pub(crate) fn start() -> Self {
        let cluster = Self::start_with("http", |_| Vec::new());
        let store = cluster.client();
        eventually("the cluster answers", || store.read("hello").ok());
        cluster
    }

    pub(crate) fn start_with(scheme: &'static str, arguments: impl Fn(&Path) -> Vec<String>) -> Self {
        let ports = free_ports(2 * MEMBERS);
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = Self {
            scheme,
            client_ports: ports[..MEMBERS].to_vec(),
            peer_ports: ports[MEMBERS..].to_vec(),
            more_arguments: arguments(folder.path()),
            folder,
            members: Vec::new(),
        };
        for number in 0..MEMBERS {
            let member = cluster.spawn(number);
            cluster.members.push(Some(member));
        }
        cluster
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.client_ports.iter().map(|port| format!("{}://127.0.0.1:{port}", self.scheme)).collect()
    }

    pub(crate) fn location(&self) -> String {
        format!("etcd:{}", self.endpoints().join(","))
    }

    pub(crate) fn client(&self) -> Etcd {
        Etcd::open(&EtcdSettings::new(self.endpoints())).unwrap()
    }

    /// One for tests of what the store does, not of how long it takes: members on a busy machine may need more than the usual two
    /// seconds for an answer, and a commit without one is uncertain.
    pub(crate) fn patient_client(&self) -> Etcd {
        let usual = EtcdSettings::new(self.endpoints());
        Etcd::open(&EtcdSettings { request_timeout: SOON / 2, patience: SOON, ..usual }).unwrap()
    }

    fn spawn(&self, number: usize) -> Child {
        let peer = |number: usize| format!("http://127.0.0.1:{}", self.peer_ports[number]);
        let all: Vec<String> = (0..MEMBERS).map(|number| format!("m{number}={}", peer(number))).collect();
        let client = &self.endpoints()[number];
        let log = self.folder.path().join(format!("m{number}.log"));
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        Command::new("etcd")
            .args(["--name", &format!("m{number}")])
            .arg("--data-dir")
            .arg(self.folder.path().join(format!("m{number}")))
            .args(["--listen-client-urls", client, "--advertise-client-urls", client])
            .args(["--listen-peer-urls", &peer(number), "--initial-advertise-peer-urls", &peer(number)])
            .args(["--initial-cluster", &all.join(","), "--initial-cluster-state", "new"])
            .args(&self.more_arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("etcd can be started; `make setup` installs it (Debian: etcd-server)")
    }

    /// kill -9.
    pub(crate) fn kill(&mut self, number: usize) {
        let mut member = self.members[number].take().expect("it runs");
        member.kill().unwrap();
        member.wait().unwrap();
    }

    pub(crate) fn restart(&mut self, number: usize) {
        assert!(self.members[number].is_none());
        self.members[number] = Some(self.spawn(number));
    }

    pub(crate) fn signal(&self, number: usize, signal: Signal) {
        let member = self.members[number].as_ref().expect("it runs");
        kill_process(Pid::from_child(member), signal).unwrap();
    }

    /// Which member leads the others, as it says itself.
    pub(crate) fn leader(&self) -> usize {
        eventually("a member leads", || {
            (0..MEMBERS).find(|number| {
                self.members[*number].is_some()
                    && metrics(self.client_ports[*number])
                        .is_some_and(|text| text.contains("\netcd_server_is_leader 1\n"))
            })
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for number in 0..MEMBERS {
                let log = self.folder.path().join(format!("m{number}.log"));
                let log = std::fs::read_to_string(log).unwrap_or_default();
                eprintln!("member {number}:");
                let lines: Vec<&str> = log.lines().collect();
                for line in &lines[lines.len().saturating_sub(8)..] {
                    // A line with a transaction has each of its keys.
                    eprintln!("{}", line.chars().take(300).collect::<String>());
                }
            }
        }
        for mut member in self.members.drain(..).flatten() {
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

fn metrics(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

/// Ports that no process uses now. All are held at once, so that none is given twice.
fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}
