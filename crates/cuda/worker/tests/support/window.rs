//! Bytes of a pulled copy that land as on a GPU behind a few pinned slots: those far ahead wait for those before them.

use cuda_driver::Landing;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// A landing gives up after this, so that a test ends that would wait for ever; its bytes are zeros then.
const PATIENCE: Duration = Duration::from_secs(20);

/// What has landed of one copy.
pub struct Window {
    bytes: Mutex<Vec<u8>>,
    state: Mutex<Landed>,
    changed: Condvar,
    part_bytes: u64,
    parts: u64,
}

#[derive(Default)]
struct Landed {
    by_part: Vec<u64>,
    /// Parts from the first on that are whole.
    whole: u64,
}

impl Window {
    /// Room for so many parts at a time.
    pub fn new(bytes: u64, part_bytes: u64, parts: u64) -> Arc<Self> {
        let count = bytes.div_ceil(part_bytes) as usize;
        Arc::new(Self {
            bytes: Mutex::new(vec![0; bytes as usize]),
            state: Mutex::new(Landed { by_part: vec![0; count], whole: 0 }),
            changed: Condvar::new(),
            part_bytes,
            parts,
        })
    }

    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.bytes.lock().unwrap())
    }

    fn is_room(&self, landed: &Landed, end: u64) -> bool {
        (end - 1) / self.part_bytes < landed.whole + self.parts
    }

    fn note(&self, offset: u64, bytes: u64) {
        let all = self.bytes.lock().unwrap().len() as u64;
        let mut state = self.state.lock().unwrap();
        let mut at = offset;
        while at < offset + bytes {
            let part = at / self.part_bytes;
            let end = ((part + 1) * self.part_bytes).min(offset + bytes);
            state.by_part[part as usize] += end - at;
            at = end;
        }
        let length = |part: u64| self.part_bytes.min(all - part * self.part_bytes);
        while let Some(have) = state.by_part.get(state.whole as usize)
            && *have == length(state.whole)
        {
            state.whole += 1;
        }
        self.changed.notify_all();
    }
}

/// The window as a session fills it.
pub struct Into(pub Arc<Window>);

impl Landing for Into {
    fn land(&self, offset: u64, bytes: usize, fill: &mut dyn FnMut(&mut [u8])) {
        let window = &self.0;
        let end = offset + bytes as u64;
        let state = window.state.lock().unwrap();
        drop(
            window
                .changed
                .wait_timeout_while(state, PATIENCE, |landed| !window.is_room(landed, end))
                .unwrap(),
        );
        let mut piece = vec![0; bytes];
        fill(&mut piece);
        window.bytes.lock().unwrap()[offset as usize..end as usize].copy_from_slice(&piece);
        window.note(offset, bytes as u64);
    }

    fn has_room(&self, offset: u64, bytes: usize) -> bool {
        self.0.is_room(&self.0.state.lock().unwrap(), offset + bytes as u64)
    }
}
