//! How much of everything there may be. The numbers are Lambda's own where it has one.

/// The payload of a synchronous invocation, and of any answer.
pub const SYNC_PAYLOAD_BYTES_MAX: usize = 6 << 20;
/// The payload of an asynchronous one: it is kept in the store.
pub const ASYNC_PAYLOAD_BYTES_MAX: usize = 256 << 10;
/// A zip file that is uploaded with a request.
pub const CODE_BYTES_MAX: usize = 50 << 20;
/// The same, unpacked.
pub const UNPACKED_BYTES_MAX: u64 = 250 << 20;
/// Files in one zip file: each costs an inode of the runner.
pub const FILES_MAX: usize = 20_000;
/// All names and values of a function's environment together.
pub const ENVIRONMENT_BYTES_MAX: usize = 4096;
/// A quarter of an hour, as Lambda.
pub const TIMEOUT_S_MAX: u32 = 900;
/// The least memory of an instance; below it Python does not start.
pub const MEMORY_MB_MIN: u32 = 128;
/// The most.
pub const MEMORY_MB_MAX: u32 = 10_240;
/// How many functions an invocation goes through by destinations, as Lambda's own detection of loops.
pub const HOPS_MAX: u8 = 16;
/// How often an asynchronous invocation that failed is tried again.
pub const RETRIES_MAX: u8 = 2;
