//! The stream a call means.

use super::StreamHandle;
use cuda_abi::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};

/// A stream argument with the default streams told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StreamArg {
    /// The context's legacy default stream, which orders itself against all blocking streams.
    Legacy,
    /// The calling thread's own default stream.
    PerThread,
    /// A stream that the program created.
    Created(StreamHandle),
}

impl StreamArg {
    /// What `stream` means in a symbol where 0 is `default`.
    #[inline]
    pub(crate) const fn new(stream: StreamHandle, default: Self) -> Self {
        match stream.0 {
            0 => default,
            CU_STREAM_LEGACY => Self::Legacy,
            CU_STREAM_PER_THREAD => Self::PerThread,
            _ => Self::Created(stream),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_the_default_stream_of_the_symbol() {
        assert_eq!(StreamArg::new(StreamHandle(0), StreamArg::Legacy), StreamArg::Legacy);
        assert_eq!(StreamArg::new(StreamHandle(0), StreamArg::PerThread), StreamArg::PerThread);
    }

    #[test]
    fn both_default_streams_have_a_handle_in_either_flavour() {
        assert_eq!(StreamArg::new(StreamHandle(1), StreamArg::PerThread), StreamArg::Legacy);
        assert_eq!(StreamArg::new(StreamHandle(2), StreamArg::Legacy), StreamArg::PerThread);
        let created = StreamHandle(0x1000);
        assert_eq!(StreamArg::new(created, StreamArg::Legacy), StreamArg::Created(created));
    }
}
