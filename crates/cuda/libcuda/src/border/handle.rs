//! Handles: numbers that the client minted, one type for each kind so that they cannot be mixed up.

#![allow(unsafe_code)]

use super::CType;

macro_rules! handles {
    ($($(#[$meta:meta])* $name:ident;)*) => {$(
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(pub(crate) u64);

        // SAFETY: a transparent u64: every bit pattern is a value.
        unsafe impl CType for $name {}

        #[allow(dead_code)]
        impl $name {
            /// The handle that names nothing.
            pub(crate) const NULL: Self = Self(0);

            /// Whether it is null.
            pub(crate) const fn is_null(self) -> bool {
                self.0 == 0
            }
        }
    )*};
}

handles! {
    /// A `CUarray`.
    ArrayHandle;
    /// A `CUcontext`.
    ContextHandle;
    /// A `CUevent`.
    EventHandle;
    /// A `CUfunction`; a `CUkernel` may stand where one is expected.
    FunctionHandle;
    /// A `CUgraph`.
    GraphHandle;
    /// A `CUgraphExec`.
    GraphExecHandle;
    /// A `CUgraphNode`.
    GraphNodeHandle;
    /// A `CUgreenCtx`.
    GreenContextHandle;
    /// A `CUkernel`.
    KernelHandle;
    /// A `CUlibrary`.
    LibraryHandle;
    /// A `CUlinkState`.
    LinkStateHandle;
    /// A `CUmemGenericAllocationHandle`.
    MemoryHandle;
    /// A `CUmemoryPool`.
    PoolHandle;
    /// A `CUmipmappedArray`.
    MipmapHandle;
    /// A `CUmodule`.
    ModuleHandle;
    /// A `CUstream` as the caller wrote it; bodies mostly get a `StreamArg`.
    StreamHandle;
    /// A `CUsurfref`.
    SurfaceRefHandle;
    /// A `CUtexref`.
    TextureRefHandle;
    /// A `CUuserObject`.
    UserObjectHandle;
}
