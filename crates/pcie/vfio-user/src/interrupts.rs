//! Interrupts of a device: event file descriptors the peer gave us.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::message::irq;

/// Kinds of interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IrqKind {
    /// The four wires of old.
    Intx,
    /// Message-signalled.
    Msi,
    /// Message-signalled, from a table in a BAR.
    Msix,
    /// An uncorrectable error.
    Error,
    /// The device asks to be given back.
    Request,
}

impl IrqKind {
    /// VFIO's number.
    pub fn index(self) -> u32 {
        match self {
            IrqKind::Intx => irq::INTX,
            IrqKind::Msi => irq::MSI,
            IrqKind::Msix => irq::MSIX,
            IrqKind::Error => irq::ERR,
            IrqKind::Request => irq::REQ,
        }
    }

    /// The kind with VFIO's number.
    pub fn from_index(index: u32) -> Option<Self> {
        [Self::Intx, Self::Msi, Self::Msix, Self::Error, Self::Request]
            .into_iter()
            .find(|kind| kind.index() == index)
    }
}

/// Why interrupts were not set.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetIrqsError {
    /// No such kind, or no such vectors.
    #[error("interrupt {index} has no vectors {start} to {start} + {count}")]
    Range {
        /// VFIO's number of the kind.
        index: u32,
        /// First vector.
        start: u32,
        /// How many.
        count: u32,
    },
    /// Flags that contradict each other or that we do not offer.
    #[error("flags {flags:#x} are not something we offer")]
    Flags {
        /// As sent.
        flags: u32,
    },
    /// Neither none nor one for each vector.
    #[error("{have} file descriptors for {count} vectors")]
    FdCount {
        /// Vectors.
        count: u32,
        /// File descriptors.
        have: usize,
    },
    /// A file descriptor that is no event.
    #[error("a file descriptor is not an eventfd")]
    NotAnEvent,
}

/// All vectors of all kinds. Copies of this value are the same vectors; any thread may raise one.
#[derive(Clone)]
pub struct Interrupts {
    vectors: Arc<Mutex<[Vec<Option<OwnedFd>>; irq::COUNT as usize]>>,
}

impl Interrupts {
    /// None of `counts` vectors is set.
    pub fn new(counts: [u32; irq::COUNT as usize]) -> Self {
        let vectors = counts.map(|count| (0..count).map(|_| None).collect());
        Self { vectors: Arc::new(Mutex::new(vectors)) }
    }

    fn lock(&self) -> MutexGuard<'_, [Vec<Option<OwnedFd>>; irq::COUNT as usize]> {
        self.vectors.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Raises one; returns whether the peer has set an event for it.
    pub fn raise(&self, kind: IrqKind, vector: u32) -> bool {
        let vectors = self.lock();
        let Some(Some(event)) = vectors[kind.index() as usize].get(vector as usize) else { return false };
        // It does not block: the file was checked to be an eventfd and set not to. A full counter has already
        // told its listener all there is to tell.
        let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        true
    }

    /// How many vectors of a kind are listened to.
    pub fn armed(&self, kind: IrqKind) -> usize {
        self.lock()[kind.index() as usize].iter().flatten().count()
    }

    /// Forgets every event file descriptor.
    pub fn disarm_all(&self) {
        self.lock().iter_mut().flatten().for_each(|vector| *vector = None);
    }

