//! Survival on the wire: the names of images, and the answers of the commands that concern them.

/// The incarnation of a protected program's first session. A later one is a session that takes over, and begins with a replay.
pub const FIRST_INCARNATION: u64 = 1;

/// The name of the call that ends a replay; the program's calls never have it. What comes after it is the program's own.
pub const FENCE_CALL: u32 = u32::MAX;

wire_struct! {
    /// The name of an image. The client draws it, so that it means nothing to anybody without the image's secret.
    #[derive(Copy, Eq, Hash)]
    pub struct ImageName {
        /// Random.
        pub bytes: [u8; 16],
    }
}

wire_struct! {
    /// What protection a worker gives: the answer to `Guard`.
    #[derive(Eq)]
    pub struct GuardInfo {
        /// Bytes that the image may have.
        pub bytes_max: u64,
        /// The driver's build. A session of another build is no place to resume.
        pub driver_build: String,
        /// Where other workers find this worker's guardian; empty if they cannot reach it.
        pub guardian: String,
        /// The guardian of another box that gets a second copy of each cut; empty if there is none.
        pub copy_at: String,
    }
}

wire_struct! {
    /// What came back from an image: the answer to `ImageRestore`.
    #[derive(Copy, Eq)]
    pub struct ImageRestored {
        /// Blocks.
        pub blocks: u64,
        /// Their bytes.
        pub bytes: u64,
        /// Microseconds that it took.
        pub took_us: u64,
    }
}
