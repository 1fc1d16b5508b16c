//! What a module load carries, and what comes back with it so that nothing needs to be asked later.

use crate::{
    appended::AppendedPlaces,
    codec::{Blob, Bytes},
    ids::TransferId,
};

wire_enum! {
    /// The image of a module.
    pub enum ImageSource<'a> {
        /// The worker has it under its hash, or says [`cuda_abi::CudaError::NOT_FOUND`] and is then sent it.
        0 Known {}
        /// Here.
        1 Inline { bytes: Bytes<'a>, }
        /// In the lanes.
        2 Pushed { transfer: TransferId, bytes: u64, }
    }
}

wire_struct! {
    /// One `CUjit_option` with a scalar value. Options with buffers (logs) are kept by the client.
    #[derive(Copy, Eq)]
    pub struct JitOption {
        /// `CUjit_option`.
        pub option: u32,
        /// Its value.
        pub value: u64,
    }
}

wire_struct! {
    /// One parameter of a kernel.
    #[derive(Copy, Eq)]
    pub struct ParameterInfo {
        /// Where it starts in the parameter block.
        pub offset: u32,
        /// Its bytes.
        pub bytes: u32,
    }
}

wire_struct! {
    /// A kernel as the load found it.
    pub struct KernelInfo {
        /// Its (mangled) name.
        pub name: String,
        /// Parameters in order.
        pub parameters: Vec<ParameterInfo>,
        /// `(CUfunction_attribute, value)` for every attribute the driver knows.
        pub attributes: Vec<(u32, i32)>,
    }
}

wire_struct! {
    /// A global or constant variable of a module.
    pub struct VariableInfo {
        /// Its (mangled) name.
        pub name: String,
        /// Where it lies in device memory.
        pub address: u64,
        /// Its bytes.
        pub bytes: u64,
    }
}

wire_struct! {
    /// All that a program can ask about a module.
    pub struct ModuleInfo {
        /// Its kernels; a [`crate::KernelRef`] is a place in this list.
        pub kernels: Vec<KernelInfo>,
        /// Its variables that have a name outside.
        pub variables: Vec<VariableInfo>,
        /// The compiler's information log.
        pub info_log: String,
        /// Which of its variables were declared `__managed__`.
        pub managed: AppendedPlaces,
    }
}

wire_struct! {
    /// One input of the linker.
    pub struct LinkInput<'a> {
        /// `CUjitInputType`.
        pub kind: u32,
        /// The name the program gave it, for messages.
        pub name: String,
        /// Its bytes.
        pub bytes: Bytes<'a>,
    }
}

wire_struct! {
    /// What the linker made. On failure `cubin` is empty and `error_log` says why.
    pub struct LinkOutput {
        /// The linked image.
        pub cubin: Blob,
        /// Information log.
        pub info_log: String,
        /// Error log.
        pub error_log: String,
        /// 0, or the error code of the failed link.
        pub status: u32,
    }
}
