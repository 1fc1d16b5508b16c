//! Slots with NVMe devices behind two proxies that share a process: for judges that bring their own virtual machine.
//!
//!     nvme_slots [--msix] [--delay MICROSECONDS] SOCKET=FILE...
//!
//! Every packet between the two ends is bytes for a moment, as on a network. Commands on standard input:
//!
//!     cut N      the box of slot N (from 0) falls silent
//!     remove N   the host's proxy learns that it is gone
//!     restore N  another device, with the same file, takes its place
//!     stats      what was wrong so far, as a line for each slot

use std::collections::VecDeque;
use std::fs::File;
use std::io::BufRead;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pcie::endpoint::Endpoint;
use pcie::endpoint::nvme::{BLOCK_BYTES, BlockStore, Nvme, NvmeOptions, StoreError};
use pcie::host::HostPortOptions;
use pcie::{Time, TlpBuf};
use pcie_proxy::HostSlot;
use tlp::{TLP_BYTES_MAX, Tlp};
use vfio_user::{Options, Server};

struct FileStore(File);

impl BlockStore for FileStore {
    fn blocks(&self) -> u64 {
        self.0.metadata().map_or(0, |meta| meta.len() / BLOCK_BYTES as u64)
    }
    fn read(&mut self, block: u64, into: &mut [u8]) -> Result<(), StoreError> {
        self.0.read_exact_at(into, block * BLOCK_BYTES as u64).map_err(|_| StoreError)
    }
    fn write(&mut self, block: u64, from: &[u8]) -> Result<(), StoreError> {
        self.0.write_all_at(from, block * BLOCK_BYTES as u64).map_err(|_| StoreError)
    }
    fn flush(&mut self) -> Result<(), StoreError> {
        self.0.sync_data().map_err(|_| StoreError)
    }
}

/// A packet as bytes, and when it arrives; no bytes are a reason to look.
type Sent = (Instant, Vec<u8>);

fn to_bytes(packet: &TlpBuf) -> Vec<u8> {
    let mut bytes = vec![0; TLP_BYTES_MAX];
    let len = packet.as_tlp().encode(&mut bytes).expect("our own packets can be encoded");
    bytes.truncate(len);
    bytes
}

fn from_bytes(bytes: &[u8]) -> TlpBuf {
    let tlp = Tlp::decode(bytes).expect("our own packets can be decoded");
    TlpBuf { header: tlp.header, payload: tlp.payload.to_vec() }
}

