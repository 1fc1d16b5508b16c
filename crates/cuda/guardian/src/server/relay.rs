//! Reads an image at another guardian for a session of this box.
//!
//! ```text
//!   session ── Read, from the other ──▶ this guardian ══ mutual TLS ══▶ the guardian that has the image, and its writer
//! ```
//!
//! Nothing is kept here and nothing is taken over there: the writer goes on. A drill reads so, since the session that it
//! makes is thrown away.

use super::connection::send_list;
use crate::error::{Broken, Refusal};
use crate::peer::{PeerAddress, PeerSecurity};
use crate::protocol::{Answer, Mode, Open, Request};
use crate::stream::Stream;
use crate::talk::Talk;
use snapshot::Block;
use std::time::Duration;

/// Another guardian that says nothing for this long is lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves a reader out of the guardian at `open.from`.
pub(super) fn relay(security: &PeerSecurity, mut stream: Stream, open: &Open) -> Result<(), Broken> {
    let (mut talk, bytes_max, committed) = match reach(security, open) {
        Ok(reached) => reached,
        Err(refusal) => return stream.answer(&Answer::Refused(refusal.to_string())),
    };
    stream.answer(&Answer::Opened { bytes_max, committed })?;
    loop {
        match stream.next(true)?.0 {
            Request::List { number } => match talk.list(number) {
                Ok((entries, ages)) => send_list(&mut stream, &entries, &ages)?,
                Err(broken) => stream.answer(&Answer::Refused(broken.to_string()))?,
            },
            Request::Read { number, blocks } => pass_on(&mut stream, &mut talk, number, &blocks)?,
            Request::Leave => return stream.answer(&Answer::Done),
            _ => return stream.answer(&Answer::Refused("this reader may only list and read".to_owned())),
        }
    }
}

fn reach(security: &PeerSecurity, open: &Open) -> Result<(Talk, u64, u64), Refusal> {
    let refusal = |reason: String| Refusal::Peer { address: open.from.clone(), reason };
    let address: PeerAddress = open.from.parse().map_err(|error| refusal(format!("{error}")))?;
    let mut talk = security.connect(&address, PATIENCE).map_err(|error| refusal(error.to_string()))?;
    let there = Open { mode: Mode::Read, from: String::new(), lease: String::new(), ..open.clone() };
    let (bytes_max, committed) = talk.open(there).map_err(|broken| refusal(broken.to_string()))?;
    Ok((talk, bytes_max, committed))
}

/// Blocks in the order in which they were asked for.
fn pass_on(stream: &mut Stream, talk: &mut Talk, number: u64, blocks: &[Block]) -> Result<(), Broken> {
    talk.ask_for(number, blocks)?;
    for _ in blocks {
        match talk.next_block() {
            Ok((block, bytes)) => stream.answer_with(&Answer::Block(block), &bytes)?,
            Err(Broken::Refused(text)) => stream.answer(&Answer::Refused(text))?,
            Err(broken) => return Err(broken),
        }
    }
    Ok(())
}
