//! The committed files: the table, the exports of driver 580, and what its cuGetProcAddress answers.

use crate::parse::TableError;

macro_rules! groups {
    ($($group:literal)*) => {
        /// Group and text of every file of the table, in the order of the coverage page.
        pub const TABLE_FILES: &[(&str, &str)] =
            &[$(($group, include_str!(concat!("../table/", $group, ".tbl")))),*];
    };
}

groups! {
    "init" "device" "context" "module" "library" "linker" "memory" "host_memory" "copy" "memset" "vmm" "pool"
    "stream" "event" "launch" "occupancy" "capture" "graph" "graph_node" "graph_exec" "peer" "managed" "ipc"
    "array_texture" "external" "green" "multicast" "gl_egl_vdpau" "profiler_debug" "legacy" "tensor_map" "misc"
}

/// Every function that libcuda.so.1 of driver 580 exports, one a line, ascending.
pub const EXPORTS: &str = include_str!("../data/exports-580.txt");

/// The C prototypes of CUDA 13.0, `symbol: types`, versioned ones included.
pub(crate) const PROTOTYPES: &str = include_str!("../data/prototypes-13.0.txt");

const PROC_ADDRESS: &str = include_str!("../data/procaddress-580.csv");

/// The exported symbols, ascending.
pub fn exports() -> impl Iterator<Item = &'static str> {
    EXPORTS.lines()
}

/// From `version` on, cuGetProcAddress answers `name` asked with `flags` with `symbol`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcAddressStep {
    /// What the program asks for.
    pub name: &'static str,
    /// 0 default, 1 legacy stream, 2 per-thread default stream.
    pub flags: u8,
    /// The first CUDA version with this answer, 12030 for 12.3.
    pub version: u32,
    /// The exported symbol.
    pub symbol: &'static str,
}

/// All steps, ascending. A line of the file is a name, the flags it holds for, and `version=symbol` steps.
pub fn proc_address_steps() -> Result<Vec<ProcAddressStep>, TableError> {
    let mut steps = Vec::new();
    for (index, content) in PROC_ADDRESS.lines().enumerate() {
        let fail = || TableError {
            group: "procaddress-580.csv".to_owned(),
            line: index + 1,
            what: "expected name,flags,version=symbol …".to_owned(),
        };
        let mut fields = content.splitn(3, ',');
        let (Some(name), Some(flags), Some(answers)) = (fields.next(), fields.next(), fields.next()) else {
            return Err(fail());
        };
        for flag in flags.chars() {
            let flags = flag.to_digit(3).and_then(|flag| u8::try_from(flag).ok()).ok_or_else(fail)?;
            for answer in answers.split(' ') {
                let (version, symbol) = answer.split_once('=').ok_or_else(fail)?;
                let version = version.parse().map_err(|_| fail())?;
                steps.push(ProcAddressStep { name, flags, version, symbol });
            }
        }
    }
    steps.sort_unstable();
    Ok(steps)
}
