//! Executing the manifest gives the same tables as executing the commands it was folded from.

use super::{
    commands::{IMAGES, Sent, program},
    tables::{INVALID, Tables},
};
use crate::{
    Awaited, Difference, Journal, Observation, Step, Verdict,
    mutant::{Mutant, plant},
};
use cuda_wire::*;
use proptest::{
    prelude::*,
    test_runner::{TestError, TestRunner},
};

/// Sends a command and has it answered, if it asks for that.
fn send(journal: &mut Journal, tables: &mut Tables, sent: &Sent, call: u32) {
    if tables.is_name_reused(&sent.command) {
        return;
    }
    journal.sent(sent.frame(call));
    let result = if sent.is_refused { Err(INVALID) } else { tables.execute(&sent.command) };
    if sent.is_call {
        let status = result.err().unwrap_or(0);
        journal.observed(Observation::reply(call, sent.command.opcode(), status, &[]));
    }
}

fn cut(journal: &mut Journal, number: u64) {
    journal.cut_sent(number);
    journal.cut_taken(number);
    journal.cut_safe(number).unwrap();
}

fn execute(tables: &mut Tables, bytes: &[u8]) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let header: CommandHeader = header(&rest[..CommandHeader::BYTES]).unwrap();
        let (frame, after) = rest.split_at(CommandHeader::BYTES + header.bytes as usize);
        let command = Command::decode(header.opcode, &frame[CommandHeader::BYTES..]).unwrap();
        let _ = tables.execute(&command);
        rest = after;
    }
}

/// What a fresh worker has after the whole replay.
fn replayed(journal: &Journal) -> Tables {
    let mut tables = Tables::default();
    let mut replay = journal.replay();
    let mut awaited = None;
    loop {
        match replay.step().unwrap() {
            Step::Send(bytes) => execute(&mut tables, bytes),
            Step::Load(load) => {
                let bytes = load.image.clone().unwrap_or_default();
                execute(&mut tables, &load.frame(ImageSource::Inline { bytes: Bytes(&bytes) }));
            }
            Step::Push(..) | Step::Restore(_) | Step::Returned(_) => {}
            Step::Await(Awaited::Reply { call }) => {
                // What was left out is never waited for, so everything that is waited for succeeds as before.
                assert_ne!(awaited.replace(call), Some(call), "the answer was not taken");
                assert!(matches!(replay.reply_came(call, 0, &[]), Verdict::Same | Verdict::New));
            }
            Step::Await(other) => panic!("{other:?} never happened"),
            Step::Done => return tables,
        }
    }
}

fn holds_at_every_position(program: &[Sent]) -> Result<(), TestCaseError> {
    let mut journal = Journal::new(u64::MAX);
    let mut tables = Tables::default();
    for (index, sent) in program.iter().enumerate() {
        send(&mut journal, &mut tables, sent, index as u32 + 1);
        cut(&mut journal, index as u64);
        prop_assert_eq!(replayed(&journal).view(), tables.view(), "after {}", index);
    }
    Ok(())
}

#[test]
fn defects_of_the_manifest_are_found() {
    let mutants = [
        Mutant::ReleaseForgotten,
        Mutant::NodeNotFolded,
        Mutant::RefusedIsFolded,
        Mutant::MemoryOutlivesContext,
    ];
    for mutant in mutants {
        // Nothing is written down: the defect is known.
        let config = ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() };
        plant(Some(mutant));
        let found = TestRunner::new(config).run(&program(40), |program| holds_at_every_position(&program));
        plant(None);
        assert!(matches!(found, Err(TestError::Fail(..))), "{mutant:?} was not found");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn at_every_position_the_manifest_makes_what_the_commands_made(program in program(40)) {
        holds_at_every_position(&program)?;
    }

    #[test]
    fn a_fold_in_one_piece_is_a_fold_in_many(program in program(60), cuts in prop::collection::vec(0..60usize, 0..4)) {
        let mut journal = Journal::new(u64::MAX);
        let mut tables = Tables::default();
        for (index, sent) in program.iter().enumerate() {
            send(&mut journal, &mut tables, sent, index as u32 + 1);
            if cuts.contains(&index) {
                cut(&mut journal, index as u64);
            }
        }
        // The manifest of the last cut, and behind it the frames.
        prop_assert_eq!(replayed(&journal).view(), tables.view());
    }
}

