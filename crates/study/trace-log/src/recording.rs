//! From a log to profiles: one for each range, or one for the whole run.

mod durations;
mod joins;
mod plausible;

use crate::entry::{Entry, Kind, flag};
use crate::log::{Line, Log};
use durations::Durations;
use joins::Joins;
use model::profile::{Action, Awaited, Direction, Filler, Measured, Profile, Record};
use std::collections::HashMap;

/// How durations on the GPU were found, for readers of the profile.
const METHOD: &str = "pairs of events around sampled operations, behind a filler kernel, and clean where the GPU had not come \
                      to the pair when all of it was queued; durations are the middle of the clean samples by kernel, grid \
                      and block, copies by direction, pinning and size";

/// What became of a log.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// A profile for each range that holds anything.
    pub profiles: Vec<Profile>,
    /// Time that the recording itself took of the program's threads, in the ranges.
    pub own_us: f64,
}

/// Turns a log into profiles of `program`.
pub fn recording(log: &Log, program: &str) -> Recording {
    let mut recording = Recording::default();
    for (begin, end) in ranges(log) {
        let durations = Durations::learn(log, begin, end);
        let mut writer = Writer::new(log, &durations, begin);
        writer.write(log, begin, end);
        recording.own_us += writer.own_ticks as f64 / log.ticks_per_us;
        let wall_us = writer.us(end).max(writer.last_us);
        let scaled = plausible::scale(&mut writer.records);
        let profile = Profile {
            device: log
                .lines
                .iter()
                .find(|line| line.kind == Kind::Device)
                .map_or_else(String::new, |line| line.text.clone()),
            program: program.to_owned(),
            measured: Some(Measured {
                method: METHOD.to_owned(),
                operations: writer.operations,
                sampled: writer.sampled,
                clean: writer.clean,
                scaled,
                filler: durations.filler,
            }),
            kernels: writer.kernels,
            records: writer.records,
            wall_us,
        };
        if !profile.records.is_empty() {
            recording.profiles.push(profile);
        }
    }
    recording
}

/// The ranges of a log; one over everything if the program named none.
fn ranges(log: &Log) -> Vec<(u64, u64)> {
    let mut ranges = Vec::new();
    let mut open = None;
    let mut is_named = false;
    for line in &log.lines {
        match line.kind {
            Kind::RangeBegin => {
                is_named = true;
                open = open.or(Some(line.entry.at));
            }
            Kind::RangeEnd => {
                is_named = true;
                ranges.extend(open.take().map(|begin| (begin, line.entry.at)));
            }
            _ => {}
        }
    }
    ranges.extend(open.map(|begin| (begin, log.end)));
    if !is_named {
        ranges.push((log.begin, log.end));
    }
    ranges
}

struct Writer<'a> {
    durations: &'a Durations,
    names: HashMap<u64, &'a str>,
    ticks_per_us: f64,
    begin: u64,
    /// Time of the recording itself, up to here: it is taken out of the program's clock.
    own_ticks: u64,
    last_us: f64,
    records: Vec<Record>,
    kernels: Vec<String>,
    kernel_numbers: HashMap<String, u32>,
    streams: HashMap<u64, u32>,
    events: HashMap<u64, u32>,
    joins: Joins,
    operations: u64,
    sampled: u64,
    clean: u64,
}

impl<'a> Writer<'a> {
    fn new(log: &'a Log, durations: &'a Durations, begin: u64) -> Self {
        let names = log.lines.iter().filter(|line| line.kind == Kind::Name);
        Self {
            durations,
            names: names.map(|line| (line.entry.object, line.text.as_str())).collect(),
            ticks_per_us: log.ticks_per_us,
            begin,
            own_ticks: 0,
            last_us: 0.0,
            records: Vec::new(),
            kernels: Vec::new(),
            kernel_numbers: HashMap::new(),
            streams: HashMap::from([(0, 0)]),
            events: HashMap::new(),
            joins: Joins::default(),
            operations: 0,
            sampled: 0,
            clean: 0,
        }
    }

    /// Microseconds since the range began, without the time of the recording.
    fn us(&self, at: u64) -> f64 {
        (at.saturating_sub(self.begin).saturating_sub(self.own_ticks)) as f64 / self.ticks_per_us
    }

    fn write(&mut self, log: &'a Log, begin: u64, end: u64) {
        let is_of_range =
            |line: &&Line| line.kind == Kind::StreamMade || (begin..=end).contains(&line.entry.at);
        let mut lines: Vec<&Line> = log.lines.iter().filter(is_of_range).collect();
        // Each thread wrote in order; together they are sorted by when they called.
        lines.sort_by_key(|line| line.entry.at);
        for line in lines {
            if line.kind == Kind::StreamMade {
                self.joins.made(line.entry.stream, line.entry.flags & flag::NON_BLOCKING == 0);
            }
            if (begin..=end).contains(&line.entry.at) {
                self.line(line);
            }
        }
    }

