//! What an argument is: its direction, its type, and for an array the argument that holds its length.

/// One argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument<'a> {
    /// Its name in the generated code.
    pub name: &'a str,
    /// What it is.
    pub kind: Kind<'a>,
}

/// What an argument is. `optional` means that a null pointer is allowed; otherwise it is
/// CUDA_ERROR_INVALID_VALUE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are explained above and below, once")]
pub enum Kind<'a> {
    /// A value.
    In(Type<'a>),
    /// A stream, where 0 is the default stream of the symbol's flavour.
    Stream,
    /// A handle.
    Handle(&'a str),
    /// A place for one result.
    Out { ty: Type<'a>, optional: bool },
    /// A place that is read and written.
    InOut { ty: Type<'a>, optional: bool },
    /// A structure to read.
    Ref { ty: Type<'a>, optional: bool },
    /// An array to read.
    Slice { length: Length<'a>, ty: Type<'a>, optional: bool },
    /// An array to read that must be there, whose length the body works out from other arguments.
    Array(Type<'a>),
    /// An array to fill.
    Outs { length: Length<'a>, ty: Type<'a>, optional: bool },
    /// An array that is read and written.
    InOuts { length: Length<'a>, ty: Type<'a> },
    /// Host bytes that go to the device.
    Upload { length: Length<'a> },
    /// Host bytes that come from the device.
    Download { length: Length<'a> },
    /// A C string.
    Text { optional: bool },
    /// An address that is passed on as it is, null included.
    Opaque,
    /// A module image: an address whose bytes say themselves how many they are.
    Image,
    /// A place for a result whose type another argument decides.
    OutAny,
    /// A value whose type another argument decides.
    InAny,
    /// A function of the program.
    Callback { ty: &'a str, optional: bool },
}

/// Where the length of an array is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length<'a> {
    /// The argument that holds it.
    pub argument: &'a str,
    /// The argument is a pointer to it (`*count`).
    pub behind_pointer: bool,
}

/// A type of C that arguments are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type<'a> {
    /// One of [`SCALARS`]; enums of C are `u32`, addresses `u64`.
    Scalar(&'a str),
    /// One of [`HANDLE_KINDS`], by its first name.
    Handle(&'a str),
    /// One of [`STRUCTS`].
    Struct(&'a str),
}

/// Numbers by their Rust names.
pub const SCALARS: &[&str] = &["u8", "u16", "u32", "u64", "usize", "i32", "f32"];

/// Kinds of handles: the word in the table and the Rust type at the border.
pub const HANDLE_KINDS: &[(&str, &str)] = &[
    ("array", "ArrayHandle"),
    ("ctx", "ContextHandle"),
    ("event", "EventHandle"),
    ("function", "FunctionHandle"),
    ("graph", "GraphHandle"),
    ("graphexec", "GraphExecHandle"),
    ("graphnode", "GraphNodeHandle"),
    ("greenctx", "GreenContextHandle"),
    ("kernel", "KernelHandle"),
    ("library", "LibraryHandle"),
    ("linkstate", "LinkStateHandle"),
    ("memhandle", "MemoryHandle"),
    ("mempool", "PoolHandle"),
    ("mipmap", "MipmapHandle"),
    ("module", "ModuleHandle"),
    ("stream", "StreamHandle"),
    ("surfref", "SurfaceRefHandle"),
    ("texref", "TextureRefHandle"),
    ("userobject", "UserObjectHandle"),
];

/// Structures of `cuda-abi` that rows may name.
pub const STRUCTS: &[&str] = &[
    "CUDA_ARRAY3D_DESCRIPTOR",
    "CUDA_ARRAY3D_DESCRIPTOR_v1",
    "CUDA_ARRAY_DESCRIPTOR",
    "CUDA_ARRAY_DESCRIPTOR_v1",
    "CUDA_ARRAY_MEMORY_REQUIREMENTS",
    "CUDA_ARRAY_SPARSE_PROPERTIES",
    "CUDA_BATCH_MEM_OP_NODE_PARAMS",
    "CUDA_GRAPH_INSTANTIATE_PARAMS",
    "CUDA_HOST_NODE_PARAMS",
    "CUDA_KERNEL_NODE_PARAMS_v1",
    "CUDA_KERNEL_NODE_PARAMS_v2",
    "CUDA_LAUNCH_PARAMS",
    "CUDA_MEMCPY2D",
    "CUDA_MEMCPY3D",
    "CUDA_MEMCPY3D_BATCH_OP",
    "CUDA_MEMCPY3D_PEER",
    "CUDA_MEMSET_NODE_PARAMS",
    "CUDA_MEM_ALLOC_NODE_PARAMS",
    "CUDA_RESOURCE_DESC",
    "CUDA_RESOURCE_VIEW_DESC",
    "CUDA_TEXTURE_DESC",
    "CUctxCreateParams",
    "CUdevResource",
    "CUdevprop",
    "CUexecAffinityParam",
    "CUgraphEdgeData",
    "CUgraphExecUpdateResultInfo",
    "CUgraphNodeParams",
    "CUipcEventHandle",
    "CUipcMemHandle",
    "CUlaunchAttributeValue",
    "CUlaunchConfig",
    "CUmemAccessDesc",
    "CUmemAllocationProp",
    "CUmemLocation",
    "CUmemPoolProps",
    "CUmemPoolPtrExportData",
    "CUmemcpyAttributes",
    "CUstreamBatchMemOpParams",
    "CUtensorMap",
    "CUuuid",
];

/// Function types of the border.
pub(crate) const CALLBACKS: &[&str] =
    &["HostFn", "StreamCallback", "BlockSizeToSharedMemory", "LogsCallback", "NotificationCallback"];

impl<'a> Type<'a> {
    /// The type of this word of the table.
    pub fn from_word(word: &'a str) -> Option<Self> {
        if SCALARS.contains(&word) {
            Some(Self::Scalar(word))
        } else if HANDLE_KINDS.iter().any(|(kind, _)| *kind == word) {
            Some(Self::Handle(word))
        } else if STRUCTS.contains(&word) {
            Some(Self::Struct(word))
        } else {
            None
        }
    }

    /// Its name in generated code.
    pub fn rust_name(self) -> &'a str {
        match self {
            Self::Scalar(name) | Self::Struct(name) => name,
            Self::Handle(kind) => handle_type(kind),
        }
    }
}

/// The Rust type of a kind of handle. Kinds are checked when the table is read.
pub(crate) fn handle_type(kind: &str) -> &'static str {
    HANDLE_KINDS.iter().find(|(word, _)| *word == kind).map_or("UnknownHandle", |(_, name)| name)
}

impl<'a> Kind<'a> {
    /// The argument that holds the length, for arrays.
    pub fn length(&self) -> Option<Length<'a>> {
        match *self {
            Self::Slice { length, .. }
            | Self::Outs { length, .. }
            | Self::InOuts { length, .. }
            | Self::Upload { length }
            | Self::Download { length } => Some(length),
            _ => None,
        }
    }

    /// The Rust type of a handle argument.
    pub fn handle_type(&self) -> Option<&'static str> {
        match self {
            Self::Handle(kind) => Some(handle_type(kind)),
            _ => None,
        }
    }
}