fn load(module: u32, image: ImageSource<'static>) -> Command<'static> {
    let hash = [1; 32];
    Command::ModuleLoad { module: ModuleId(module), context: ContextId(0), hash, image, options: vec![] }
}

fn described(address: u64, bytes: u64) -> Vec<u8> {
    let variables = vec![VariableInfo { name: "v".to_owned(), address, bytes }];
    ModuleInfo { kernels: vec![], variables, info_log: String::new(), managed: Default::default() }.to_bytes()
}

fn loaded(journal: &mut Journal, command: &Command<'_>, call: u32, status: u32, body: &[u8]) {
    journal.sent(crate::manifest::frame(command, call));
    journal.observed(Observation::reply(call, command.opcode(), status, body));
}

fn loads_of(journal: &Journal) -> Vec<crate::Load> {
    let mut replay = journal.replay();
    let mut loads = Vec::new();
    loop {
        match replay.step().unwrap() {
            Step::Load(load) => loads.push(load.clone()),
            Step::Await(Awaited::Reply { call }) => drop(replay.reply_came(call, 0, &[])),
            Step::Done => return loads,
            _ => {}
        }
    }
}

#[test]
fn the_first_bytes_of_an_image_serve_every_later_load_by_its_hash() {
    let mut journal = Journal::new(u64::MAX);
    let inline = load(1, ImageSource::Inline { bytes: Bytes(IMAGES[1]) });
    loaded(&mut journal, &inline, 1, 0, &described(0x100, 8));
    cut(&mut journal, 1);
    loaded(&mut journal, &Command::ModuleUnload { module: ModuleId(1) }, 2, 0, &[]);
    loaded(&mut journal, &load(2, ImageSource::Known {}), 3, 0, &described(0x100, 8));
    // Once from the frames, once from the manifest.
    assert_eq!(loads_of(&journal).last().unwrap().image.as_deref(), Some(IMAGES[1]));
    cut(&mut journal, 2);
    let loads = loads_of(&journal);
    assert_eq!((loads.len(), loads[0].module, loads[0].image.as_deref()), (1, ModuleId(2), Some(IMAGES[1])));
}

#[test]
fn an_image_that_no_frame_ever_held_is_asked_for() {
    let mut journal = Journal::new(u64::MAX);
    loaded(&mut journal, &load(1, ImageSource::Known {}), 1, 0, &described(0x100, 8));
    cut(&mut journal, 1);
    assert_eq!(loads_of(&journal)[0].image, None);
    assert_eq!(journal.manifest().images().collect::<Vec<_>>(), [[1; 32]]);
    journal.image([1; 32], IMAGES[1].into());
    assert_eq!(loads_of(&journal)[0].image.as_deref(), Some(IMAGES[1]));
}

#[test]
fn a_pushed_image_outlives_its_push() {
    let mut journal = Journal::new(u64::MAX);
    let transfer = TransferId(7);
    journal.pushed(transfer, IMAGES[1].into());
    let pushed = load(1, ImageSource::Pushed { transfer, bytes: IMAGES[1].len() as u64 });
    loaded(&mut journal, &pushed, 1, 0, &described(0x100, 8));
    cut(&mut journal, 1);
    assert_eq!(loads_of(&journal)[0].image.as_deref(), Some(IMAGES[1]));
}

#[test]
fn a_load_that_was_not_found_is_not_loaded() {
    let mut journal = Journal::new(u64::MAX);
    loaded(&mut journal, &load(1, ImageSource::Known {}), 1, 500, b"not here");
    assert!(loads_of(&journal).is_empty(), "a worker that knows the image would load it now");
    cut(&mut journal, 1);
    assert!(loads_of(&journal).is_empty());
}

#[test]
fn a_module_is_compared_but_for_the_addresses_of_its_variables() {
    let mut journal = Journal::new(u64::MAX);
    loaded(&mut journal, &load(1, ImageSource::Known {}), 9, 0, &described(0x100, 8));
    let verdicts = |journal: &Journal, call: u32| {
        let verdict = |body: &[u8]| {
            let mut replay = journal.replay();
            assert!(matches!(replay.step().unwrap(), Step::Load(load) if load.call == call));
            replay.reply_came(call, 0, body)
        };
        assert_eq!(verdict(&described(0x100, 8)), Verdict::Same);
        let Verdict::Moved(moved) = verdict(&described(0x200, 8)) else { panic!("it has moved") };
        assert_eq!((moved[0].name.as_str(), moved[0].from, moved[0].to), ("v", 0x100, 0x200));
        assert_eq!(verdict(&described(0x100, 16)), Verdict::Differs(Difference::Body { call }));
        let failed = journal.replay().reply_came(call, 999, &[]);
        let is_told = matches!(failed, Verdict::Differs(Difference::Status { was: 0, is: 999, .. }));
        assert!(is_told, "{failed:?}");
    };
    // From the frames under its own call, from the manifest under the manifest's first.
    let mut in_frames = journal.replay();
    assert!(matches!(in_frames.step().unwrap(), Step::Load(load) if load.call == 9));
    assert_eq!(in_frames.reply_came(9, 0, &described(0x100, 8)), Verdict::Same);
    cut(&mut journal, 1);
    verdicts(&journal, 1);
}

#[test]
fn a_graph_that_names_what_is_gone_is_made_without_it() {
    let mut journal = Journal::new(u64::MAX);
    let mut tables = Tables::default();
    let event = EventId(3);
    let nodes = vec![GraphNode { op: Op::Record { event, flags: 0 }, after: vec![], enabled: true }];
    let commands = [
        Command::EventCreate { event, context: ContextId(0), flags: 0 },
        Command::GraphInstantiate { exec: ExecId(1), context: ContextId(0), nodes },
        Command::EventDestroy { event },
    ];
    for (index, command) in commands.into_iter().enumerate() {
        let sent = Sent { command, is_call: true, is_refused: false };
        send(&mut journal, &mut tables, &sent, index as u32 + 1);
    }
    cut(&mut journal, 1);
    assert_eq!(journal.manifest().dangling(), [crate::Dangling { exec: ExecId(1), node: 0 }]);
    assert_eq!(replayed(&journal).graphs.len(), 1);
}

#[test]
fn an_unreadable_command_is_refused_in_words() {
    let mut journal = Journal::new(u64::MAX);
    let mut frame = crate::manifest::frame(&Command::MemoryFree { address: 1 }, 0);
    frame[4] = 0xee;
    journal.sent(frame);
    journal.cut_sent(1);
    journal.cut_taken(1);
    let refused = journal.cut_safe(1).unwrap_err().to_string();
    assert!(refused.contains("position 0"), "{refused}");
}
