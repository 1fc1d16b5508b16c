use super::*;
use crate::{FromProgram, Place, State, ToProgram, What};
use std::io::BufReader;

fn place() -> Place {
    Place {
        address: "tls:gpu-box:7400".to_owned(),
        name: "gpu-box".to_owned(),
        token_file: "/run/dxpu/token".to_owned(),
        ca_file: Some("/etc/dxpu/ca.pem".to_owned()),
        fingerprint: None,
        guardian: "tcp:gpu-box:7401".to_owned(),
    }
}

fn all_from_program() -> Vec<FromProgram> {
    let worker = || "tcp:127.0.0.1:7400".to_owned();
    vec![
        FromProgram::Attached { worker: worker(), pid: 7, image: "00ff".to_owned() },
        FromProgram::Lost { worker: worker(), why: "a \"quote\"\nand a line".to_owned(), is_device: true },
        FromProgram::Resumed { worker: worker(), gap_ms: 12, replayed_bytes: u64::MAX },
        FromProgram::Moved { worker: worker() },
        FromProgram::Refused { what: What::Suspend, why: "why".to_owned() },
        FromProgram::Parked { image_bytes: 1 << 40 },
        FromProgram::Unpark {},
        FromProgram::Protection {
            state: State::Starting,
            why: String::new(),
            cut: 3,
            level: 2,
            safe_age_ms: 4,
            live_bytes: 5,
            journal_bytes: 6,
            pause_us: 7,
            predicted_ms: 8,
        },
        FromProgram::Drilled { took_ms: 9, difference: None },
    ]
}

fn all_to_program() -> Vec<ToProgram> {
    vec![
        ToProgram::Place { place: place() },
        ToProgram::Nowhere { why: "no GPU is free".to_owned() },
        ToProgram::Wait {},
        ToProgram::Move { place: place() },
        ToProgram::Suspend {},
        ToProgram::Drill { place: Place::default() },
    ]
}

#[test]
fn every_word_comes_through_a_stream_of_lines() {
    let mut stream = Vec::new();
    all_from_program().iter().for_each(|word| write_line(&mut stream, word).unwrap());
    let mut reader = BufReader::with_capacity(3, stream.as_slice());
    for word in all_from_program() {
        assert_eq!(read_line::<FromProgram>(&mut reader).unwrap(), Some(word));
    }
    assert!(read_line::<FromProgram>(&mut reader).unwrap().is_none());
    for word in all_to_program() {
        assert_eq!(decode::<ToProgram>(&encode(&word).unwrap()).unwrap(), word);
    }
}

/// Both sides are built from this crate, but not always from the same version of it: the texts are the interface.
#[test]
fn the_texts_are_those_of_the_agreement() {
    let text = |word: &FromProgram| String::from_utf8(encode(word).unwrap()).unwrap();
    assert_eq!(text(&FromProgram::Unpark {}), "{\"kind\":\"unpark\"}\n");
    assert_eq!(
        text(&FromProgram::Refused { what: What::Move, why: "w".to_owned() }),
        "{\"kind\":\"refused\",\"what\":\"move\",\"why\":\"w\"}\n"
    );
    let told = decode::<ToProgram>(br#"{"kind":"place","place":{"address":"unix:/w"}}"#).unwrap();
    let ToProgram::Place { place } = told else { panic!("another word: {told:?}") };
    assert_eq!(place, Place { address: "unix:/w".to_owned(), ..Place::default() });
}

#[test]
fn a_line_that_is_too_long_is_refused_on_both_sides() {
    let why = |bytes: usize| ToProgram::Nowhere { why: "x".repeat(bytes) };
    let frame = encode(&why(0)).unwrap().len();
    let longest = why(LINE_BYTES_MAX - frame);
    let line = encode(&longest).unwrap();
    assert_eq!(line.len(), LINE_BYTES_MAX);
    assert_eq!(read_line::<ToProgram>(&mut line.as_slice()).unwrap(), Some(longest));
    assert!(matches!(encode(&why(LINE_BYTES_MAX - frame + 1)), Err(LineError::TooLong)));
    // An endless line is refused at the bound, not gathered.
    let mut endless = BufReader::new(io::repeat(b'x'));
    assert!(matches!(read_line::<ToProgram>(&mut endless), Err(LineError::TooLong)));
}

#[test]
fn torn_and_foreign_lines_are_told_apart_from_the_end() {
    assert!(matches!(read_line::<ToProgram>(&mut &b"{\"kind\":\"susp"[..]), Err(LineError::Torn)));
    assert!(matches!(
        read_line::<ToProgram>(&mut &b"{\"kind\":\"dance\"}\n"[..]),
        Err(LineError::Unknown(_))
    ));
    assert!(matches!(read_line::<ToProgram>(&mut &b"\n"[..]), Err(LineError::Unknown(_))));
    assert!(read_line::<ToProgram>(&mut &b""[..]).unwrap().is_none());
}
