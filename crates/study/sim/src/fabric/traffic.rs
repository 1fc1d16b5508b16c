//! What GPUs and hosts have to move.

/// What one GPU does, again and again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Traffic {
    /// Nothing.
    Idle,
    /// Reads host memory without end: a large host-to-device copy.
    Read,
    /// Writes host memory without end: a large device-to-host copy.
    Write,
    /// The host writes the GPU's memory without end, by its own store instructions.
    HostWrites,
    /// Writes another GPU's memory without end.
    WritePeer {
        /// Which GPU.
        peer: usize,
    },
    /// Works for a while, then reads and writes host memory at the same time, and begins again when both are done.
    Steps {
        /// How long it works.
        compute_us: f64,
        /// What it reads.
        read_bytes: u64,
        /// What it writes.
        write_bytes: u64,
    },
}

/// What was moved one way, counted where it arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// How much.
    pub bytes: u64,
    /// When the last of it arrived, in picoseconds.
    pub last_ps: u64,
}

impl Flow {
    pub(super) fn arrived(&mut self, at_ps: u64, bytes: u64) {
        self.bytes += bytes;
        self.last_ps = at_ps;
    }

    /// Gigabytes a second since an earlier look, from the last arrival then to the last arrival now: reads come in bursts, one per
    /// round trip, and a burst more or less must not count.
    pub(super) fn gbps_since(&self, earlier: &Self) -> f64 {
        let took_ps = self.last_ps - earlier.last_ps;
        if took_ps == 0 {
            return 0.0;
        }
        // Bytes per nanosecond.
        (self.bytes - earlier.bytes) as f64 / (took_ps as f64 / 1e3)
    }
}

/// What was moved, all GPUs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Host memory to GPUs.
    pub down: Flow,
    /// GPUs to host memory.
    pub up: Flow,
    /// GPUs to GPUs.
    pub peer: Flow,
}
