//! A helper of a writer: one more connection that brings blocks of the delta.
//!
//! One connection brings about a gigabyte a second, and a GPU's bus fifty. The writer begins a delta, helpers join it, and
//! each says that its blocks are in (`State`) before the writer commits. A block that a helper loses on the way is missing in
//! the table, whose seal is another one then: the commit is refused.

use super::Shared;
use super::connection::{empty, one_way, outcome, state_answer};
use super::delta::Delta;
use crate::error::{Broken, Refusal};
use crate::protocol::{Answer, Open, Request};
use crate::stream::Stream;

/// Serves a helper until it goes.
pub(super) fn help(shared: &Shared, mut stream: Stream, open: &Open) -> Result<(), Broken> {
    let opened = shared.shelf.open_to_help(open).and_then(|writer| Ok((writer.state()?, writer)));
    let (state, writer) = match opened {
        Ok(opened) => opened,
        Err(refusal) => return stream.answer(&Answer::Refused(refusal.to_string())),
    };
    let (bytes_max, committed) = (shared.shelf.image_bytes_max(), state.committed);
    stream.answer(&Answer::Opened { bytes_max, committed })?;
    let mut delta = Delta::default();
    loop {
        let (request, block) = stream.next(true)?;
        let answer = match request {
            Request::Begin { number, .. } => delta.join(&writer, number).map(|()| Answer::Done),
            Request::Put(entry) => {
                one_way(&mut stream, &mut delta, |delta| {
                    delta.put(&writer, entry, block.unwrap_or_else(empty))
                })?;
                continue;
            }
            Request::State => writer.state().map(state_answer),
            Request::Leave => return stream.answer(&Answer::Done),
            _ => Err(Refusal::OutOfPlace("a helper may only bring blocks")),
        };
        stream.answer(&outcome(answer))?;
    }
}
