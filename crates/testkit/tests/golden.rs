//! Wire compatibility: the bytes that are kept in the corpus are what today's code writes and reads.

use cuda_wire::{COMMANDS, Command, CommandHeader, Handshake, Wire};
use std::collections::BTreeSet;
use testkit::{corpus, fuzz, samples};
use transport::Preamble;

const ADVICE: &str =
    "the wire format changed; if that is meant, raise PROTOCOL_VERSION and replace the file by hand";

fn kept(target: &str, name: &str) -> Vec<u8> {
    let path = corpus::folder(target).join(name);
    std::fs::read(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; `cargo run -p testkit --example write_corpus` writes new ones", path.display())
    })
}

#[test]
fn every_seed_is_written_as_it_is_kept() {
    for seed in samples::golden() {
        assert!(kept(seed.target, &seed.name) == seed.bytes, "{}/{}: {ADVICE}", seed.target, seed.name);
    }
}

#[test]
fn every_kept_command_is_read_as_the_same_value() {
    for (index, (name, command)) in samples::commands().into_iter().enumerate() {
        let frame = kept("command_stream", &format!("{name}.bin"));
        let (header, body) = frame.split_at(CommandHeader::BYTES);
        let header = CommandHeader::from_bytes(header).unwrap();
        assert_eq!((header.check(), header.call), (Ok(()), index as u32 % 3), "{name}: {ADVICE}");
        assert_eq!(header.bytes as usize, body.len(), "{name}: {ADVICE}");
        assert_eq!(Command::decode(header.opcode, body), Ok(command), "{name}: {ADVICE}");
    }
}

#[test]
fn every_command_of_the_table_is_kept() {
    let kept: BTreeSet<u16> = samples::commands().iter().map(|(_, command)| command.opcode()).collect();
    let missing: Vec<_> = COMMANDS.iter().filter(|row| !kept.contains(&row.opcode)).collect();
    assert!(missing.is_empty(), "add them to testkit::samples::commands: {missing:?}");
}

#[test]
fn every_other_kept_frame_is_read_as_the_same_value() {
    for (name, op) in samples::ops() {
        assert_eq!(
            cuda_wire::Op::from_bytes(&kept("op", &format!("{name}.bin"))),
            Ok(op),
            "{name}: {ADVICE}"
        );
    }
    for (name, frame) in samples::handshakes() {
        let bytes = kept("handshake", &format!("{name}.bin"));
        assert_eq!(Handshake::from_body(&bytes[4..]), Ok(frame), "{name}: {ADVICE}");
    }
    for (name, notice) in samples::notices() {
        let bytes = kept("notice", &format!("{name}.bin"));
        assert_eq!(cuda_wire::Notice::from_bytes(&bytes[8..]), Ok(notice), "{name}: {ADVICE}");
    }
    for (name, preamble) in samples::preambles() {
        let bytes = kept("preamble", &format!("{name}.bin"));
        assert_eq!(Preamble::decode(&bytes), Ok(preamble), "{name}: {ADVICE}");
    }
    let bytes = kept("module_info", "two-kernels.bin");
    assert_eq!(cuda_wire::ModuleInfo::from_bytes(&bytes), Ok(samples::module_info()), "{ADVICE}");
    let bytes = kept("device_status", "every-field.bin");
    assert_eq!(cuda_wire::DeviceStatus::from_bytes(&bytes), Ok(samples::device_status()), "{ADVICE}");
}

#[test]
fn targets_files_of_the_fuzzer_and_folders_of_the_corpus_are_the_same_set() {
    let targets: BTreeSet<String> = fuzz::TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let corpus = corpus::folder("");
    let names = |folder: std::path::PathBuf| -> BTreeSet<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let stem = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned()
        };
        entries.map(stem).collect()
    };
    assert_eq!(names(corpus.clone()), targets);
    assert_eq!(names(corpus.join("../fuzz_targets")), targets);
}
