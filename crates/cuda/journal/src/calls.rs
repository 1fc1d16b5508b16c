//! What the journal must know about commands by their opcode alone.

use std::ops::RangeInclusive;

pub(crate) const CONTEXT_SYNCHRONIZE: u16 = 0x0004;
pub(crate) const MEMORY_INFO: u16 = 0x0012;
pub(crate) const DEVICE_STATUS: u16 = 0x0018;
pub(crate) const MODULE_LOAD: u16 = 0x0020;
pub(crate) const LINK: u16 = 0x0023;
pub(crate) const ACTIVE_CLUSTERS: u16 = 0x0024;
pub(crate) const LARGEST_CLUSTER: u16 = 0x0025;
pub(crate) const STREAM_SYNCHRONIZE: u16 = 0x0032;
pub(crate) const STREAM_QUERY: u16 = 0x0033;
pub(crate) const ENQUEUE: u16 = 0x0034;
pub(crate) const READ_BACK: u16 = 0x0035;
pub(crate) const EVENT_SYNCHRONIZE: u16 = 0x0042;
pub(crate) const EVENT_QUERY: u16 = 0x0043;
pub(crate) const EVENT_ELAPSED: u16 = 0x0044;
pub(crate) const GOODBYE: u16 = 0x0060;
pub(crate) const SM_RESOURCE: u16 = 0x00a8;
pub(crate) const SM_SPLIT: u16 = 0x00a9;
pub(crate) const TENSOR_MAP_WIDE: u16 = 0x00ad;

/// Commands about cuts and images. They are about one session's protection, so no other session gets them again: the
/// resumer says its own.
pub(crate) const ABOUT_IMAGES: RangeInclusive<u16> = 0x0070..=0x007f;

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: u32 = 600;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: u32 = 2;

/// What a replay does with a command that asked for an answer and got one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// It runs again, and its answer is compared.
    Run,
    /// It is sent with another opcode: a query that said yes becomes the matching wait.
    As(u16),
    /// It is left out: it changed nothing, and its answer depends on the moment or on the machine.
    LeftOut,
}

/// What a replay does with the command `opcode` that was answered with `status`.
pub(crate) fn again(opcode: u16, status: u32) -> Again {
    match opcode {
        MEMORY_INFO | DEVICE_STATUS | LINK | ACTIVE_CLUSTERS | LARGEST_CLUSTER | EVENT_ELAPSED => {
            Again::LeftOut
        }
        SM_RESOURCE | SM_SPLIT | TENSOR_MAP_WIDE => Again::LeftOut,
        STREAM_QUERY | EVENT_QUERY if status == NOT_READY => Again::LeftOut,
        STREAM_QUERY => Again::As(STREAM_SYNCHRONIZE),
        EVENT_QUERY => Again::As(EVENT_SYNCHRONIZE),
        // A wait or a read that failed shows an error of the work before it, which the replay makes again.
        CONTEXT_SYNCHRONIZE | STREAM_SYNCHRONIZE | EVENT_SYNCHRONIZE | READ_BACK => Again::Run,
        // The driver refused it, so it changed nothing. Another GPU might accept it: memory that was not there may be
        // there now, and the client counts its addresses as free.
        _ if status != 0 => Again::LeftOut,
        _ => Again::Run,
    }
}

/// Whether a command is about one session alone and never sent to another.
pub(crate) fn is_about_the_session(opcode: u16) -> bool {
    opcode == GOODBYE || ABOUT_IMAGES.contains(&opcode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_wire::COMMANDS;

    #[test]
    fn opcodes_are_those_of_the_wire() {
        let named = [
            (CONTEXT_SYNCHRONIZE, "ContextSynchronize"),
            (MEMORY_INFO, "MemoryInfo"),
            (DEVICE_STATUS, "DeviceStatus"),
            (MODULE_LOAD, "ModuleLoad"),
            (LINK, "Link"),
            (ACTIVE_CLUSTERS, "ActiveClusters"),
            (LARGEST_CLUSTER, "LargestCluster"),
            (STREAM_SYNCHRONIZE, "StreamSynchronize"),
            (STREAM_QUERY, "StreamQuery"),
            (ENQUEUE, "Enqueue"),
            (READ_BACK, "ReadBack"),
            (EVENT_SYNCHRONIZE, "EventSynchronize"),
            (EVENT_QUERY, "EventQuery"),
            (EVENT_ELAPSED, "EventElapsed"),
            (GOODBYE, "Goodbye"),
            (SM_RESOURCE, "SmResource"),
            (SM_SPLIT, "SmSplit"),
            (TENSOR_MAP_WIDE, "TensorMapWide"),
        ];
        for (opcode, name) in named {
            let row = COMMANDS.iter().find(|row| row.opcode == opcode).expect("the wire has it");
            assert_eq!(row.name, name);
        }
    }

    /// A new command with an answer must be given a rule here: does it run again, or is it left out?
    #[test]
    fn every_command_with_an_answer_of_its_own_has_a_rule() {
        let with_answer: Vec<&str> =
            COMMANDS.iter().filter(|row| row.has_answer).map(|row| row.name).collect();
        // A program that makes textures, surfaces or green contexts gives its journal up before. If it did not, a handle would be
        // compared. So does one that shares memory or events: its names would differ.
        let run = [
            "ModuleLoad",
            "ReadBack",
            "TextureCreate",
            "SurfaceCreate",
            "GreenCreate",
            "MemoryShare",
            "PhysicalShare",
            "EventShare",
            "PhysicalImport",
        ];
        let left_out = [
            "MemoryInfo",
            "DeviceStatus",
            "Link",
            "ActiveClusters",
            "LargestCluster",
            "EventElapsed",
            "SmResource",
            "SmSplit",
            "TensorMapWide",
        ];
        for name in with_answer {
            let row = COMMANDS.iter().find(|row| row.name == name).expect("it is a row");
            if ABOUT_IMAGES.contains(&row.opcode) {
                continue;
            }
            let rule = again(row.opcode, 0);
            assert!(
                (rule == Again::Run && run.contains(&name))
                    || (rule == Again::LeftOut && left_out.contains(&name)),
                "{name} has an answer and no rule for its replay"
            );
        }
    }
}
