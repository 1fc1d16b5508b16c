//! One record after the other, over the clocks.

use super::charges::{Charges, Term};
use super::clocks::Clocks;
use super::machine::{Habits, Machine};
use super::plane::Plane;
use crate::profile::{Action, Awaited, Direction, Profile, Record};
use std::collections::VecDeque;

/// What a replay came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// How long the program took.
    pub wall_us: f64,
    /// Time of the GPU in work, streams added up.
    pub busy_us: f64,
    /// Time that the program spent waiting for answers.
    pub waited_us: f64,
}

/// Replays `profile` on `plane`.
pub fn replay(profile: &Profile, habits: &Habits, machine: &Machine, plane: &Plane) -> Outcome {
    run(profile, habits, machine, Charges::of(plane, habits, None))
}

/// The same with one term waived.
pub fn replay_without(
    profile: &Profile,
    habits: &Habits,
    machine: &Machine,
    plane: &Plane,
    waived: Term,
) -> Outcome {
    run(profile, habits, machine, Charges::of(plane, habits, Some(waived)))
}

fn run(profile: &Profile, habits: &Habits, machine: &Machine, charges: Charges) -> Outcome {
    let mut engine = Engine {
        habits,
        machine,
        charges,
        clocks: Clocks::default(),
        on_the_way: VecDeque::new(),
        answered: None,
        known_done_us: 0.0,
        waited_us: 0.0,
    };
    let mut returned_us = 0.0;
    for record in &profile.records {
        let thinking_us = (record.at_us - returned_us).max(0.0);
        returned_us = record.returned_us().max(returned_us);
        engine.step(record, thinking_us);
    }
    engine.clocks.client_us += (profile.wall_us - returned_us).max(0.0);
    Outcome { wall_us: engine.clocks.end_us(), busy_us: engine.clocks.busy_us, waited_us: engine.waited_us }
}

struct Engine<'a> {
    habits: &'a Habits,
    machine: &'a Machine,
    charges: Charges,
    clocks: Clocks,
    /// When each command that is still on the way will be issued.
    on_the_way: VecDeque<f64>,
    /// What a poll has just found done: further polls of the same loop did not happen here.
    answered: Option<Awaited>,
    /// The program was told that what ended up to here has ended; it need not ask again.
    known_done_us: f64,
    waited_us: f64,
}

