//! The trace: what happened, as lines in the Chrome JSON trace event format.
//!
//! The file is an array whose closing bracket may be missing, as the format allows: so it can be written as things happen, by
//! several processes, and what a killed program leaves can be opened. [`HEAD`], then lines that each begin with a comma, then
//! perhaps [`CLOSE`].
//!
//! | process in the trace | rows |
//! |---|---|
//! | the program | its threads: calls that waited for the worker, and in them the ways and the time on the worker |
//! | each worker of it | its streams: kernels, copies, fills, graphs, host functions |

use crate::{clocks::Clocks, json::Line, names::readable};
use cuda_wire::{ModuleId, Span, StreamId, TimedAnswer, TimedKernel, TimedStream, TimedWork, timed};
use std::collections::{HashMap, HashSet, VecDeque};

/// What a file begins with: the array, and an event that says what it is.
pub const HEAD: &str =
    "[\n{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"dxpu_timeline\",\"args\":{\"version\":1}}";
/// What a file ends with when its last writer ended well.
pub const CLOSE: &str = "\n]\n";

/// Calls and answers that wait for their counterpart; the oldest are given up.
const OPEN_MAX: usize = 4096;
/// Batches that wait until the worker's clock is known.
const HELD_MAX: usize = 256;
/// Rows that are remembered. A program that makes more streams or threads than this is told their names again.
const ROWS_MAX: usize = 1 << 16;
/// Numbers of processes are below this (`PID_MAX_LIMIT` of Linux is 4,194,304). Workers are processes of the trace, with numbers
/// above.
const WORKER_STEP: u64 = 10_000_000;

/// Which of the program's workers, from 0.
pub type LinkNumber = u32;

/// A call of the program's that waited for the worker.
#[derive(Clone, Debug)]
pub struct Call {
    /// The worker it waited for.
    pub link: LinkNumber,
    /// The thread that waited.
    pub thread: u64,
    /// The command.
    pub name: &'static str,
    /// The command's number.
    pub call: u32,
    /// From when to when, by our clock.
    pub span: Span,
}

/// Bytes that a thread of the program's sent before it went on.
#[derive(Clone, Copy, Debug)]
pub struct Push {
    /// The thread.
    pub thread: u64,
    /// How many.
    pub bytes: u64,
    /// From when to when, by our clock.
    pub span: Span,
}

/// What a worker said has run.
#[derive(Clone, Debug, Default)]
pub struct Timed {
    /// Streams that were not named before.
    pub streams: Vec<TimedStream>,
    /// Kernels, of each stream in order.
    pub kernels: Vec<TimedKernel>,
    /// Other work, of each stream in order.
    pub works: Vec<TimedWork>,
    /// Calls that were answered.
    pub answers: Vec<TimedAnswer>,
    /// Work that was not timed.
    pub missed: u64,
}

/// What is known of one worker.
#[derive(Debug, Default)]
struct Worker {
    clocks: Clocks,
    /// The error that the trace states.
    stated_error_ns: Option<u64>,
    held: VecDeque<Timed>,
    /// Where each stream's last slice ends.
    ends: HashMap<StreamId, u64>,
    calls: HashMap<u32, Call>,
    answers: HashMap<u32, Span>,
}

/// Turns what happened into lines. One for each process.
#[derive(Debug)]
pub struct Trace {
    pid: u64,
    kernels: HashMap<ModuleId, Vec<String>>,
    workers: HashMap<LinkNumber, Worker>,
    threads: HashSet<u64>,
}

impl Trace {
    /// The trace of a process, whose name is appended.
    pub fn new(pid: u32, program: &str, out: &mut String) -> Self {
        let pid = u64::from(pid);
        Line::begin(out, 'M', "process_name", (pid, 0)).text("name", program).end();
        Self { pid, kernels: HashMap::new(), workers: HashMap::new(), threads: HashSet::new() }
    }

    fn process_of(&self, link: LinkNumber) -> u64 {
        WORKER_STEP * (u64::from(link) + 1) + self.pid
    }

    /// A session with a worker begins; the first, or one that takes over from a lost one. Its clock is another.
    pub fn session(&mut self, link: LinkNumber, worker: &str, out: &mut String) {
        let process = self.process_of(link);
        Line::begin(out, 'M', "process_name", (process, 0)).text("name", &format!("GPU at {worker}")).end();
        Line::begin(out, 'M', "process_sort_index", (process, 0)).number("sort_index", process).end();
        let known = self.workers.entry(link).or_default();
        (known.clocks, known.held, known.stated_error_ns) = Default::default();
    }

    /// The names of a module's kernels, in the order of its load.
    pub fn module(&mut self, module: ModuleId, kernels: Vec<String>) {
        self.kernels.insert(module, kernels);
    }

    /// Whether a thread has its name in the trace.
    pub fn knows_thread(&self, thread: u64) -> bool {
        self.threads.contains(&thread)
    }

