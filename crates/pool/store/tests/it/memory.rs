//! The store in memory: the suite, and the faults it can be asked for.

use std::sync::Arc;
use std::time::Duration;

use pool_store::{
    Campaign, Candidacy, Fault, Leadership, Memory, Operation, Outcome, Store, StoreError, Transaction,
};

use crate::conformance::{self, Subject};

#[test]
fn memory_conforms() {
    let memory = Memory::new();
    let client = || -> Arc<dyn Store> { Arc::new(memory.client()) };
    let pass = |time| memory.advance(time);
    conformance::run(&Subject { client: &client, pass: &pass, is_live: false });
}

/// A client whose next commit ends so; everything else works.
fn with_fault(memory: &Memory, fault: Fault) -> Memory {
    let client = memory.client();
    let mut due = Some(fault);
    client.set_hook(move |operation| match operation {
        Operation::Commit(_) => due.take().unwrap_or_default(),
        _ => Fault::None,
    });
    client
}

fn lead(memory: &Memory) -> Leadership {
    let candidacy = Candidacy { name: "m".into(), address: "here".into(), ttl: Duration::from_secs(3) };
    match memory.campaign(&candidacy).unwrap() {
        Campaign::Won(leadership) => leadership,
        Campaign::Led(leader) => panic!("{leader:?}"),
    }
}

fn check(fault: Fault, is_certain: bool, is_there: bool) {
    let memory = Memory::new();
    let client = with_fault(&memory, fault);
    let error = client.commit(&Transaction::new().put("a", "1")).unwrap_err();
    assert_eq!(matches!(error, StoreError::Unavailable { .. }), is_certain, "{fault:?}: {error}");
    assert_eq!(matches!(error, StoreError::Uncertain { .. }), !is_certain, "{fault:?}: {error}");
    assert_eq!(memory.read("a").unwrap().is_some(), is_there, "{fault:?}");
    assert!(client.commit(&Transaction::new().put("b", "1")).unwrap().committed().is_some());
}

#[test]
fn a_commit_fails_before_or_after_it_took_effect() {
    check(Fault::Before, true, false);
    check(Fault::After, false, true);
    check(Fault::Lost, false, false);
    check(Fault::Late, false, false);
}

#[test]
fn a_late_commit_arrives_unless_it_was_fenced_off() {
    for is_fenced in [false, true] {
        let memory = Memory::new();
        let leadership = lead(&memory);
        let client = with_fault(&memory, Fault::Late);
        let transaction = Transaction::new().when(leadership.condition()).put("a", "late");
        assert!(matches!(client.commit(&transaction), Err(StoreError::Uncertain { .. })));
        if is_fenced {
            client.fence(&leadership).unwrap();
        }
        let outcomes = memory.deliver_late();
        assert_eq!(outcomes.len(), 1);
        assert_eq!(matches!(outcomes[0], Outcome::Conflict { .. }), is_fenced);
        assert_eq!(memory.read("a").unwrap().is_some(), !is_fenced);
        assert_eq!(memory.deliver_late(), []);
    }
}

#[test]
fn a_client_that_is_cut_off_loses_its_leadership() {
    let memory = Memory::new();
    let client = memory.client();
    let leadership = lead(&client);
    client.set_hook(|_| Fault::Before);
    assert!(matches!(client.keep_alive(&leadership), Err(StoreError::Unavailable { .. })));
    assert!(matches!(client.read("a"), Err(StoreError::Unavailable { .. })));
    memory.advance(leadership.ttl);
    assert_eq!(memory.leader("m").unwrap(), None);
    client.clear_hook();
    assert!(matches!(client.keep_alive(&leadership), Err(StoreError::LeadershipLost { .. })));
}
