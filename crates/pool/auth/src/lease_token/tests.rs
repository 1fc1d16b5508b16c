use super::*;
use proptest::prelude::*;

fn claims() -> LeaseClaims {
    LeaseClaims {
        lease: "l-0123456789abcdef".into(),
        tenant: "vision".into(),
        box_name: "rack1-a".into(),
        slot: 3,
        epoch: 7,
        memory_bytes: 80 << 30,
        share_milli: 1000,
        class: Class::Dedicated,
        slack_percent: None,
        issued_ms: 1_000,
        expires_ms: 61_000,
        part: None,
    }
}

fn slack(percent: u16) -> LeaseClaims {
    LeaseClaims { class: Class::Online, slack_percent: Some(percent), ..claims() }
}

fn check(token: &str, keys: &[&LeaseKey], slot: u16, now_ms: u64) -> Result<LeaseClaims, LeaseTokenRefusal> {
    let keys: Vec<_> = keys.iter().map(|key| key.public()).collect();
    verify(token, &keys, "rack1-a", slot, now_ms)
}

#[test]
fn a_token_opens_its_slot_until_it_expires() {
    let key = LeaseKey::make();
    let token = sign(&claims(), &key).unwrap();
    assert_eq!(check(token.reveal(), &[&key], 3, 2_000), Ok(claims()));
    assert_eq!(check(token.reveal(), &[&key], 3, 60_999), Ok(claims()));
    assert_eq!(check(token.reveal(), &[&key], 3, 61_000), Err(LeaseTokenRefusal::Expired { late_ms: 0 }));
}

#[test]
fn a_token_opens_nothing_else() {
    let key = LeaseKey::make();
    let token = sign(&claims(), &key).unwrap();
    let elsewhere = LeaseTokenRefusal::Elsewhere { box_name: "rack1-a".into(), slot: 3 };
    assert_eq!(check(token.reveal(), &[&key], 4, 2_000), Err(elsewhere.clone()));
    assert_eq!(verify(token.reveal(), &[key.public()], "rack1-b", 3, 2_000), Err(elsewhere));
}

#[test]
fn a_stranger_s_key_signs_nothing() {
    let (ours, theirs) = (LeaseKey::make(), LeaseKey::make());
    let token = sign(&claims(), &theirs).unwrap();
    assert_eq!(check(token.reveal(), &[&ours], 3, 2_000), Err(LeaseTokenRefusal::UnknownKey));
    // The same claims under our key's name.
    let mut signed = decode(token.reveal()).unwrap();
    signed.key = ours.id();
    assert_eq!(check(&encode(&signed).unwrap(), &[&ours], 3, 2_000), Err(LeaseTokenRefusal::Forged));
}

#[test]
fn keys_are_replaced_while_old_tokens_still_open() {
    let (old, new) = (LeaseKey::make(), LeaseKey::make());
    let (before, after) = (sign(&claims(), &old).unwrap(), sign(&claims(), &new).unwrap());
    for token in [&before, &after] {
        assert_eq!(check(token.reveal(), &[&old, &new], 3, 2_000), Ok(claims()));
    }
    assert_eq!(check(before.reveal(), &[&new], 3, 2_000), Err(LeaseTokenRefusal::UnknownKey));
}

#[test]
fn a_key_is_the_same_after_it_was_kept() {
    let key = LeaseKey::make();
    let again = LeaseKey::from_secret(key.secret()).unwrap();
    assert_eq!(key.public(), again.public());
    assert_eq!(key.public().to_string().parse(), Ok(key.public()));
    assert!(!format!("{key:?}").contains(key.secret().reveal()));
    assert!(LeaseKey::from_secret(&crate::Secret::new("bm90IGEga2V5")).is_err());
}

#[test]
fn claims_that_no_lease_has_are_not_signed() {
    let key = LeaseKey::make();
    let bad = |change: fn(&mut LeaseClaims)| {
        let mut claims = claims();
        change(&mut claims);
        sign(&claims, &key).unwrap_err()
    };
    assert_eq!(bad(|claims| claims.tenant = String::new()), CodecError::Name);
    assert_eq!(bad(|claims| claims.box_name = "a".repeat(64)), CodecError::Name);
    assert_eq!(bad(|claims| claims.lease = "../etc".into()), CodecError::Name);
    assert_eq!(bad(|claims| claims.share_milli = 0), CodecError::Share);
    assert_eq!(bad(|claims| claims.share_milli = 1001), CodecError::Share);
    assert_eq!(bad(|claims| claims.slack_percent = Some(10)), CodecError::Slack);
    assert_eq!(bad(|claims| *claims = slack(0)), CodecError::Slack);
    assert_eq!(bad(|claims| *claims = LeaseClaims { class: Class::Offline, ..slack(10) }), CodecError::Slack);
}

