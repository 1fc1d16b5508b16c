//! Guardians as processes of their own, and programs' memory to keep.

#![allow(dead_code)] // Each test program uses a part of it.

use cuda_driver::{Blocks, Committed, KeptImage, StoreError, TakenCut};
use cuda_wire::ImageName;
use guardian::{Guardian, GuardianConfig, GuardianStore, PeerAddress, PeerFiles, PeerListen, PeerSecurity};
use rustix::process::{Pid, Signal, kill_process};
use snapshot::{Block, BlockDigest, Delta, EventAge, Key, Seal, Tables};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use transport::HostPort;

/// What a guardian process is told, by its environment.
#[derive(Clone, Default)]
pub(crate) struct Plan {
    pub(crate) bytes_max: u64,
    pub(crate) keep_ms: u64,
    pub(crate) listens: bool,
    pub(crate) copy_to: Option<String>,
    pub(crate) copy_wait_ms: u64,
    pub(crate) disk: Option<PathBuf>,
    /// The room on it; `None`: as much as the machine has.
    pub(crate) disk_bytes: Option<u64>,
    /// How long an image of a lease is without a writer before it goes there.
    pub(crate) park_after_ms: u64,
    /// A directory with authority.pem, certificate.pem and key.pem; `None`: in the clear.
    pub(crate) certificates: Option<PathBuf>,
}

impl Plan {
    pub(crate) fn new() -> Self {
        Self { bytes_max: 256 << 20, keep_ms: 600_000, park_after_ms: 600_000, ..Self::default() }
    }
}

/// A guardian in a process of its own. Dropping it kills it.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) socket: PathBuf,
    /// Where other guardians reach it.
    pub(crate) address: String,
}

const SOCKET: &str = "GUARDIAN_TEST_SOCKET";

/// The body of the test `guardian_process`: does nothing, unless it was started by [`Process::start`].
pub(crate) fn run_if_told() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let text = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let mut config = GuardianConfig::new(socket.into(), number("G_BYTES").unwrap());
    config.keep = Duration::from_millis(number("G_KEEP").unwrap());
    config.copy_to = text("G_COPY_TO").map(|address| address.parse::<PeerAddress>().unwrap());
    config.copy_wait = Duration::from_millis(number("G_COPY_WAIT").unwrap());
    config.disk = text("G_DISK").map(PathBuf::from);
    config.park_after = Duration::from_millis(number("G_PARK_AFTER").unwrap());
    config.security = match text("G_CERTIFICATES").map(PathBuf::from) {
        Some(directory) => PeerSecurity::Mutual(PeerFiles {
            authority: directory.join("authority.pem"),
            certificate: directory.join("certificate.pem"),
            key: directory.join("key.pem"),
        }),
        None => PeerSecurity::Plain,
    };
    if text("G_LISTENS").is_some() {
        let at = HostPort { host: "127.0.0.1".to_owned(), port: 0 };
        config.listen = Some(PeerListen { at, host: "127.0.0.1".to_owned(), name: text("G_NAME") });
    }
    let guardian = Guardian::start(&config).unwrap();
    println!("\nGUARDIAN {}", guardian.address());
    // Until the test lets go of this process' standard input.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    guardian.stop();
    println!("GUARDIAN STOPPED");
    // The test harness must not go on: it would hold what it has printed.
    let _ = std::io::stdin().read(&mut [0]);
}

