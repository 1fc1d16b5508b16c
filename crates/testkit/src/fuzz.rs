//! What every decoder promises about bytes from strangers, as functions that a fuzzer calls.
//!
//! A target must not panic, hang or take memory out of proportion, whatever the bytes. Where there is an encoder, what
//! was decoded is encoded again and must be the same bytes: no two encodings mean the same, nothing is lost. The
//! fuzzer (`fuzz/`) and the replay of its corpus (`tests/fuzz_replay`) run the same functions.

mod connection;
mod device;
mod devices;
mod gpu_function;
mod image;
mod pcie;
mod text;
mod tokens;
mod wire;

pub use connection::{address, fingerprint, preamble};
pub use device::soft_link;
pub use devices::{pcie_from_box, pcie_from_host, vfio_message, vfio_session};
pub use gpu_function::gpu_function;
pub use image::{elf_length, fatbin, fatbin_entry, image_length};
pub use pcie::{fabric_datagram, fabric_link, tlp};
pub use text::{ptx_load, ptx_run};
pub use tokens::{identity, lease_token};
pub use wire::{
    chunk, command_body, command_stream, device_status, graph_node, handshake, link_output, module_info,
    notice, op, reply,
};

/// One target.
pub type Target = fn(&[u8]);

/// Every target under its name, which is also the name of its corpus.
pub const TARGETS: &[(&str, Target)] = &[
    ("address", address),
    ("chunk", chunk),
    ("command_body", command_body),
    ("command_stream", command_stream),
    ("device_status", device_status),
    ("elf_length", elf_length),
    ("fabric_datagram", fabric_datagram),
    ("fabric_link", fabric_link),
    ("fatbin", fatbin),
    ("fatbin_entry", fatbin_entry),
    ("fingerprint", fingerprint),
    ("gpu_function", gpu_function),
    ("graph_node", graph_node),
    ("handshake", handshake),
    ("identity", identity),
    ("image_length", image_length),
    ("lease_token", lease_token),
    ("link_output", link_output),
    ("module_info", module_info),
    ("notice", notice),
    ("op", op),
    ("pcie_from_box", pcie_from_box),
    ("pcie_from_host", pcie_from_host),
    ("preamble", preamble),
    ("ptx_load", ptx_load),
    ("ptx_run", ptx_run),
    ("reply", reply),
    ("soft_link", soft_link),
    ("tlp", tlp),
    ("vfio_message", vfio_message),
    ("vfio_session", vfio_session),
];

/// The target of this name.
pub fn find(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, target)| *target)
}
