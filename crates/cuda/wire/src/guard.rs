//! Survival on the wire: the names of images, and the answers of the commands that concern them.

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
