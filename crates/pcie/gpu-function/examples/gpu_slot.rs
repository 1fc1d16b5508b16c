//! Slots with dxpu GPU functions behind two proxies that share a process: for judges that bring their own virtual machine.
//!
//!     gpu_slot SOCKET=WORKER_SOCKET...
//!
//! A virtual machine connects to SOCKET (vfio-user); a worker listens at WORKER_SOCKET (`dxpu worker --listen unix:PATH`).
//! Every packet between the two ends is bytes for a moment, as on a network. Commands on standard input:
//!
//!     cut N      the box of slot N (from 0) falls silent
//!     stats      what was wrong so far, as a line for each slot

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use gpu_function::GpuEndpoint;
use pcie::endpoint::{Endpoint, FunctionOptions};
use pcie::host::HostPortOptions;
use pcie::{Time, TlpBuf};
use pcie_proxy::HostSlot;
use tlp::{TLP_BYTES_MAX, Tlp};
use vfio_user::{Options, Server};

/// Something for the other end: a packet as bytes, or nothing but a reason to look.
type Sent = Option<Vec<u8>>;

const IDLE: Duration = Duration::from_millis(100);

fn now(start: Instant) -> Time {
    Time::at(start.elapsed())
}

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

/// The box: the function, its packets in and out.
fn run_box(mut device: GpuEndpoint, inbox: Receiver<Sent>, outbox: Sender<Sent>, cut: Arc<AtomicBool>) {
    let start = Instant::now();
    loop {
        let wake = device.wake_at().map_or(IDLE, |at| at.since(now(start)).min(IDLE));
        match inbox.recv_timeout(wake) {
            Ok(_) if cut.load(Ordering::Relaxed) => continue,
            Ok(Some(bytes)) => device.receive(from_bytes(&bytes), now(start)),
            Ok(None) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        device.on_tick(now(start));
        while let Some(packet) = device.transmit(now(start)) {
            if outbox.send(Some(to_bytes(&packet))).is_err() {
                return;
            }
        }
    }
}

/// The host's side: packets of the box reach the guest's memory.
fn run_host(slot: HostSlot, from_box: Receiver<Sent>, to_box: Sender<Sent>) {
    loop {
        let wake = slot.tick().unwrap_or(IDLE).min(IDLE);
        match from_box.recv_timeout(wake) {
            Ok(Some(bytes)) => slot.deliver(&from_bytes(&bytes)),
            Ok(None) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while let Some(packet) = slot.transmit() {
            let _ = to_box.send(Some(to_bytes(&packet)));
        }
    }
}

fn start_slot(socket: PathBuf, worker: &Path) -> (HostSlot, Arc<AtomicBool>) {
    let (to_box, inbox) = channel::<Sent>();
    let (to_host, from_box) = channel::<Sent>();
    let wake = {
        let to_box = to_box.clone();
        Arc::new(move || drop(to_box.send(None)))
    };
    let wake_host = to_host.clone();
    let slot = HostSlot::new(HostPortOptions::default(), move || drop(wake_host.send(None)));
    let device = GpuEndpoint::new(worker.into(), FunctionOptions::default(), wake);
    let cut = Arc::new(AtomicBool::new(false));
    let boxes = cut.clone();
    std::thread::spawn(move || run_box(device, inbox, to_host, boxes));
    let host = slot.clone();
    std::thread::spawn(move || run_host(host, from_box, to_box));
    let served = slot.clone();
    std::thread::spawn(move || {
        let mut device = served.attach(Duration::from_secs(5)).expect("our own device answers");
        let server = Server::bind(&socket, Options::default()).expect("the socket can be made");
        server.serve(&mut device).expect("the socket can be served");
    });
    (slot, cut)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut slots = Vec::new();
    for pair in std::env::args().skip(1) {
        let (socket, worker) = pair.split_once('=').ok_or("SOCKET=WORKER_SOCKET")?;
        slots.push(start_slot(socket.into(), Path::new(worker)));
    }
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let (command, number) = (words.next(), words.next().and_then(|word| word.parse::<usize>().ok()));
        match (command, number.and_then(|number| slots.get(number))) {
            (Some("cut"), Some((_, cut))) => cut.store(true, Ordering::Relaxed),
            (Some("stats"), _) => {
                for (number, (slot, _)) in slots.iter().enumerate() {
                    println!("{number} {:?} {:?}", slot.violations(), slot.windows());
                }
            }
            _ => println!("what?"),
        }
    }
    Ok(())
}