    /// A thread's name.
    pub fn thread(&mut self, thread: u64, name: &str, out: &mut String) {
        if self.threads.len() >= ROWS_MAX {
            self.threads.clear();
        }
        self.threads.insert(thread);
        Line::begin(out, 'M', "thread_name", (self.pid, thread)).text("name", name).end();
    }

    /// The worker is asked what its clock shows.
    pub fn asked(&mut self, link: LinkNumber, nonce: u64, now_ns: u64) {
        self.workers.entry(link).or_default().clocks.asked(nonce, now_ns);
    }

    /// What the worker's clock shows.
    pub fn told(&mut self, link: LinkNumber, nonce: u64, worker_ns: u64, now_ns: u64, out: &mut String) {
        let process = self.process_of(link);
        let Some(worker) = self.workers.get_mut(&link) else { return };
        worker.clocks.told(nonce, worker_ns, now_ns);
        let Some(best) = worker.clocks.best() else { return };
        let is_other = |stated: u64| best.error_ns.saturating_mul(2) < stated || best.error_ns / 2 > stated;
        if worker.stated_error_ns.is_none_or(is_other) {
            worker.stated_error_ns = Some(best.error_ns);
            let words = format!("times on this GPU are right within {} us", best.error_ns.div_ceil(1000));
            Line::begin(out, 'M', "process_labels", (process, 0)).text("labels", &words).end();
            let line = Line::begin(out, 'i', "clocks aligned", (process, 0)).at(now_ns).of_process();
            line.us("error_us", best.error_ns).end();
        }
        if worker.clocks.are_settled() {
            self.release(link, now_ns, out);
        }
    }

    /// The process ends: nothing is held back any more.
    pub fn finish(&mut self, now_ns: u64, out: &mut String) {
        let links: Vec<LinkNumber> = self.workers.keys().copied().collect();
        for link in links {
            self.release(link, now_ns, out);
        }
    }

    fn release(&mut self, link: LinkNumber, now_ns: u64, out: &mut String) {
        let held = self.workers.get_mut(&link).map(|worker| std::mem::take(&mut worker.held));
        for timed in held.unwrap_or_default() {
            self.draw(link, timed, now_ns, out);
        }
    }

    /// A call has returned.
    pub fn call(&mut self, call: Call, out: &mut String) {
        let line = Line::begin(out, 'X', call.name, (self.pid, call.thread)).category("host wait");
        line.at(call.span.start_ns).lasts(length(call.span)).number("call", call.call.into()).end();
        let Some(worker) = self.workers.get_mut(&call.link) else { return };
        match worker.answers.remove(&call.call) {
            Some(span) => self.ways(&call, span, out),
            None => {
                if worker.calls.len() >= OPEN_MAX {
                    worker.calls.clear();
                }
                worker.calls.insert(call.call, call);
            }
        }
    }

    /// Bytes have left the program's memory.
    pub fn push(&mut self, push: Push, out: &mut String) {
        let line = Line::begin(out, 'X', "send to the worker", (self.pid, push.thread)).category("network");
        line.at(push.span.start_ns).lasts(length(push.span)).number("bytes", push.bytes).end();
    }

    /// Events that this process could not write down.
    pub fn dropped(&mut self, count: u64, now_ns: u64, out: &mut String) {
        let line = Line::begin(out, 'i', "events lost: the file is too slow", (self.pid, 0)).at(now_ns);
        line.of_process().number("count", count).end();
    }

    /// A worker has said what ran.
    pub fn timed(&mut self, link: LinkNumber, timed: Timed, now_ns: u64, out: &mut String) {
        let worker = self.workers.entry(link).or_default();
        if !worker.clocks.are_settled() && worker.held.len() < HELD_MAX {
            return worker.held.push_back(timed);
        }
        self.release(link, now_ns, out);
        self.draw(link, timed, now_ns, out);
    }

    fn draw(&mut self, link: LinkNumber, timed: Timed, now_ns: u64, out: &mut String) {
        let process = self.process_of(link);
        let worker = self.workers.entry(link).or_default();
        // A worker that never said what its clock shows: its times mean nothing here.
        let Some(alignment) = worker.clocks.best() else { return };
        for stream in &timed.streams {
            name_stream(process, stream, out);
        }
        if timed.missed > 0 {
            let line = Line::begin(out, 'i', "work that was not timed", (process, 0)).at(now_ns);
            line.of_process().number("count", timed.missed).end();
        }
        let mut slices: Vec<Slice<'_>> = timed.kernels.iter().map(Slice::Kernel).collect();
        slices.extend(timed.works.iter().map(Slice::Work));
        slices.sort_by_key(|slice| slice.span().start_ns);
        if worker.ends.len() > ROWS_MAX {
            worker.ends.clear();
        }
        for slice in slices {
            let span = slice.span();
            let end = worker.ends.entry(slice.stream()).or_default();
            // A new alignment moves times by a little: a row must not overlap itself for that.
            let from = alignment.ours(span.start_ns).max(*end);
            let to = alignment.ours(span.end_ns).max(from);
            *end = to;
            slice.draw(
                (process, slice.stream().0.into()),
                Span { start_ns: from, end_ns: to },
                &self.kernels,
                out,
            );
        }
        for answer in timed.answers {
            self.answered(link, answer, out);
        }
    }