    fn line(&mut self, line: &Line) {
        let entry = &line.entry;
        let Some(action) = self.action(line.kind, entry) else { return };
        let at_us = self.us(entry.at).max(self.last_us);
        if line.kind.is_operation() {
            self.operations += 1;
            let sampled = self.durations.sampled(entry.extra);
            self.sampled += u64::from(sampled.is_some());
            self.clean += u64::from(sampled == Some(true));
            for (from, to) in self.joins.operation(entry.stream) {
                // A join costs the program nothing: the driver does it with the operation itself.
                let (from, to) = (self.stream(from), self.stream(to));
                let event = self.event(u64::MAX - u64::from(from));
                self.records.push(Record {
                    at_us,
                    call_us: 0.0,
                    action: Action::RecordEvent { stream: from, event },
                });
                self.records.push(Record {
                    at_us,
                    call_us: 0.0,
                    action: Action::StreamWait { stream: to, event },
                });
            }
        }
        let call_us = entry.ticks as f64 / self.ticks_per_us;
        self.records.push(Record { at_us, call_us, action });
        self.last_us = at_us;
        self.own_ticks += entry.own_ticks;
    }

    fn action(&mut self, kind: Kind, entry: &Entry) -> Option<Action> {
        let call_us = entry.ticks as f64 / self.ticks_per_us;
        Some(match kind {
            Kind::Launch => Action::Launch {
                stream: self.stream(entry.stream),
                kernel: self.kernel(entry.object),
                kernels: entry.count.max(1),
                gpu_us: self.durations.launch_us(entry),
            },
            Kind::Copy => Action::Copy {
                stream: self.stream(entry.stream),
                direction: direction(entry.flags),
                bytes: entry.bytes,
                pinned: entry.flags & flag::PINNED != 0,
                waits: entry.flags & flag::WAITS != 0,
                gpu_us: self.durations.copy_us(entry, call_us),
            },
            Kind::Memset => Action::Memset {
                stream: self.stream(entry.stream),
                bytes: entry.bytes,
                gpu_us: self.durations.copy_us(entry, call_us),
            },
            Kind::EventRecord => {
                Action::RecordEvent { stream: self.stream(entry.stream), event: self.event(entry.object) }
            }
            Kind::StreamWait => {
                Action::StreamWait { stream: self.stream(entry.stream), event: self.event(entry.object) }
            }
            Kind::WaitStream => Action::Wait { target: Awaited::Stream(self.stream(entry.stream)) },
            Kind::WaitEvent => Action::Wait { target: Awaited::Event(self.event(entry.object)) },
            Kind::WaitAll => Action::Wait { target: Awaited::Everything },
            Kind::QueryStream => Action::Query {
                target: Awaited::Stream(self.stream(entry.stream)),
                done: entry.flags & flag::DONE != 0,
            },
            Kind::QueryEvent => Action::Query {
                target: Awaited::Event(self.event(entry.object)),
                done: entry.flags & flag::DONE != 0,
            },
            Kind::Local => Action::Local { calls: entry.count },
            Kind::Other => Action::Other { awaited: entry.flags & flag::AWAITED != 0 },
            Kind::Begin
            | Kind::End
            | Kind::Device
            | Kind::Name
            | Kind::Sample
            | Kind::StreamMade
            | Kind::RangeBegin
            | Kind::RangeEnd
            | Kind::Filler
            | Kind::Injected => return None,
        })
    }

    fn stream(&mut self, handle: u64) -> u32 {
        number(&mut self.streams, handle)
    }

    fn event(&mut self, handle: u64) -> u32 {
        number(&mut self.events, handle)
    }

    /// The profile's number of a kernel: launches of different shapes are one kernel's.
    fn kernel(&mut self, kernel: u64) -> u32 {
        let unnamed = || format!("kernel {kernel}");
        let name = self.names.get(&kernel).map_or_else(unnamed, |&name| name.to_owned());
        if let Some(&number) = self.kernel_numbers.get(&name) {
            return number;
        }
        let number = self.kernels.len() as u32;
        self.kernels.push(name.clone());
        self.kernel_numbers.insert(name, number);
        number
    }
}

/// Small numbers for handles, in the order in which they appear.
fn number(numbers: &mut HashMap<u64, u32>, handle: u64) -> u32 {
    let next = numbers.len() as u32;
    *numbers.entry(handle).or_insert(next)
}

fn direction(flags: u8) -> Direction {
    if flags & flag::TO_DEVICE != 0 {
        Direction::HostToDevice
    } else if flags & flag::TO_HOST != 0 {
        Direction::DeviceToHost
    } else {
        Direction::DeviceToDevice
    }
}

/// What a filler costs, in the profile's words.
fn filler(entry: &Entry) -> Filler {
    Filler { gpu_us: entry.bytes as f64 / 1e3, host_us: entry.extra as f64 / 1e3 }
}
