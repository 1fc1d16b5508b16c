//! A slot whose device is elsewhere: the virtual machine's accesses become packets, packets become its memory accesses.
//!
//! ```text
//!   VM ◀─ socket ─▶ Server ─▶ HostSlotDevice ─┐                     ┌─▶ transmit ─▶ network ─▶ device
//!                                             ├─▶ HostPort (core) ──┤
//!           network ─▶ deliver ─▶ HostSlot  ──┘                     └─▶ guest memory, interrupts
//! ```
//!
//! The server's thread and the network's thread work on one `HostPort` under one lock. The server's thread leaves packets in
//! the port and wakes the network's thread, which takes them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use pcie::host::{
    Access, DiscoverError, Discovery, HostMemory, HostOutput, HostPort, HostPortOptions, Violations,
};
use pcie::tables::Window;
use pcie::{Time, TlpBuf};
use vfio_user::message::{irq, region};
use vfio_user::{AccessId, Answer, Bus, Device, IrqKind, Shape};

/// Packets of a guest that may wait for the network. A guest that writes faster has to wait: a box may be paused for as long
/// as the pool forgives it, and the host's memory is not the guest's. Each access adds a few at most.
const STAGED_MAX: usize = 4096;

/// No memory at all, while no virtual machine is connected.
struct NoMemory;

impl HostMemory for NoMemory {
    fn read(&self, _: u64, _: &mut [u8]) -> bool {
        false
    }

    fn write(&self, _: u64, _: &[u8]) -> bool {
        false
    }
}

struct State {
    port: HostPort,
    bus: Option<Bus>,
    discovered: Option<Result<Discovery, DiscoverError>>,
    errors: u64,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Wakes the thread that calls [`HostSlot::transmit`]. Called under the lock of `state`.
    wake: Box<dyn Fn() + Send + Sync>,
    start: Instant,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn now(&self) -> Time {
        Time::at(self.start.elapsed())
    }

    /// Hands on what the core has for others.
    fn drain(&self, state: &mut State) {
        while let Some(output) = state.port.next_output() {
            let bus = state.bus.as_ref();
            match output {
                HostOutput::Done { access, data } => {
                    if let Some(bus) = bus {
                        // The server takes an answer without data as: no device is there.
                        bus.completions.complete(AccessId(access.0), data.unwrap_or_default());
                    }
                }
                HostOutput::Msi(vector) => {
                    bus.map(|bus| bus.interrupts.raise(IrqKind::Msi, vector.into()));
                }
                HostOutput::Msix(vector) => {
                    bus.map(|bus| bus.interrupts.raise(IrqKind::Msix, vector.into()));
                }
                HostOutput::Error { is_fatal } => {
                    state.errors += 1;
                    tracing::warn!(is_fatal, "the device reports an error");
                    if is_fatal {
                        bus.map(|bus| bus.interrupts.raise(IrqKind::Error, 0));
                    }
                }
                HostOutput::Discovered(outcome) => {
                    state.discovered = Some(outcome);
                    self.changed.notify_all();
                }
            }
        }
        state.port.stage(self.now());
        if state.port.staged_count() > 0 {
            (self.wake)();
        }
    }
}

/// Why a slot has no device to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Nothing answered in time.
    #[error("the device does not answer")]
    NoAnswer,
    /// It answered, and cannot be shown.
    #[error("the device cannot be shown")]
    Discover(#[source] DiscoverError),
}

/// The network's end of a slot. Copies are the same slot.
#[derive(Clone)]
pub struct HostSlot {
    shared: Arc<Shared>,
}