    /// `SET_IRQS`, as the peer asked for it.
    pub fn set(
        &self,
        flags: u32,
        index: u32,
        start: u32,
        count: u32,
        data: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<(), SetIrqsError> {
        let mut vectors = self.lock();
        let range_error = SetIrqsError::Range { index, start, count };
        let Some(kind) = vectors.get_mut(index as usize) else { return Err(range_error) };
        let end = start as usize + count as usize;
        let Some(chosen) = kind.get_mut(start as usize..end) else { return Err(range_error) };
        const TRIGGER: u32 = irq::ACTION_TRIGGER;
        match flags {
            // Nothing for no vector turns the whole kind off.
            _ if flags == irq::DATA_NONE | TRIGGER && count == 0 => {
                kind.iter_mut().for_each(|vector| *vector = None);
            }
            _ if flags == irq::DATA_EVENTFD | TRIGGER => {
                if !fds.is_empty() && fds.len() != count as usize {
                    return Err(SetIrqsError::FdCount { count, have: fds.len() });
                }
                if !fds.iter().all(is_event) {
                    return Err(SetIrqsError::NotAnEvent);
                }
                let mut fds = fds.into_iter();
                chosen.iter_mut().for_each(|vector| *vector = fds.next());
            }
            // A peer may ask us to raise vectors, to try them out.
            _ if flags == irq::DATA_NONE | TRIGGER => chosen.iter().flatten().for_each(signal),
            _ if flags == irq::DATA_BOOL | TRIGGER && data.len() == count as usize => {
                let asked = chosen.iter().zip(data).filter(|(_, asked)| **asked != 0);
                asked.filter_map(|(event, _)| event.as_ref()).for_each(signal);
            }
            // The owner of the other end of the event does the masking.
            _ if flags & (irq::ACTION_MASK | irq::ACTION_UNMASK) != 0 && flags & TRIGGER == 0 => {}
            _ => return Err(SetIrqsError::Flags { flags }),
        }
        Ok(())
    }
}

fn signal(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Whether a stranger's file is an eventfd; and makes sure that writing to it never blocks.
fn is_event(fd: &OwnedFd) -> bool {
    use std::os::fd::AsRawFd;
    let name = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    name.is_ok_and(|name| name.to_str() == Some("anon_inode:[eventfd]"))
        && rustix::io::ioctl_fionbio(fd, true).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    const SET: u32 = irq::DATA_EVENTFD | irq::ACTION_TRIGGER;
    const OFF: u32 = irq::DATA_NONE | irq::ACTION_TRIGGER;

    fn event() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC).unwrap()
    }

    fn count(event: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        match rustix::io::read(event, &mut bytes) {
            Ok(_) => u64::from_ne_bytes(bytes),
            Err(_) => 0,
        }
    }

    #[test]
    fn vectors_are_set_raised_and_taken_away() {
        let irqs = Interrupts::new([1, 4, 0, 1, 1]);
        let events = [event(), event()];
        let fds = events.iter().map(|event| event.try_clone().unwrap()).collect();
        irqs.set(SET, irq::MSI, 1, 2, &[], fds).unwrap();
        assert!(!irqs.raise(IrqKind::Msi, 0) && irqs.raise(IrqKind::Msi, 1) && irqs.raise(IrqKind::Msi, 2));
        assert!(irqs.raise(IrqKind::Msi, 2) && !irqs.raise(IrqKind::Msi, 99));
        assert_eq!((count(&events[0]), count(&events[1])), (1, 2));
        irqs.set(irq::DATA_BOOL | irq::ACTION_TRIGGER, irq::MSI, 1, 2, &[0, 1], vec![]).unwrap();
        assert_eq!((count(&events[0]), count(&events[1])), (0, 1));
        irqs.set(SET, irq::MSI, 1, 1, &[], vec![]).unwrap();
        assert_eq!(irqs.armed(IrqKind::Msi), 1);
        irqs.set(OFF, irq::MSI, 0, 0, &[], vec![]).unwrap();
        assert_eq!(irqs.armed(IrqKind::Msi), 0);
    }

    #[test]
    fn what_is_not_an_event_or_not_a_vector_is_refused() {
        let irqs = Interrupts::new([1, 4, 0, 1, 1]);
        let (pipe, _end) = std::io::pipe().unwrap();
        assert_eq!(irqs.set(SET, 1, 0, 1, &[], vec![pipe.into()]), Err(SetIrqsError::NotAnEvent));
        assert!(matches!(irqs.set(SET, 1, 0, 2, &[], vec![event()]), Err(SetIrqsError::FdCount { .. })));
        assert!(matches!(irqs.set(SET, 1, 3, 2, &[], vec![]), Err(SetIrqsError::Range { .. })));
        assert!(matches!(irqs.set(SET, 1, u32::MAX, u32::MAX, &[], vec![]), Err(SetIrqsError::Range { .. })));
        assert!(matches!(irqs.set(SET, 9, 0, 0, &[], vec![]), Err(SetIrqsError::Range { .. })));
        assert!(matches!(irqs.set(0xff, 1, 0, 1, &[], vec![]), Err(SetIrqsError::Flags { .. })));
    }
}