impl Engine<'_> {
    fn step(&mut self, record: &Record, thinking_us: f64) {
        if let Action::Query { target, done } = record.action {
            if self.answered == Some(target) {
                return;
            }
            self.clocks.client_us += thinking_us;
            self.query(record.call_us, target, done);
            return;
        }
        self.answered = None;
        self.clocks.client_us += thinking_us;
        let call_us = record.call_us;
        let own_us = self.habits.own_part_us(call_us);
        match record.action {
            Action::Launch { stream, gpu_us, .. } | Action::Memset { stream, gpu_us, .. } => {
                if let Some(filler_us) = self.charges.filler_us {
                    let issued = self.issue_operation(self.charges.filler_host_us, 0.0);
                    self.clocks.fill(self.machine, stream, issued, filler_us);
                }
                let issued = self.issue_operation(own_us, 0.0);
                // The launching thread is held up while the GPU is, not before: a program that waits for each kernel
                // loses once.
                self.clocks.client_us += self.charges.kernel_host_us;
                self.clocks.run(self.machine, stream, issued, gpu_us + self.charges.kernel_gpu_us);
            }
            Action::Copy { stream, direction, bytes, pinned, waits, gpu_us } => {
                let copy = Transfer { stream, bytes, pinned, waits, gpu_us };
                match direction {
                    Direction::HostToDevice => self.upload(call_us, copy),
                    Direction::DeviceToHost => self.download(call_us, copy),
                    Direction::DeviceToDevice => {
                        let issued = self.issue_operation(call_us, 0.0);
                        self.clocks.copy(self.machine, stream, direction, issued, gpu_us, 0.0);
                    }
                }
            }
            Action::RecordEvent { stream, event } => {
                let issued = self.issue(own_us, 0.0);
                self.clocks.mark(stream, event, issued);
            }
            Action::StreamWait { stream, event } => {
                self.issue(own_us, 0.0);
                self.clocks.join(stream, event);
            }
            Action::Wait { target } => self.wait(call_us, target),
            Action::Local { calls } => {
                let each = self.charges.local_call_us;
                self.clocks.client_us += each.map_or(call_us, |each| each * f64::from(calls));
            }
            Action::Other { awaited } => self.other(call_us, awaited),
            Action::Query { .. } | Action::Step => {}
        }
    }

    /// The program makes a call that needs no answer, with `inline_bytes` of data in it; when the GPU's driver gets it.
    fn issue(&mut self, native_us: f64, inline_bytes: f64) -> f64 {
        self.clocks.client_us += self.charges.call_us.unwrap_or(native_us);
        if !self.charges.is_remote {
            self.clocks.issuer_us = self.clocks.client_us;
            return self.clocks.issuer_us;
        }
        if self.on_the_way.len() >= self.charges.window_calls
            && let Some(oldest) = self.on_the_way.pop_front()
        {
            self.clocks.client_us = self.clocks.client_us.max(oldest);
        }
        let sent = self.clocks.commands_us.max(self.clocks.client_us)
            + self.charges.command_us
            + inline_bytes * self.charges.uplink_us_per_byte;
        self.clocks.commands_us = sent;
        let arrived = sent + self.charges.there_us;
        self.clocks.issuer_us = self.clocks.issuer_us.max(arrived) + self.charges.dispatch_us;
        self.on_the_way.push_back(self.clocks.issuer_us);
        self.clocks.issuer_us
    }

    /// The same for work that takes a place in the GPU's queue.
    fn issue_operation(&mut self, native_us: f64, inline_bytes: f64) -> f64 {
        self.issue(native_us, inline_bytes);
        let room = self.clocks.room_us(self.machine.queue_depth);
        self.clocks.issuer_us = self.clocks.issuer_us.max(room);
        if !self.charges.is_remote {
            self.clocks.client_us = self.clocks.client_us.max(room);
        }
        self.clocks.issuer_us
    }

    fn upload(&mut self, call_us: f64, copy: Transfer) {
        self.clocks.client_us += self.charges.filler_host_us;
        let bytes_us = copy.bytes as f64 * self.charges.upload_us_per_byte;
        let engine_us = if self.charges.upload_waits_in_rate {
            (copy.gpu_us + self.charges.upload_wait_us).max(bytes_us)
        } else {
            copy.gpu_us.max(bytes_us) + self.charges.upload_wait_us
        };
        let is_inline = copy.bytes <= self.charges.inline_bytes;
        let own_us = copy.own_part_us(call_us, self.habits);
        let inline_bytes = if is_inline { copy.bytes as f64 } else { 0.0 };
        let (mut taken_us, mut arrived_us) = (0.0, 0.0);
        if self.charges.is_remote && !is_inline {
            let bytes_us = copy.bytes as f64 * self.charges.uplink_us_per_byte;
            taken_us = self.clocks.uplink_us.max(self.clocks.client_us) + bytes_us;
            self.clocks.uplink_us = taken_us;
            arrived_us = taken_us + self.charges.there_us + self.last_piece(copy.bytes) * copy.gpu_us;
        }
        let issued = self.issue_operation(own_us, inline_bytes);
        let way = Direction::HostToDevice;
        let (_, end) = self.clocks.copy(self.machine, copy.stream, way, issued, engine_us, arrived_us);
        if copy.waits {
            self.told(end + self.machine.wait_return_us + self.charges.wait_back_us);
        } else if !copy.pinned {
            // Pageable bytes are taken before the call returns: natively within the recorded call, remotely when they are out.
            self.told(taken_us);
        }
    }

    fn download(&mut self, call_us: f64, copy: Transfer) {
        self.clocks.client_us += self.charges.filler_host_us;
        let engine_us = (copy.gpu_us * self.charges.download_factor)
            .max(copy.bytes as f64 * self.charges.download_us_per_byte)
            + self.charges.download_wait_us;
        let issued = self.issue_operation(copy.own_part_us(call_us, self.habits), 0.0);
        let way = Direction::DeviceToHost;
        let (start, end) = self.clocks.copy(self.machine, copy.stream, way, issued, engine_us, 0.0);
        let mut landed = end;
        if self.charges.is_remote {
            let first_piece = start + engine_us * self.last_piece(copy.bytes);
            let bytes_us = copy.bytes as f64 * self.charges.downlink_us_per_byte;
            self.clocks.downlink_us = self.clocks.downlink_us.max(first_piece) + bytes_us;
            landed = self.clocks.downlink_us.max(end) + self.charges.download_back_us;
        }
        self.clocks.landed(copy.stream, landed);
        if copy.waits {
            self.told(landed + self.machine.wait_return_us);
        }
    }

    /// The part of a transfer that is one piece: what cannot overlap with the rest.
    fn last_piece(&self, bytes: u64) -> f64 {
        if bytes <= self.charges.chunk_bytes { 1.0 } else { self.charges.chunk_bytes as f64 / bytes as f64 }
    }

    fn wait(&mut self, call_us: f64, target: Awaited) {
        let asked = self.ask(call_us.min(self.habits.call_us));
        let point = self.clocks.point(target);
        let fact = asked.max(point.done_us + self.machine.wait_return_us);
        self.told((fact + self.charges.wait_back_us).max(point.landed_us));
        self.known_done_us = self.known_done_us.max(point.done_us);
    }

    fn query(&mut self, call_us: f64, target: Awaited, was_done: bool) {
        let point = self.clocks.point(target);
        if self.charges.is_remote && point.done_us <= self.known_done_us {
            self.clocks.client_us += self.charges.local_call_us.unwrap_or(call_us);
            self.answered = Some(target);
            return;
        }
        let asked = self.ask(self.habits.own_part_us(call_us));
        self.told(asked + self.charges.query_back_us);
        let done_us = point.done_us + self.charges.query_back_us.max(0.0);
        if was_done {
            // Whatever the program did next, it did because the GPU was done.
            self.told(done_us.max(point.landed_us));
        }
        if done_us <= self.clocks.client_us {
            self.answered = Some(target);
            self.known_done_us = self.known_done_us.max(point.done_us);
        }
    }

    fn other(&mut self, call_us: f64, awaited: bool) {
        if !self.charges.is_remote {
            self.clocks.client_us += call_us;
            return;
        }
        if !awaited {
            self.issue(call_us, 0.0);
            return;
        }
        let asked = self.ask(0.0);
        self.clocks.issuer_us = asked + call_us;
        self.told(self.clocks.issuer_us + self.charges.awaited_back_us);
    }

    /// The program asks something, in order with its other calls; when the question is heard.
    fn ask(&mut self, native_us: f64) -> f64 {
        self.clocks.client_us += self.charges.call_us.unwrap_or(native_us);
        if !self.charges.is_remote {
            return self.clocks.client_us;
        }
        let sent = self.clocks.commands_us.max(self.clocks.client_us) + self.charges.command_us;
        self.clocks.commands_us = sent;
        self.clocks.issuer_us.max(sent + self.charges.there_us)
    }

    /// The program goes on not before it is told.
    fn told(&mut self, at_us: f64) {
        let waited = (at_us - self.clocks.client_us).max(0.0);
        self.waited_us += waited;
        self.clocks.client_us += waited;
    }
}

#[derive(Clone, Copy)]
struct Transfer {
    stream: u32,
    bytes: u64,
    pinned: bool,
    waits: bool,
    gpu_us: f64,
}

impl Transfer {
    /// The part of the recorded call in which the program did not wait for the GPU.
    fn own_part_us(&self, call_us: f64, habits: &Habits) -> f64 {
        if self.waits { call_us.min(habits.call_us) } else { call_us }
    }
}