impl HostSlot {
    /// A slot whose packets another thread takes with [`HostSlot::transmit`]. `wake` tells it that there are some; it is
    /// called under the slot's lock and must neither wait nor call back into the slot.
    pub fn new(options: HostPortOptions, wake: impl Fn() + Send + Sync + 'static) -> Self {
        let state = State { port: HostPort::new(options), bus: None, discovered: None, errors: 0 };
        let shared = Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            wake: Box::new(wake),
            start: Instant::now(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The next packet for the device.
    pub fn transmit(&self) -> Option<TlpBuf> {
        let mut state = self.shared.lock();
        state.port.transmit(self.shared.now())
    }

    /// A packet from the device has come.
    pub fn deliver(&self, packet: &TlpBuf) {
        let mut state = self.shared.lock();
        let memory = state.bus.as_ref().map(|bus| bus.memory.clone());
        match &memory {
            Some(memory) => state.port.receive(packet, memory),
            None => state.port.receive(packet, &NoMemory),
        }
        self.shared.drain(&mut state);
    }

    /// Time has passed. Says how long it may take until the next call.
    pub fn tick(&self) -> Option<Duration> {
        let mut state = self.shared.lock();
        state.port.on_tick(self.shared.now());
        self.shared.drain(&mut state);
        state.port.wake_at().map(|at| at.since(self.shared.now()))
    }

    /// How long it may take until [`HostSlot::tick`] must be called; forever, if nothing is waited for.
    pub fn wake_in(&self) -> Option<Duration> {
        let state = self.shared.lock();
        state.port.wake_at().map(|at| at.since(self.shared.now()))
    }

    /// The device is gone: from now on the guest reads all ones from its registers, what is remembered from its configuration
    /// space, and waits for nothing. Packets that were not taken are dropped.
    pub fn remove(&self) {
        let mut state = self.shared.lock();
        state.port.remove();
        self.shared.drain(&mut state);
    }

    /// Another device of the same kind is there now, as after power-on. Packets of the old one must not be delivered.
    pub fn restore(&self) {
        let mut state = self.shared.lock();
        state.port.replace();
        self.shared.drain(&mut state);
    }

    /// What was wrong with packets so far.
    pub fn violations(&self) -> Violations {
        self.shared.lock().port.violations()
    }

    /// The windows the guest gave the device.
    pub fn windows(&self) -> (Option<Window>, Option<Window>) {
        self.shared.lock().port.windows()
    }

    /// Looks at the device, and gives what a [`vfio_user::Server`] can show. Another thread must deliver and tick
    /// meanwhile.
    pub fn attach(&self, timeout: Duration) -> Result<HostSlotDevice, AttachError> {
        let mut state = self.shared.lock();
        state.discovered = None;
        state.port.discover();
        self.shared.drain(&mut state);
        let waited = self.shared.changed.wait_timeout_while(state, timeout, |s| s.discovered.is_none());
        let (mut state, _) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        let found = state.discovered.take().ok_or(AttachError::NoAnswer)?.map_err(AttachError::Discover)?;
        drop(state);
        let bars = found.bars.map(|bar| bar.map_or(0, |bar| bar.size));
        Ok(HostSlotDevice {
            shared: self.shared.clone(),
            shape: Shape::pci_express(&bars, found.msi, found.msix),
        })
    }
}

/// What a server shows.
pub struct HostSlotDevice {
    shared: Arc<Shared>,
    shape: Shape,
}

impl HostSlotDevice {
    /// Without MSI-X: for virtual machines that cannot unplug a device that has it.
    pub fn without_msix(mut self) -> Self {
        self.shape.irqs[irq::MSIX as usize] = 0;
        self
    }
}

impl Device for HostSlotDevice {
    fn shape(&self) -> Shape {
        self.shape.clone()
    }

    fn attach(&mut self, bus: Bus) {
        self.shared.lock().bus = Some(bus);
    }

    fn read(&mut self, access: AccessId, region: u32, offset: u64, count: usize) -> Answer<Vec<u8>> {
        let mut state = self.shared.lock();
        match region {
            region::CONFIG => state.port.config_read(Access(access.0), offset as u16, count),
            bar if bar < region::BAR_COUNT => state.port.bar_read(Access(access.0), bar as u8, offset, count),
            _ => return Answer::Now(Vec::new()),
        }
        self.shared.drain(&mut state);
        Answer::Later
    }

    fn write(&mut self, access: AccessId, region: u32, offset: u64, data: &[u8]) -> Answer<()> {
        let mut state = self.shared.lock();
        let answer = match region {
            region::CONFIG => {
                state.port.config_write(Access(access.0), offset as u16, data);
                Answer::Later
            }
            bar if bar < region::BAR_COUNT => {
                state.port.bar_write(bar as u8, offset, data);
                Answer::Now(())
            }
            _ => Answer::Now(()),
        };
        self.shared.drain(&mut state);
        answer
    }

    fn reset(&mut self, access: AccessId) -> Answer<()> {
        let mut state = self.shared.lock();
        state.port.reset(Access(access.0));
        self.shared.drain(&mut state);
        Answer::Later
    }

    fn interrupts_changed(&mut self, index: u32) {
        if index != irq::MSIX {
            return;
        }
        let mut state = self.shared.lock();
        let armed = state.bus.as_ref().map_or(0, |bus| bus.interrupts.armed(IrqKind::Msix));
        if armed > 0 {
            state.port.arm_msix(self.shape.irqs[irq::MSIX as usize] as u16);
            self.shared.drain(&mut state);
        }
    }

    fn remembered(&self, offset: u64, count: usize) -> Option<Vec<u8>> {
        self.shared.lock().port.remembered(offset as u16, count)
    }

    fn has_room(&self) -> bool {
        self.shared.lock().port.staged_count() < STAGED_MAX
    }

    fn abandoned(&mut self, access: AccessId) {
        self.shared.lock().port.abandon(Access(access.0));
    }

    fn detach(&mut self) {
        self.shared.lock().bus = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn slot() -> (HostSlot, HostSlotDevice, Arc<AtomicUsize>) {
        let woken = Arc::new(AtomicUsize::new(0));
        let count = woken.clone();
        let slot = HostSlot::new(HostPortOptions::default(), move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let device = HostSlotDevice { shared: slot.shared.clone(), shape: Shape::pci_express(&[4096], 0, 0) };
        (slot, device, woken)
    }

    #[test]
    fn an_access_of_many_packets_wakes_the_network_once() {
        let (slot, mut device, woken) = slot();
        let answer = device.read(AccessId(1), region::CONFIG, 0, 256);
        assert_eq!(answer, Answer::Later);
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        assert_eq!(std::iter::from_fn(|| slot.transmit()).count(), 64);
        slot.tick();
        assert_eq!(woken.load(Ordering::Relaxed), 1, "nothing is left to be taken");
    }

    #[test]
    fn a_guest_that_is_ahead_of_the_network_by_too_much_has_to_wait() {
        let (slot, mut device, _) = slot();
        let completions = vfio_user::Completions::new().unwrap();
        let interrupts = vfio_user::Interrupts::new(device.shape.irqs);
        device.attach(Bus { memory: vfio_user::GuestMemory::new(), interrupts, completions });
        // Answers to what the device asks count too: they wait in the same place.
        let asked = pcie_request(HostPortOptions::default());
        for _ in 0..STAGED_MAX {
            assert!(device.has_room());
            slot.deliver(&asked);
        }
        assert!(!device.has_room());
        assert!(slot.transmit().is_some() && device.has_room());
    }

    /// A read of memory that is not the guest's: it is answered with a refusal.
    fn pcie_request(options: HostPortOptions) -> TlpBuf {
        let id = tlp::TransactionId::new(options.device, tlp::Tag::truncated(1));
        let span = tlp::Span::of_bytes(0x1000, 4).unwrap();
        TlpBuf::bare(tlp::Header::memory_read(id, span))
    }
}
