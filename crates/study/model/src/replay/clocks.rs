//! The clocks that a replay moves.

use super::machine::Machine;
use crate::profile::{Awaited, Direction};
use std::collections::{HashMap, VecDeque};

/// When work is done, and when its bytes are in the program's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Point {
    /// The GPU is done.
    pub(super) done_us: f64,
    /// Bytes that were copied to the host without waiting are there.
    pub(super) landed_us: f64,
}

impl Point {
    pub(super) fn later(self, other: Self) -> Self {
        Self { done_us: self.done_us.max(other.done_us), landed_us: self.landed_us.max(other.landed_us) }
    }
}

/// All clocks. Every one of them only moves forward.
#[derive(Clone, Debug, Default)]
pub(super) struct Clocks {
    /// The program.
    pub(super) client_us: f64,
    /// The issuer, which hands work to the GPU: the program, or a worker.
    pub(super) issuer_us: f64,
    /// The command stream towards the worker.
    pub(super) commands_us: f64,
    /// Bulk lanes towards the worker.
    pub(super) uplink_us: f64,
    /// Bulk lanes towards the program.
    pub(super) downlink_us: f64,
    uploads_us: f64,
    downloads_us: f64,
    streams: HashMap<u32, Point>,
    events: HashMap<u32, Point>,
    everything: Point,
    /// When each operation still in the GPU's queue will be done.
    queued: VecDeque<f64>,
    /// Time of the GPU in work.
    pub(super) busy_us: f64,
}

impl Clocks {
    pub(super) fn stream(&self, stream: u32) -> Point {
        self.streams.get(&stream).copied().unwrap_or_default()
    }

    pub(super) fn point(&self, target: Awaited) -> Point {
        match target {
            Awaited::Stream(stream) => self.stream(stream),
            Awaited::Event(event) => self.events.get(&event).copied().unwrap_or_default(),
            Awaited::Everything => self.everything,
        }
    }

    /// The earliest time at which the queue has room for one more operation.
    pub(super) fn room_us(&mut self, depth: usize) -> f64 {
        if self.queued.len() < depth {
            return 0.0;
        }
        self.queued.pop_front().unwrap_or(0.0)
    }

    /// Runs an operation of `gpu_us` on a stream, issued at `issued_us`; its start and its end.
    pub(super) fn run(&mut self, machine: &Machine, stream: u32, issued_us: f64, gpu_us: f64) -> (f64, f64) {
        let before = self.stream(stream).done_us;
        let start = (before + machine.gap_us).max(issued_us + machine.start_us);
        self.ran(stream, start, start + gpu_us)
    }

    /// A filler kernel, whose length includes the pause before it.
    pub(super) fn fill(&mut self, machine: &Machine, stream: u32, issued_us: f64, length_us: f64) {
        let start = self.stream(stream).done_us.max(issued_us + machine.start_us);
        self.ran(stream, start, start + length_us);
    }

    /// The same on a copy engine, which does one copy at a time in each direction. The copy cannot end before `not_before_us`.
    pub(super) fn copy(
        &mut self,
        machine: &Machine,
        stream: u32,
        direction: Direction,
        issued_us: f64,
        gpu_us: f64,
        not_before_us: f64,
    ) -> (f64, f64) {
        let before = self.stream(stream).done_us;
        let engine = match direction {
            Direction::HostToDevice => self.uploads_us,
            Direction::DeviceToHost => self.downloads_us,
            Direction::DeviceToDevice => 0.0,
        };
        let start = (before + machine.gap_us).max(issued_us + machine.start_us).max(engine);
        let end = (start + gpu_us).max(not_before_us);
        match direction {
            Direction::HostToDevice => self.uploads_us = end,
            Direction::DeviceToHost => self.downloads_us = end,
            Direction::DeviceToDevice => {}
        }
        self.ran(stream, start, end)
    }

    fn ran(&mut self, stream: u32, start: f64, end: f64) -> (f64, f64) {
        let point = self.streams.entry(stream).or_default();
        point.done_us = end;
        self.everything.done_us = self.everything.done_us.max(end);
        self.queued.push_back(end);
        self.busy_us += end - start;
        (start, end)
    }

    /// Bytes of a stream reach the program's memory.
    pub(super) fn landed(&mut self, stream: u32, at_us: f64) {
        let point = self.streams.entry(stream).or_default();
        point.landed_us = point.landed_us.max(at_us);
        self.everything.landed_us = self.everything.landed_us.max(at_us);
    }

    /// An event marks where a stream is, not before the mark itself was issued.
    pub(super) fn mark(&mut self, stream: u32, event: u32, issued_us: f64) {
        let mut point = self.stream(stream);
        point.done_us = point.done_us.max(issued_us);
        self.events.insert(event, point);
    }

    /// A stream goes on only after an event.
    pub(super) fn join(&mut self, stream: u32, event: u32) {
        let after = self.events.get(&event).copied().unwrap_or_default();
        let joined = self.stream(stream).later(after);
        self.streams.insert(stream, joined);
    }

    /// When everything is over.
    pub(super) fn end_us(&self) -> f64 {
        self.client_us.max(self.everything.done_us).max(self.everything.landed_us)
    }
}