impl Process {
    pub(crate) fn start(socket: &Path, plan: &Plan) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = match plan.disk_bytes {
            // A file system of its own, which no other process sees and which goes with this one.
            Some(bytes) => {
                let mut command = Command::new("unshare");
                let script =
                    format!("mount -t tmpfs -o size={bytes} dxpu-test \"$G_DISK\" && exec \"$0\" \"$@\"");
                command.args(["--mount", "sh", "-c", &script]).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.args(["--exact", "guardian_process", "--nocapture", "--test-threads=1"]);
        command.env(SOCKET, socket).env("G_BYTES", plan.bytes_max.to_string());
        command.env("G_KEEP", plan.keep_ms.to_string()).env("G_COPY_WAIT", plan.copy_wait_ms.to_string());
        command.env("G_COPY_TO", plan.copy_to.as_deref().unwrap_or_default());
        command.env("G_LISTENS", if plan.listens { "yes" } else { "" });
        command.env("G_DISK", plan.disk.as_deref().unwrap_or(Path::new("")));
        command.env("G_PARK_AFTER", plan.park_after_ms.to_string());
        command.env("G_CERTIFICATES", plan.certificates.as_deref().unwrap_or(Path::new("")));
        if let Some(name) = plan.certificates.as_ref().and_then(|path| path.file_name()) {
            command.env("G_NAME", format!("{}.box.dxpu", name.to_str().unwrap()));
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = loop {
            let line = lines.next().expect("the guardian says where it is").unwrap();
            if let Some(address) = line.strip_prefix("GUARDIAN ") {
                break address.to_owned();
            }
        };
        // The rest of what it prints is read, so that it never blocks.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, socket: socket.to_owned(), address }
    }

    pub(crate) fn store(&self) -> GuardianStore {
        GuardianStore::connect(&self.socket).unwrap()
    }

    /// With SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// As an orderly end does.
    pub(crate) fn stop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) const NAME: ImageName = ImageName { bytes: [0x5a; 16] };
pub(crate) const SECRET: [u8; 32] = [0x77; 32];
pub(crate) const BLOCK: usize = 65536;

/// A program's memory, cut like a worker cuts it.
pub(crate) struct Memory {
    key: Key,
    pub(crate) bytes: Vec<u8>,
    tables: Tables,
}

impl Memory {
    pub(crate) fn new(blocks: usize, fill: u8) -> Self {
        let key = Key::from_seed(&blake3::derive_key("dxpu survival image digest v1", &SECRET));
        Self { key, bytes: vec![fill; blocks * BLOCK], tables: Tables::default() }
    }

    pub(crate) fn entry(&self, index: usize) -> (BlockDigest, &[u8]) {
        let bytes = &self.bytes[index * BLOCK..(index + 1) * BLOCK];
        let block = Block { address: (index * BLOCK) as u64 + 0x7000_0000, bytes: BLOCK as u32 };
        (BlockDigest { block, digest: self.key.digest(bytes) }, bytes)
    }

    pub(crate) fn entries(&self) -> Vec<BlockDigest> {
        (0..self.bytes.len() / BLOCK).map(|index| self.entry(index).0).collect()
    }

    pub(crate) fn take(&mut self, number: u64) -> TakenCut {
        let delta = self.tables.take(number, self.entries()).unwrap();
        taken(delta)
    }

    pub(crate) fn settle(&mut self, number: u64, is_committed: bool) {
        self.tables.settle(number, is_committed).unwrap();
    }

    /// Cuts, sends and commits.
    pub(crate) fn cut(&mut self, image: &dyn KeptImage, number: u64) -> Result<Committed, StoreError> {
        let taken = self.take(number);
        let committed = self.send(image, &taken).and_then(|()| image.commit(number, &taken));
        self.settle(number, committed.is_ok());
        committed
    }

    pub(crate) fn send(&self, image: &dyn KeptImage, taken: &TakenCut) -> Result<(), StoreError> {
        image.begin(taken.delta.base, taken.delta.number)?;
        for entry in &taken.delta.dirty {
            let index = (entry.block.address - 0x7000_0000) as usize / BLOCK;
            // The commit says why.
            let _ = image.put(entry, self.entry(index).1);
        }
        Ok(())
    }

    /// Whether an image holds exactly this memory.
    pub(crate) fn check(&self, image: &dyn KeptImage, number: u64) {
        let kept = image.image(number).unwrap();
        self.check_blocks(&*kept);
    }

    pub(crate) fn check_blocks(&self, kept: &dyn Blocks) {
        assert_eq!(kept.list(), self.entries());
        for (index, entry) in kept.list().iter().enumerate() {
            let bytes = kept.read(entry.block).unwrap();
            assert!(*bytes == *self.entry(index).1, "block {index} differs");
        }
    }
}

pub(crate) fn taken(delta: Delta) -> TakenCut {
    TakenCut {
        delta,
        live_bytes: 0,
        dirty_bytes: 0,
        events: vec![EventAge { event: 3, age_ns: 1234 }],
        pause: Duration::ZERO,
    }
}

pub(crate) fn seal_of(entries: &[BlockDigest]) -> Seal {
    Seal::of(entries.iter().copied())
}

pub(crate) fn refused<T>(result: Result<T, StoreError>) -> String {
    match result {
        Err(StoreError::Refused(text)) => text,
        Err(lost) => panic!("not refused but {lost:?}"),
        Ok(_) => panic!("not refused"),
    }
}

pub(crate) fn lost<T>(result: Result<T, StoreError>) -> String {
    match result {
        Err(StoreError::Lost(text)) => text,
        Err(refused) => panic!("not lost but {refused:?}"),
        Ok(_) => panic!("not lost"),
    }
}

/// Waits for something that another thread or process does.
pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..3000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("never: {what}");
}

/// Freezes a process, and waits until all its threads stand still.
pub(crate) fn freeze(process: &Process) {
    kill_process(pid_of(process), Signal::STOP).unwrap();
    let stands_still = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
        stat.rsplit_once(')').is_none_or(|(_, rest)| rest.starts_with(" T"))
    };
    let tasks = || std::fs::read_dir(format!("/proc/{}/task", process.child.id())).unwrap();
    eventually("all threads stand still", || tasks().all(stands_still));
}

/// Lets a frozen process go on.
pub(crate) fn thaw(process: &Process) {
    kill_process(pid_of(process), Signal::CONT).unwrap();
}

fn pid_of(process: &Process) -> Pid {
    Pid::from_raw(process.child.id().cast_signed()).unwrap()
}

/// How often a pattern is in a process' memory.
pub(crate) fn occurrences(pid: u32, pattern: &[u8]) -> usize {
    use std::io::{Seek, SeekFrom};
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut count = 0;
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let Some((first, last)) = line.split_once(' ').and_then(|(range, _)| range.split_once('-')) else {
            continue;
        };
        let address = |text| u64::from_str_radix(text, 16).unwrap();
        let (first, last) = (address(first), address(last));
        let mut bytes = vec![0; (last - first) as usize];
        if memory.seek(SeekFrom::Start(first)).is_err() || memory.read_exact(&mut bytes).is_err() {
            continue;
        }
        let mut at = 0;
        while let Some(found) = find(&bytes[at..], pattern) {
            count += 1;
            at += found + pattern.len();
        }
    }
    count
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|byte| *byte == pattern[0]) {
        if bytes[at + found..].starts_with(pattern) {
            return Some(at + found);
        }
        at += found + 1;
    }
    None
}
