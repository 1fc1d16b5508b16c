//! Images that are being linked.

use cuda_wire::JitOption;

/// A `CUlinkState`: inputs gather here until the worker links them.
#[derive(Default)]
pub(crate) struct Linker {
    /// Kind (`CUjitInputType`), name and bytes of each input.
    pub(crate) inputs: Vec<(u32, String, Vec<u8>)>,
    /// Options of cuLinkCreate that travel.
    pub(crate) options: Vec<JitOption>,
    /// The keys of all options of cuLinkCreate.
    pub(crate) keys: Vec<u32>,
    /// Where their values are. CUDA has the program keep them: logs are written there at the end.
    pub(crate) values_at: u64,
    /// What was linked: the program reads it until it destroys the state.
    pub(crate) image: Option<Vec<u8>>,
}
