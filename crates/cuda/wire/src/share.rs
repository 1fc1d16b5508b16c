//! What one process of a program hands to another: names of memory and events that a worker keeps for both.
//!
//! ```text
//!   session A: MemoryShare, PhysicalShare, EventShare ─▶ Shared { name, … } ─▶ A's program ─▶ B's program
//!   session B: PhysicalImport, EventImport { name } ─▶ B's worker process asks A's ─▶ Imported { … }
//! ```

wire_struct! {
    /// Names what a session shares. It cannot be guessed, and opens nothing for another lease.
    #[derive(Copy, Eq, Hash)]
    pub struct ShareName {
        /// The worker that keeps it.
        pub worker: u64,
        /// The session that shares it.
        pub session: [u8; 16],
        /// Which of its things.
        pub key: [u8; 16],
    }
}

wire_struct! {
    /// What a session shares from now on.
    #[derive(Copy, Eq)]
    pub struct Shared {
        /// What another session opens it by.
        pub name: ShareName,
        /// Pieces that it lies in, one behind the other. Each is imported by itself.
        pub pieces: u32,
        /// Where it begins in the first piece.
        pub offset: u64,
    }
}

wire_struct! {
    /// A piece of memory of another session.
    #[derive(Copy, Eq)]
    pub struct Imported {
        /// Where the piece begins in the physical memory that was imported.
        pub offset: u64,
        /// Its bytes.
        pub bytes: u64,
        /// The device it is on.
        pub device: u32,
    }
}
