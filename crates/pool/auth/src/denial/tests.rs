use super::*;
use crate::bearer::{BearerToken, TokenKind};
use proptest::prelude::*;

fn ada() -> Identity {
    Identity::User { tenant: "vision".into(), user: "ada".into() }
}

fn denial(subject: Subject, since_ms: u64) -> Denial {
    Denial {
        subject,
        since_ms,
        until_ms: since_ms + 1000,
        by: "admin".into(),
        reason: String::new(),
        alone: false,
        keeps_leases: false,
        boxes: Vec::new(),
    }
}

fn record(lineage: &[&TokenRecord], created_ms: u64) -> TokenRecord {
    let token = BearerToken::make(TokenKind::User);
    let mut record = TokenRecord::new(&token, ada(), "x", created_ms, created_ms + 500);
    if let Some(parent) = lineage.last() {
        record.lineage = parent.lineage_of_children().unwrap();
    }
    record
}

#[test]
fn subjects_read_as_they_are_written() {
    for text in [
        "token/3f2a90c1d4e5b677",
        "tenant/vision",
        "serial/40ff",
        "lease/l-00c0ffee00c0ffee",
        "spiffe://dxpu/box/rack1-a",
        "spiffe://dxpu/tenant/vision/ada",
    ] {
        assert_eq!(text.parse::<Subject>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "token/",
        "token/3F2A90C1D4E5B677",
        "lease/l-1",
        "serial/",
        "box/a",
        "spiffe://dxpu/x/y",
        "tenant/A",
    ] {
        assert!(text.parse::<Subject>().is_err(), "{text}");
    }
}

#[test]
fn a_revoked_token_takes_along_what_was_made_with_it_unless_it_goes_alone() {
    let parent = record(&[], 1);
    let child = record(&[&parent], 2);
    let grandchild = record(&[&parent, &child], 3);
    let other = record(&[], 4);
    let mut list = DenyList::default();
    list.deny(Denial { alone: true, ..denial(Subject::Token(parent.id.clone()), 10) });
    assert!(list.of_token(&parent).is_some());
    assert!(list.of_token(&child).is_none() && list.of_token(&grandchild).is_none());
    list.deny(denial(Subject::Token(parent.id.clone()), 11));
    assert!(list.of_token(&child).is_some() && list.of_token(&grandchild).is_some());
    assert!(list.of_token(&other).is_none());
    // Never weaker again.
    list.deny(Denial { alone: true, until_ms: 0, ..denial(Subject::Token(parent.id.clone()), 0) });
    assert!(list.of_token(&grandchild).is_some());
    assert_eq!(list.expire(1010, 9), []);
}

#[test]
fn what_is_given_after_a_revocation_counts_even_if_a_clock_is_behind() {
    let mut list = DenyList::default();
    list.deny(denial(Subject::Identity(ada()), 1000));
    assert!(list.of_token(&record(&[], 1000)).is_some());
    let first_ms = list.first_ms_for(&ada(), 10);
    assert!(list.of_token(&record(&[], first_ms)).is_none());
    list.deny(denial(Subject::Tenant("vision".into()), 5000));
    assert!(list.of_token(&record(&[], first_ms)).is_some(), "all of the tenant");
    assert!(list.of_identity(&Identity::Operator("ada".into()), 1).is_none());
}

#[test]
fn a_box_hears_of_its_own_leases_alone() {
    let mut list = DenyList::default();
    let lease = Subject::Lease("l-00c0ffee00c0ffee".into());
    list.deny(Denial { boxes: vec!["a".into()], ..denial(lease.clone(), 1) });
    list.deny(Denial { boxes: vec!["b".into()], ..denial(lease, 2) });
    assert_eq!((list.leases_of("a").count(), list.leases_of("b").count()), (1, 1));
    assert_eq!(list.leases_of("c").count(), 0);
}

proptest! {
    /// Whatever tree of tokens there is and whichever are revoked, in whatever order entries go: no token is accepted in
    /// its lifetime that was revoked or descends from one that was, and no other is refused.
    #[test]
    fn revocation_is_transitive_and_exact(
        parents in prop::collection::vec(prop::option::of(0usize..40), 1..40),
        revoked in prop::collection::vec((0usize..40, 0u64..400), 0..8),
        look_ms in 0u64..700,
    ) {
        let mut records: Vec<TokenRecord> = Vec::new();
        for (number, parent) in parents.iter().enumerate() {
            let parent = parent.and_then(|parent| records.get(parent));
            let mut made = record(&[], number as u64);
            if let Some(lineage) = parent.map(TokenRecord::lineage_of_children) {
                let Some(lineage) = lineage else { continue };
                made.lineage = lineage;
            }
            records.push(made);
        }
        let mut list = DenyList::default();
        let mut gone: Vec<String> = Vec::new();
        for (at, now_ms) in revoked {
            let Some(record) = records.get(at) else { continue };
            // As long as the longest of what it denies.
            let until_ms = records.iter().filter(|r| r.descends_from(&record.id)).map(|r| r.expires_ms).max().unwrap();
            list.deny(Denial { until_ms, ..denial(Subject::Token(record.id.clone()), now_ms) });
            gone.push(record.id.clone());
        }
        list.expire(look_ms, 1000);
        for record in records.iter().filter(|record| look_ms < record.expires_ms) {
            let is_gone = gone.iter().any(|id| record.descends_from(id));
            prop_assert_eq!(list.of_token(record).is_some(), is_gone);
        }
    }
}