/// Waits for the next packet whose time has come, for a reason to look, or until `until`.
fn next(inbox: &Receiver<Sent>, early: &mut VecDeque<Sent>, until: Instant) -> Result<Option<TlpBuf>, ()> {
    loop {
        let due = early.front().map_or(until, |(at, _)| (*at).min(until));
        match inbox.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok((_, bytes)) if bytes.is_empty() => return Ok(None),
            Ok(sent) => early.push_back(sent),
            Err(RecvTimeoutError::Disconnected) => return Err(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if early.front().is_some_and(|(at, _)| *at <= Instant::now()) {
            return Ok(early.pop_front().map(|(_, bytes)| from_bytes(&bytes)));
        }
        if Instant::now() >= until {
            return Ok(None);
        }
    }
}

const IDLE: Duration = Duration::from_millis(100);

fn now(start: Instant) -> Time {
    Time::at(start.elapsed())
}

/// The box: one device, its packets in and out.
fn run_box(
    mut device: impl Endpoint,
    inbox: Receiver<Sent>,
    outbox: Sender<Sent>,
    cut: Arc<AtomicBool>,
    delay: Duration,
) {
    let start = Instant::now();
    let mut early = VecDeque::new();
    loop {
        let wake = device.wake_at().map_or(IDLE, |at| at.since(now(start)).min(IDLE));
        let Ok(packet) = next(&inbox, &mut early, Instant::now() + wake) else { return };
        if cut.load(Ordering::Relaxed) {
            continue;
        }
        if let Some(packet) = packet {
            device.receive(packet, now(start));
        }
        device.on_tick(now(start));
        while let Some(packet) = device.transmit(now(start)) {
            if outbox.send((Instant::now() + delay, to_bytes(&packet))).is_err() {
                return;
            }
        }
    }
}

struct Slot {
    file: PathBuf,
    handle: HostSlot,
    cut: Arc<AtomicBool>,
    to_box: Arc<Mutex<Sender<Sent>>>,
    to_host: Sender<Sent>,
}

impl Slot {
    /// A fresh device at the end of a fresh wire.
    fn plug_in(&mut self, number: usize, msix: bool, delay: Duration) {
        let (to_box, inbox) = channel();
        *self.to_box.lock().expect("no thread panics with it") = to_box;
        self.cut = Arc::new(AtomicBool::new(false));
        let file = File::options().read(true).write(true).open(&self.file).expect("the file exists");
        let options = NvmeOptions { serial: format!("dxpu-{number}"), msix, ..NvmeOptions::default() };
        let device = Nvme::new(FileStore(file), options);
        let (outbox, cut) = (self.to_host.clone(), self.cut.clone());
        std::thread::spawn(move || run_box(device, inbox, outbox, cut, delay));
    }
}

fn start_slot(socket: &Path, file: &Path, number: usize, msix: bool, delay: Duration) -> Slot {
    let (unused, _) = channel();
    let to_box = Arc::new(Mutex::new(unused));
    let (to_host, from_box) = channel();
    let wake: Sender<Sent> = to_host.clone();
    let wake = move || drop(wake.send((Instant::now(), Vec::new())));
    let handle = HostSlot::new(HostPortOptions { msix, ..HostPortOptions::default() }, wake);
    let outbox = to_box.clone();
    let mut slot = Slot { file: file.into(), handle, cut: Arc::default(), to_box, to_host };
    slot.plug_in(number, msix, delay);
    let handle = slot.handle.clone();
    std::thread::spawn(move || {
        let mut early = VecDeque::new();
        loop {
            let wake = handle.tick().unwrap_or(IDLE).min(IDLE);
            match next(&from_box, &mut early, Instant::now() + wake) {
                Ok(Some(packet)) => handle.deliver(&packet),
                Ok(None) => {}
                Err(()) => return,
            }
            while let Some(packet) = handle.transmit() {
                let sender = outbox.lock().expect("no thread panics with it");
                let _ = sender.send((Instant::now() + delay, to_bytes(&packet)));
            }
        }
    });
    serve(slot.handle.clone(), socket.into(), msix);
    slot
}

fn serve(handle: HostSlot, socket: PathBuf, msix: bool) {
    std::thread::spawn(move || {
        let device = handle.attach(Duration::from_secs(5)).expect("our own device answers");
        let mut device = if msix { device } else { device.without_msix() };
        let server = Server::bind(&socket, Options::default()).expect("the socket can be made");
        server.serve(&mut device).expect("the socket can be served");
    });
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut msix, mut delay, mut slots) = (false, Duration::ZERO, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--msix" => msix = true,
            "--delay" => {
                delay = Duration::from_micros(arguments.next().ok_or("--delay needs a number")?.parse()?)
            }
            pair => {
                let (socket, file) = pair.split_once('=').ok_or("SOCKET=FILE")?;
                slots.push(start_slot(Path::new(socket), Path::new(file), slots.len(), msix, delay));
            }
        }
    }
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let (command, number) = (words.next(), words.next().and_then(|word| word.parse::<usize>().ok()));
        match (command, number.and_then(|number| slots.get_mut(number))) {
            (Some("cut"), Some(slot)) => slot.cut.store(true, Ordering::Relaxed),
            (Some("remove"), Some(slot)) => {
                slot.cut.store(true, Ordering::Relaxed);
                slot.handle.remove();
            }
            (Some("restore"), Some(slot)) => {
                let number = number.unwrap_or(0);
                slot.plug_in(number, msix, delay);
                slot.handle.restore();
            }
            (Some("stats"), _) => {
                for (number, slot) in slots.iter().enumerate() {
                    println!("{number} {:?} {:?}", slot.handle.violations(), slot.handle.windows());
                }
            }
            _ => println!("what?"),
        }
    }
    Ok(())
}
