//! Golden values of everything that travels, and hostile inputs.
//!
//! The bytes of the golden values are kept in `fuzz/corpus` and are the wire format: a test checks that today's encoder
//! still writes them and today's decoder still reads them. `cargo run -p testkit --example write_corpus` writes files
//! that are missing and never changes one that is there.

mod bulk;
mod hostile;
mod pcie;
mod wire;

pub use bulk::bulk;
pub use hostile::hostile;
pub use pcie::pcie;
pub use wire::{commands, device_status, handshakes, module_info, notices, ops, preambles, replies};

use cuda_wire::{ChunkHeader, Command, LinkOutput, TransferId, Wire, begin_command, finish_command};

/// A file of the corpus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed {
    /// Which target it is for.
    pub target: &'static str,
    /// Its file name.
    pub name: String,
    /// What is in it.
    pub bytes: Vec<u8>,
}

impl Seed {
    fn new(target: &'static str, name: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        Self { target, name: name.into(), bytes: bytes.into() }
    }
}

/// A whole command frame.
pub fn command_frame(command: &Command<'_>, call: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    let start = begin_command(&mut frame, command.opcode(), call);
    command.put_body(&mut frame);
    finish_command(&mut frame, start);
    frame
}

/// The golden seeds: exactly what today's encoders write.
pub fn golden() -> Vec<Seed> {
    let mut seeds = Vec::new();
    let mut session = Vec::new();
    for (index, (name, command)) in commands().iter().enumerate() {
        let frame = command_frame(command, index as u32 % 3);
        let mut body = command.opcode().to_le_bytes().to_vec();
        command.put_body(&mut body);
        session.extend_from_slice(&frame);
        seeds.push(Seed::new("command_stream", format!("{name}.bin"), frame));
        seeds.push(Seed::new("command_body", format!("{name}.bin"), body));
    }
    seeds.push(Seed::new("command_stream", "every-command.bin", session));
    for (name, op) in ops() {
        let node = cuda_wire::GraphNode { op: op.clone(), after: vec![0, 1, 5], enabled: true };
        seeds.push(Seed::new("op", format!("{name}.bin"), op.to_bytes()));
        seeds.push(Seed::new("graph_node", format!("{name}.bin"), node.to_bytes()));
    }
    seeds.extend(
        notices().into_iter().map(|(name, it)| Seed::new("notice", format!("{name}.bin"), it.to_frame())),
    );
    let shakes = handshakes();
    seeds.extend(
        shakes.into_iter().map(|(name, it)| Seed::new("handshake", format!("{name}.bin"), it.to_frame())),
    );
    let preambles = preambles();
    seeds.extend(
        preambles.into_iter().map(|(name, it)| Seed::new("preamble", format!("{name}.bin"), it.encode())),
    );
    seeds.extend(replies().into_iter().map(|(name, bytes)| Seed::new("reply", format!("{name}.bin"), bytes)));
    seeds.push(Seed::new("module_info", "two-kernels.bin", module_info().to_bytes()));
    seeds.push(Seed::new("device_status", "every-field.bin", device_status().to_bytes()));
    seeds.push(Seed::new("device_status", "least.bin", cuda_wire::DeviceStatus::default().to_bytes()));
    seeds.push(Seed::new("link_output", "made.bin", link_output(0).to_bytes()));
    seeds.push(Seed::new("link_output", "failed.bin", link_output(209).to_bytes()));
    let chunk =
        ChunkHeader { transfer: TransferId(0x0102_0304_0506), offset: 1 << 20, bytes: 4096, reserved: 0 };
    seeds.push(Seed::new("chunk", "middle.bin", chunk.to_bytes()));
    seeds.extend(pcie());
    seeds
}

/// What a link reports, good or bad.
pub fn link_output(status: u32) -> LinkOutput {
    let cubin = if status == 0 { b"\x7fELF\x02\x01".to_vec() } else { Vec::new() };
    let error_log = if status == 0 { "" } else { "input: `helper` is not defined" };
    LinkOutput { cubin: cuda_wire::Blob(cubin), info_log: "info".into(), error_log: error_log.into(), status }
}
