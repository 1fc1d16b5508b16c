//! Names the client gives to what it makes. A worker never chooses one.

use crate::codec::{DecodeError, Reader, Wire};
use core::fmt;

macro_rules! ids {
    ($($(#[$meta:meta])* $name:ident($ty:ty) = $text:literal;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $ty);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($text, "-{}"), self.0)
            }
        }

        impl Wire<'_> for $name {
            #[inline]
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }

            #[inline]
            fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(Self(<$ty>::take(reader)?))
            }
        }
    )*};
}

ids! {
    /// An array, mipmapped or not. Its number is less than [`crate::ARRAYS_MAX`], and free again when it was destroyed.
    ArrayId(u32) = "array";
    /// A context. The primary context of device `n` is `n`, and always exists; created ones follow from 0x100 on.
    ContextId(u32) = "context";
    /// An event.
    EventId(u32) = "event";
    /// An executable graph.
    ExecId(u32) = "exec";
    /// A green context.
    GreenId(u32) = "green";
    /// Physical memory made by cuMemCreate.
    MemoryHandleId(u32) = "memory";
    /// Memory of the program that the worker maps too.
    RegionId(u32) = "region";
    /// A module in one context.
    ModuleId(u32) = "module";
    /// A texture object or a surface object.
    SamplerId(u32) = "sampler";
    /// A stream, the default streams of contexts and threads included.
    StreamId(u32) = "stream";
    /// One movement of bulk bytes between host memory and the device.
    TransferId(u64) = "transfer";
}

wire_struct! {
    /// A kernel: the `index`-th of those that the load of `module` reported.
    #[derive(Copy, Eq, Hash)]
    pub struct KernelRef {
        /// The module that holds it.
        pub module: ModuleId,
        /// Its place in [`crate::ModuleInfo::kernels`].
        pub index: u32,
    }
}

/// Bits of a transfer's name that count; the others are the launch of a graph it belongs to.
const COUNTED_BITS: u32 = 40;

/// The name of a graph's transfer in its launch number `run`: two launches in flight never share a name.
pub fn transfer_of_run(transfer: TransferId, run: u32) -> TransferId {
    TransferId(transfer.0 | u64::from(run & 0xff_ffff) << COUNTED_BITS)
}
