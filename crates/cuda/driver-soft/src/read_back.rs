//! Reading device memory behind a stream's work.

use crate::{
    line::{Line, Place, Task},
    session::Session,
    sync::{Lock, lock},
    work::Work,
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::PendingRead;
use cuda_wire::{Plane, Shape, StreamId};
use std::sync::Arc;

/// A read that its line will get to, or has got to.
pub(crate) struct Reading {
    line: Arc<Line>,
    /// `None`: it was done at once.
    place: Option<Place>,
    bytes: Arc<Lock<Vec<u8>>>,
}

impl Session {
    /// Puts a read into a stream.
    pub(crate) fn read_back(
        self: &Arc<Self>,
        stream: StreamId,
        source: Plane,
        shape: Shape,
    ) -> CuResult<Reading> {
        let bytes = shape.bytes().ok_or(CudaError::INVALID_VALUE)?;
        if bytes > u64::from(cuda_wire::COMMAND_BYTES_MAX) {
            return Err(CudaError::INVALID_VALUE);
        }
        let source = self.in_memory(source, &shape)?;
        let line = lock(&self.tables).stream(stream)?;
        line.wait_for_room(&self.load);
        let bytes = Arc::new(Lock::new(Vec::new()));
        let work = Work::ReadBack { source, shape, bytes: bytes.clone() };
        let tables = lock(&self.tables);
        line.context.check()?;
        tables.promises.check(&source, &shape)?;
        let after = tables.implicit_order(&line);
        if !after.is_empty() || !line.is_idle() {
            let place = line.push(self, Task { after, work })?;
            return Ok(Reading { line, place: Some(place), bytes });
        }
        drop(tables);
        // Nothing comes before it: its line would only hand it from thread to thread.
        if let Err(error) = work.execute(self, &line) {
            self.fail(&line.context, error);
        }
        if self.is_aborted() {
            return Err(CudaError::DEVICE_UNAVAILABLE);
        }
        Ok(Reading { line, place: None, bytes })
    }
}

impl Reading {
    fn finish(&self, out: &mut Vec<u8>) -> CuResult<()> {
        self.line.context.check()?;
        out.append(&mut lock(&self.bytes));
        Ok(())
    }
}

impl PendingRead for Reading {
    fn poll(&mut self, out: &mut Vec<u8>) -> CuResult<bool> {
        if self.place.as_ref().is_some_and(|place| !place.is_reached()) {
            // Its turn may never come.
            self.line.context.check()?;
            return Ok(false);
        }
        self.finish(out)?;
        Ok(true)
    }

    fn wait(self: Box<Self>, out: &mut Vec<u8>) -> CuResult<()> {
        self.place.as_ref().map_or(Ok(()), Place::wait)?;
        self.finish(out)
    }
}
