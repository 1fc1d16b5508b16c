//! Which frames are sent as they were, and what is done with the others.

use super::{Replay, Treatment};
use crate::{
    calls::{self, Again, ENQUEUE, MODULE_LOAD, READ_BACK},
    frames::{Frame, Unreadable},
    manifest::{Load, tags::COPY_IN},
    mutant::{Mutant, is_planted},
};
use cuda_wire::{Command, HostData, ImageSource, Op, StreamId, TransferId};

impl Replay {
    /// Passes plain frames up to `limit`, within one buffer. If the first frame is not plain, passes it and says what is done
    /// with it.
    pub(super) fn treat_up_to(&mut self, limit: u64) -> Result<Option<Treatment>, Unreadable> {
        let from = self.reader.position();
        loop {
            let is_first = self.reader.position() == from;
            let position = self.reader.position();
            if position >= limit || (!is_first && !self.reader.is_within_segment()) {
                return Ok(None);
            }
            let Some(frame) = self.reader.peek()? else { return Ok(None) };
            let end = frame.end();
            let answer = self.told.get(&frame.call).filter(|_| frame.call != 0);
            let rule = rule(&frame, answer.map(|told| told.status));
            if frame.opcode == READ_BACK && answer.is_some() {
                self.reads.insert(frame.call);
            }
            match rule {
                Again::Run => {}
                _ if !is_first => return Ok(None),
                Again::LeftOut => {
                    let call = frame.call;
                    self.reader.pass(end);
                    // Its mark needs no waiting.
                    self.came.insert(call);
                    return Ok(Some(Treatment::Skip));
                }
                Again::As(opcode) => {
                    let opcode = if is_planted(Mutant::QueryAsQuery) { frame.opcode } else { opcode };
                    self.scratch.clear();
                    self.scratch.extend_from_slice(frame.bytes);
                    self.scratch[4..6].copy_from_slice(&opcode.to_le_bytes());
                    self.reader.pass(end);
                    return Ok(Some(Treatment::Rewritten));
                }
            }
            match self.data_of_next()? {
                Data::Nothing => self.reader.pass(end),
                _ if !is_first => return Ok(None),
                Data::Pushed(transfer) => {
                    self.reader.pass(end);
                    self.pushes.push_back(transfer);
                    return Ok(None);
                }
                Data::Image(load) => {
                    self.reader.pass(end);
                    return Ok(Some(Treatment::Load(load)));
                }
            }
        }
    }

    /// The data that the next frame needs beside its own bytes.
    fn data_of_next(&mut self) -> Result<Data, Unreadable> {
        let Some(frame) = self.reader.peek()? else { return Ok(Data::Nothing) };
        let is_copy_in = frame.opcode == ENQUEUE && frame.body().get(size_of::<StreamId>()) == Some(&COPY_IN);
        if !is_copy_in && frame.opcode != MODULE_LOAD {
            return Ok(Data::Nothing);
        }
        let command = Command::decode(frame.opcode, frame.body()).map_err(|error| frame.unreadable(error))?;
        Ok(match command {
            Command::Enqueue { op: Op::CopyIn { data: HostData::Pushed { transfer }, .. }, .. } => {
                Data::Pushed(transfer)
            }
            Command::ModuleLoad { image: ImageSource::Pushed { transfer, .. }, .. } => Data::Pushed(transfer),
            Command::ModuleLoad { module, context, hash, image: ImageSource::Known {}, options } => {
                let image = self.images.get(&hash).cloned();
                Data::Image(Box::new(Load { call: frame.call, module, context, hash, image, options }))
            }
            _ => Data::Nothing,
        })
    }
}

enum Data {
    Nothing,
    Pushed(TransferId),
    Image(Box<Load>),
}

/// What is done with a frame whose call was answered with `status`, or not at all.
fn rule(frame: &Frame<'_>, status: Option<u32>) -> Again {
    if calls::is_about_the_session(frame.opcode) {
        return Again::LeftOut;
    }
    status.map_or(Again::Run, |status| calls::again(frame.opcode, status))
}