/// The layout is a promise to boxes of other versions. Ed25519 signatures are deterministic, so is the whole token.
#[test]
fn the_layout_stays() {
    let key = LeaseKey::from_secret(&crate::Secret::new(
        "MFECAQEwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9ggSEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=",
    ));
    // The key of test 1 in RFC 8032, section 7.1, as PKCS #8.
    let key = key.unwrap();
    let token = sign(&claims(), &key).unwrap();
    assert_eq!(token.reveal(), include_str!("samples/first.txt").trim_end());
    let token = sign(&LeaseClaims { class: Class::Online, ..claims() }, &key).unwrap();
    assert_eq!(token.reveal(), include_str!("samples/online.txt").trim_end());
    let token = sign(&slack(10), &key).unwrap();
    assert_eq!(token.reveal(), include_str!("samples/slack.txt").trim_end());
}

/// A token of before says nothing of a class: it is a dedicated lease's. One that says it in other words is none.
#[test]
fn a_class_has_one_layout() {
    let key = LeaseKey::make();
    let of = |class| sign(&LeaseClaims { class, ..claims() }, &key).unwrap().reveal().to_owned();
    for (class, prefix) in [(Class::Dedicated, "dxl1."), (Class::Online, "dxl2."), (Class::Offline, "dxl2.")]
    {
        assert!(of(class).starts_with(prefix));
        assert_eq!(check(&of(class), &[&key], 3, 2_000).unwrap().class, class);
    }
    assert_ne!(of(Class::Online), of(Class::Offline));
    // Neither the label nor the byte can be moved from one layout into the other.
    assert!(check(&of(Class::Online).replacen("dxl2", "dxl1", 1), &[&key], 3, 2_000).is_err());
    assert!(check(&of(Class::Dedicated).replacen("dxl1", "dxl2", 1), &[&key], 3, 2_000).is_err());
}

/// A box of before refuses a slack that it does not know, and a token opens nothing once one was taken out of it or put in.
#[test]
fn a_slack_has_a_layout_of_its_own() {
    let key = LeaseKey::make();
    let of = |claims: &LeaseClaims| sign(claims, &key).unwrap().reveal().to_owned();
    let with = of(&slack(10));
    assert!(with.starts_with("dxl3."));
    assert_eq!(check(&with, &[&key], 3, 2_000), Ok(slack(10)));
    let without = of(&LeaseClaims { slack_percent: None, ..slack(10) });
    for (from, to) in [("dxl3", "dxl2"), ("dxl3", "dxl1"), ("dxl2", "dxl3")] {
        for token in [&with, &without].into_iter().filter(|token| token.starts_with(from)) {
            assert!(check(&token.replacen(from, to, 1), &[&key], 3, 2_000).is_err(), "{from} as {to}");
        }
    }
}

prop_compose! {
    fn any_claims()(
        names in ("[a-z0-9.-]{1,63}", "[a-z0-9.-]{1,63}", "[a-z0-9.-]{1,63}"),
        slot: u16, epoch: u64, memory_bytes: u64, share_milli in 1u16..=1000, issued_ms: u64, expires_ms: u64,
        part in prop::option::of("[a-z0-9.-]{1,63}"), class in prop::sample::select(&Class::ALL),
        slack in prop::option::of(1u16..),
    ) -> LeaseClaims {
        let (lease, tenant, box_name) = names;
        let slack_percent = slack.filter(|_| class == Class::Online);
        LeaseClaims {
            lease, tenant, box_name, slot, epoch, memory_bytes, share_milli, class, slack_percent, issued_ms, expires_ms, part,
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(claims in any_claims(), key: [u8; 8], half: [u8; 32]) {
        let mut signature = [0; 64];
        signature[..32].copy_from_slice(&half);
        let signed = SignedClaims { key: LeaseKeyId(key), claims, signature };
        prop_assert_eq!(decode(&encode(&signed).unwrap()), Ok(signed));
    }

    #[test]
    fn what_is_read_is_written_the_same(text in "dxl[123]\\.[A-Za-z0-9_-]{150,300}") {
        if let Ok(signed) = decode(&text) {
            prop_assert_eq!(encode(&signed).unwrap(), text);
        }
    }

    #[test]
    fn one_changed_character_opens_nothing(
        at in 0usize..300, replacement in "[A-Za-z0-9_.-]", class in prop::sample::select(&Class::ALL),
    ) {
        let key = LeaseKey::make();
        let token = sign(&LeaseClaims { class, ..claims() }, &key).unwrap();
        let mut text = token.reveal().to_owned();
        prop_assume!(at < text.len() && text[at..=at] != replacement);
        text.replace_range(at..=at, &replacement);
        prop_assert!(check(&text, &[&key], 3, 2_000).is_err());
    }
}