    fn answered(&mut self, link: LinkNumber, answer: TimedAnswer, out: &mut String) {
        let Some(worker) = self.workers.get_mut(&link) else { return };
        match worker.calls.remove(&answer.call) {
            Some(call) => self.ways(&call, answer.span, out),
            None => {
                if worker.answers.len() >= OPEN_MAX {
                    worker.answers.clear();
                }
                worker.answers.insert(answer.call, answer.span);
            }
        }
    }

    /// What of a call was on the network, and what on the worker. Their sum does not depend on how well the clocks are aligned,
    /// only the place of the worker's part does.
    fn ways(&self, call: &Call, worker: Span, out: &mut String) {
        let alignment = self.workers.get(&call.link).and_then(|worker| worker.clocks.best());
        let Some(alignment) = alignment else { return };
        let worker_ns = length(worker).min(length(call.span));
        let latest = call.span.end_ns - worker_ns;
        let from = alignment.ours(worker.start_ns).clamp(call.span.start_ns, latest);
        let to = from + worker_ns;
        let row = (self.pid, call.thread);
        let mut part = |name, category, start_ns, end_ns| {
            if start_ns < end_ns {
                let line = Line::begin(out, 'X', name, row).category(category);
                line.at(start_ns).lasts(end_ns - start_ns).end();
            }
        };
        part("to the worker", "network", call.span.start_ns, from);
        part("on the worker", "worker", from, to);
        part("from the worker", "network", to, call.span.end_ns);
    }
}

fn length(span: Span) -> u64 {
    span.end_ns.saturating_sub(span.start_ns)
}

fn name_stream(process: u64, stream: &TimedStream, out: &mut String) {
    const LEGACY: u32 = 2;
    let words = match stream.kind {
        LEGACY => format!("GPU {}, default stream", stream.device),
        _ => format!("GPU {}, stream {}", stream.device, stream.stream.0),
    };
    Line::begin(out, 'M', "thread_name", (process, stream.stream.0.into())).text("name", &words).end();
}

/// Work of a stream.
enum Slice<'a> {
    Kernel(&'a TimedKernel),
    Work(&'a TimedWork),
}

impl Slice<'_> {
    fn span(&self) -> Span {
        match self {
            Self::Kernel(kernel) => kernel.span,
            Self::Work(work) => work.span,
        }
    }

    fn stream(&self) -> StreamId {
        match self {
            Self::Kernel(kernel) => kernel.stream,
            Self::Work(work) => work.stream,
        }
    }

    /// Draws it at `place`. `gpu_us` is the time that was measured, `estimated_us` one that follows from others.
    fn draw(&self, row: (u64, u64), place: Span, names: &HashMap<ModuleId, Vec<String>>, out: &mut String) {
        let real = length(self.span());
        match self {
            Self::Kernel(kernel) => {
                let module = names.get(&kernel.kernel.module);
                let name = module.and_then(|names| names.get(kernel.kernel.index as usize));
                let mangled = name.map_or("unknown kernel", String::as_str);
                let line = Line::begin(out, 'X', &readable(mangled), row).category("kernel");
                let time = time_key(kernel.shared_bytes & timed::ESTIMATED != 0);
                let line = line.at(place.start_ns).lasts(length(place)).us(time, real);
                let line = line.triple("grid", kernel.grid).triple("block", kernel.block);
                let shared_bytes = kernel.shared_bytes & !timed::ESTIMATED;
                line.number("shared_bytes", shared_bytes.into()).text("symbol", mangled).end();
            }
            Self::Work(work) => {
                let (name, category, key) = described(work.kind & !timed::ESTIMATED_KIND);
                let line = Line::begin(out, 'X', name, row).category(category);
                let time = time_key(work.kind & timed::ESTIMATED_KIND != 0);
                let line = line.at(place.start_ns).lasts(length(place)).us(time, real);
                match key {
                    Some(key) => line.number(key, work.bytes).end(),
                    None => line.end(),
                }
            }
        }
    }
}

/// What a duration is called: measured, or following from others.
fn time_key(is_estimated: bool) -> &'static str {
    if is_estimated { "estimated_us" } else { "gpu_us" }
}

/// Name, category and what `bytes` is.
fn described(kind: u8) -> (&'static str, &'static str, Option<&'static str>) {
    match kind {
        timed::COPY_IN => ("copy to the GPU", "copy", Some("bytes")),
        timed::COPY_OUT => ("copy to the host", "copy", Some("bytes")),
        timed::COPY_DEVICE => ("copy on the GPU", "copy", Some("bytes")),
        timed::FILL => ("fill", "fill", Some("bytes")),
        timed::GRAPH => ("graph", "graph", Some("graph")),
        timed::HOST_FUNCTION => ("host function", "host function", None),
        _ => ("other work", "other", None),
    }
}
