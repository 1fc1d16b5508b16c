//! Requests that wait for completions: tags, assembly of answers, the completion timeout.
//!
//! A job is what its owner asked for (read these 10,000 bytes); it becomes requests no larger than the link allows,
//! each of which needs a tag. When no tag is free, requests wait in order. That is the whole reason why reads over a
//! long link are slow: tags × read size / round trip is the most that can come back.
//!
//! ```text
//!   submit ──▶ waiting ──transmit──▶ open (a tag each) ──on_completion──▶ Finished
//!                                      └──on_tick──▶ Finished (timed out); the tag rests
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use tlp::{Bdf, Body, Completion, Header, Status, TagSpace, TransactionId};
use units::Time;

use crate::tlp_buf::TlpBuf;

/// Requests of one job. A megabyte at the smallest read size.
pub const REQUESTS_PER_JOB_MAX: usize = 8192;
/// How many timeouts a tag rests after its request timed out, so that a late answer is not taken for another's.
const REST_TIMEOUTS: u32 = 16;

/// Names a job. Chosen by the owner, which keeps the names of jobs that are under way different.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// One request of a job.
#[derive(Clone, Debug)]
pub struct Request {
    /// What to ask. Requester and tag are filled in.
    pub header: Header,
    /// What it brings (configuration writes).
    pub payload: Vec<u8>,
    /// Where its answer goes in the job's buffer; empty when the answer has no data.
    pub into: Range<usize>,
    /// Address of the first byte it asks for; completions are checked against it.
    pub first_byte: u64,
}

/// Why a job did not get what it asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The completer said no.
    #[error("the completer answered {0:?}")]
    Status(Status),
    /// No completion came in time.
    #[error("nobody answered in time")]
    TimedOut,
    /// The data that came is known to be bad.
    #[error("the answer is poisoned")]
    Poisoned,
    /// The device or the link is gone.
    #[error("the device was removed")]
    Removed,
}

/// A job has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Which.
    pub job: JobId,
    /// Its buffer, filled, or why not.
    pub outcome: Result<Vec<u8>, Failure>,
}

/// A completion that fits no open request. It is dropped, and counted as an error of its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a completion for {id} that nobody waits for")]
pub struct Unexpected {
    /// The transaction it claims to answer.
    pub id: TransactionId,
}

/// How a requester behaves.
#[derive(Clone, Copy, Debug)]
pub struct RequesterOptions {
    /// Which tags exist.
    pub space: TagSpace,
    /// How many of them may be used at once.
    pub tags_max: u16,
    /// How long to wait for an answer. PCI Express says 50 us to 50 ms by default; a network may need more.
    pub timeout: Duration,
}

impl Default for RequesterOptions {
    fn default() -> Self {
        let timeout = Duration::from_millis(50);
        Self { space: TagSpace::EightBits, tags_max: 256, timeout }
    }
}

struct Open {
    job: JobId,
    left: Range<usize>,
    next_byte: u64,
    wants_data: bool,
    deadline: Time,
}

struct Job {
    buffer: Vec<u8>,
    requests_left: usize,
    failure: Option<Failure>,
}

/// The requests of one function.
pub struct Requester {
    options: RequesterOptions,
    /// First freed, first used: a tag rests as long as it can.
    free: VecDeque<u16>,
    open: HashMap<u16, Open>,
    deadlines: BTreeSet<(Time, u16)>,
    resting: BTreeMap<(Time, u16), ()>,
    waiting: VecDeque<(JobId, Request)>,
    jobs: HashMap<JobId, Job>,
}

impl Requester {
    /// Nothing asked yet.
    pub fn new(options: RequesterOptions) -> Self {
        let tags = options.tags_max.clamp(1, options.space.count());
        Self {
            options,
            free: (0..tags).collect(),
            open: HashMap::new(),
            deadlines: BTreeSet::new(),
            resting: BTreeMap::new(),
            waiting: VecDeque::new(),
            jobs: HashMap::new(),
        }
    }

    /// Requests that have a tag.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Requests that wait for one.
    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a job of this name is under way.
    pub fn is_busy(&self, job: JobId) -> bool {
        self.jobs.contains_key(&job)
    }

    /// Takes a job: `bytes` of buffer and the requests that fill it. A job of no requests is finished at once.
    ///
    /// # Panics
    ///
    /// When the job's name is in use, or it has too many requests: both are bugs of the owner.
    pub fn submit(
        &mut self,
        job: JobId,
        bytes: usize,
        requests: impl IntoIterator<Item = Request>,
    ) -> Option<Finished> {
        let before = self.waiting.len();
        self.waiting.extend(requests.into_iter().map(|request| (job, request)));
        let requests_left = self.waiting.len() - before;
        assert!(requests_left <= REQUESTS_PER_JOB_MAX, "owners split");
        let buffer = vec![0; bytes];
        if requests_left == 0 {
            return Some(Finished { job, outcome: Ok(buffer) });
        }
        let earlier = self.jobs.insert(job, Job { buffer, requests_left, failure: None });
        assert!(earlier.is_none(), "names of jobs are used once at a time");
        None
    }

    /// The next request that has a tag.
    pub fn transmit(&mut self, requester: Bdf, now: Time) -> Option<TlpBuf> {
        self.wake_rested(now);
        loop {
            let job = self.waiting.front()?.0;
            // A job that has failed asks no more; what it asked already still has to come back.
            if self.jobs.get(&job).is_some_and(|job| job.failure.is_some()) {
                self.waiting.pop_front();
                self.jobs.get_mut(&job).expect("just looked").requests_left -= 1;
                continue;
            }
            let index = self.free.pop_front()?;
            let (job, mut request) = self.waiting.pop_front()?;
            let tag = self.options.space.tag(index).expect("free tags exist");
            request.header.set_id(TransactionId::new(requester, tag));
            let deadline = now + self.options.timeout;
            let wants_data = !request.into.is_empty();
            let open = Open { job, left: request.into, next_byte: request.first_byte, wants_data, deadline };
            self.open.insert(index, open);
            self.deadlines.insert((deadline, index));
            return Some(TlpBuf { header: request.header, payload: request.payload });
        }
    }

    /// An answer has come.
    pub fn on_completion(
        &mut self,
        requester: Bdf,
        header: &Header,
        completion: &Completion,
        payload: &[u8],
    ) -> Result<Option<Finished>, Unexpected> {
        let unexpected = Unexpected { id: completion.id };
        if completion.id.requester != requester {
            return Err(unexpected);
        }
        let index = self.options.space.index(completion.id.tag).ok_or(unexpected)?;
        let open = self.open.get_mut(&index).ok_or(unexpected)?;
        let job = self.jobs.get_mut(&open.job).ok_or(unexpected)?;
        if completion.status != Status::Success {
            job.failure.get_or_insert(Failure::Status(completion.status));
            return Ok(self.close(index));
        }
        if !open.wants_data {
            if completion.length_dw != 0 {
                return Err(unexpected);
            }
            return Ok(self.close(index));
        }
        let (skipped, bytes) = completion.data();
        let fits = usize::from(completion.byte_count) == open.left.len()
            && u64::from(completion.lower_address) == open.next_byte & 0x7f
            && bytes > 0
            && skipped + bytes <= payload.len();
        if !fits {
            return Err(unexpected);
        }
        if header.is_poisoned {
            job.failure.get_or_insert(Failure::Poisoned);
        } else {
            job.buffer[open.left.start..open.left.start + bytes]
                .copy_from_slice(&payload[skipped..skipped + bytes]);
        }
        open.left.start += bytes;
        open.next_byte = open.next_byte.wrapping_add(bytes as u64);
        if open.left.is_empty() {
            return Ok(self.close(index));
        }
        Ok(None)
    }

    fn close(&mut self, index: u16) -> Option<Finished> {
        let open = self.open.remove(&index)?;
        self.deadlines.remove(&(open.deadline, index));
        self.free.push_back(index);
        self.finish_one(open.job)
    }

    fn finish_one(&mut self, id: JobId) -> Option<Finished> {
        let job = self.jobs.get_mut(&id)?;
        job.requests_left -= 1;
        if job.failure.is_some() {
            // What still waits for a tag is not worth asking.
            let before = self.waiting.len();
            self.waiting.retain(|(other, _)| *other != id);
            job.requests_left -= before - self.waiting.len();
        }
        if job.requests_left > 0 {
            return None;
        }
        let job = self.jobs.remove(&id)?;
        let outcome = match job.failure {
            None => Ok(job.buffer),
            Some(failure) => Err(failure),
        };
        Some(Finished { job: id, outcome })
    }

    /// Gives up on requests that were not answered in time.
    pub fn on_tick(&mut self, now: Time) -> Vec<Finished> {
        self.wake_rested(now);
        let mut finished = Vec::new();
        while let Some(&(deadline, index)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.remove(&(deadline, index));
            let open = self.open.remove(&index).expect("every deadline has its request");
            self.resting.insert((now + self.options.timeout * REST_TIMEOUTS, index), ());
            if let Some(job) = self.jobs.get_mut(&open.job) {
                job.failure.get_or_insert(Failure::TimedOut);
            }
            finished.extend(self.finish_one(open.job));
        }
        finished
    }

    /// When [`Requester::on_tick`] must be called at the latest. Rested tags count, since requests may wait for them.
    pub fn wake_at(&self) -> Option<Time> {
        let deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        let rested =
            if self.waiting.is_empty() { None } else { self.resting.first_key_value().map(|(k, _)| k.0) };
        deadline.into_iter().chain(rested).min()
    }

    fn wake_rested(&mut self, now: Time) {
        while let Some((&(until, index), ())) = self.resting.first_key_value()
            && until <= now
        {
            self.resting.remove(&(until, index));
            self.free.push_back(index);
        }
    }

    /// The other end is gone: every job fails, every tag is free. Completions that still come are dropped.
    pub fn abort_all(&mut self, why: Failure) -> Vec<Finished> {
        let tags = self.options.tags_max.clamp(1, self.options.space.count());
        self.free = (0..tags).collect();
        self.open.clear();
        self.deadlines.clear();
        self.resting.clear();
        self.waiting.clear();
        let mut jobs: Vec<JobId> = self.jobs.drain().map(|(id, _)| id).collect();
        jobs.sort_unstable();
        jobs.into_iter().map(|job| Finished { job, outcome: Err(why) }).collect()
    }
}

/// The requests that read `bytes` bytes of memory from `address` on, no larger than `limit`.
pub(crate) fn memory_reads(
    address: u64,
    bytes: usize,
    limit: tlp::SizeLimit,
) -> impl Iterator<Item = Request> {
    let unset = TransactionId::default();
    let mut start = 0;
    tlp::split_request(address, bytes as u64, limit).map(move |(at, len)| {
        let span = tlp::Span::of_bytes(at, len).expect("split requests fit into a packet");
        let into = start..start + len as usize;
        start = into.end;
        Request { header: Header::memory_read(unset, span), payload: Vec::new(), into, first_byte: at }
    })
}

/// Whether `header` is a completion.
pub(crate) fn as_completion(header: &Header) -> Option<&Completion> {
    match &header.body {
        Body::Completion(completion) => Some(completion),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tlp::{ReadCompletionBoundary, SizeLimit};

    const ME: Bdf = Bdf::new(3, 0, 0);
    const THEM: Bdf = Bdf::new(0, 0, 0);

    fn requester(tags_max: u16) -> Requester {
        Requester::new(RequesterOptions { tags_max, ..RequesterOptions::default() })
    }

    fn ms(n: u64) -> Time {
        Time::from_millis(n)
    }

    fn read(requester: &mut Requester, job: u64, address: u64, bytes: usize) {
        let limit = SizeLimit::new(512).unwrap();
        assert_eq!(requester.submit(JobId(job), bytes, memory_reads(address, bytes, limit)), None);
    }

    /// Memory whose every byte is the sum of its address bytes.
    fn byte_at(address: u64) -> u8 {
        (address ^ address >> 8) as u8
    }

    fn answer(request: &TlpBuf) -> Vec<TlpBuf> {
        let Body::Memory(memory) = &request.header.body else { panic!("reads only") };
        let (first, count) = (memory.span().first_byte(), u64::from(memory.span().byte_count()));
        let data: Vec<u8> = (first..first + count).map(byte_at).collect();
        let limit = SizeLimit::new(128).unwrap();
        TlpBuf::completions(&request.header, THEM, first, &data, limit, ReadCompletionBoundary::Bytes64)
            .collect()
    }

    fn give(requester: &mut Requester, packet: &TlpBuf) -> Result<Option<Finished>, Unexpected> {
        let completion = as_completion(&packet.header).unwrap();
        requester.on_completion(ME, &packet.header, completion, &packet.payload)
    }

    #[test]
    fn a_read_of_many_packets_is_put_together_whatever_their_order() {
        let mut r = requester(32);
        read(&mut r, 1, 0x1003, 5000);
        let mut requests: Vec<TlpBuf> = std::iter::from_fn(|| r.transmit(ME, ms(0))).collect();
        assert_eq!(requests.len(), 10);
        requests.reverse();
        let mut finished = None;
        for request in &requests {
            for piece in answer(request) {
                assert!(finished.is_none());
                finished = give(&mut r, &piece).unwrap();
            }
        }
        let data = finished.unwrap().outcome.unwrap();
        assert!(data.iter().zip(0x1003..).all(|(byte, address)| *byte == byte_at(address)));
        assert_eq!(r.open_count(), 0);
    }

    #[test]
    fn no_more_requests_are_open_than_there_are_tags() {
        let mut r = requester(4);
        read(&mut r, 1, 0, 512 * 10);
        let mut open: VecDeque<TlpBuf> = std::iter::from_fn(|| r.transmit(ME, ms(0))).collect();
        assert_eq!((open.len(), r.open_count(), r.waiting_count()), (4, 4, 6));
        let mut seen = 4;
        while let Some(request) = open.pop_front() {
            for piece in answer(&request) {
                give(&mut r, &piece).unwrap();
            }
            let more: Vec<TlpBuf> = std::iter::from_fn(|| r.transmit(ME, ms(0))).collect();
            assert!(more.len() <= 1);
            seen += more.len();
            open.extend(more);
        }
        assert_eq!(seen, 10);
    }

    #[test]
    fn a_request_nobody_answers_fails_and_its_late_answer_is_nobodys() {
        let mut r = requester(1);
        read(&mut r, 1, 0, 4);
        let request = r.transmit(ME, ms(0)).unwrap();
        assert_eq!(r.wake_at(), Some(ms(50)));
        assert!(r.on_tick(ms(49)).is_empty());
        assert_eq!(r.on_tick(ms(50)), [Finished { job: JobId(1), outcome: Err(Failure::TimedOut) }]);
        read(&mut r, 2, 0, 4);
        assert!(r.transmit(ME, ms(60)).is_none(), "the tag rests");
        assert!(give(&mut r, &answer(&request)[0]).is_err());
        let again = r.transmit(ME, r.wake_at().unwrap()).unwrap();
        assert_eq!(again.header.id(), request.header.id());
    }

    #[test]
    fn completions_that_do_not_fit_are_refused_and_change_nothing() {
        let mut r = requester(8);
        read(&mut r, 1, 0x1000, 256);
        let request = r.transmit(ME, ms(0)).unwrap();
        let good = answer(&request);
        let lie = |change: fn(&mut Completion)| {
            let mut packet = good[0].clone();
            let Body::Completion(completion) = &mut packet.header.body else { unreachable!() };
            change(completion);
            packet
        };
        for packet in [
            lie(|c| c.id.requester = Bdf::new(9, 0, 0)),
            lie(|c| c.id.tag = tlp::Tag::truncated(7)),
            lie(|c| c.byte_count = 128),
            lie(|c| c.byte_count = 4096),
            lie(|c| c.lower_address = 4),
            good[1].clone(),
        ] {
            assert!(give(&mut r, &packet).is_err(), "{packet:?}");
        }
        assert_eq!(give(&mut r, &good[0]), Ok(None));
        assert!(give(&mut r, &good[0]).is_err(), "a piece counts once");
        assert!(give(&mut r, &good[1]).unwrap().unwrap().outcome.is_ok());
    }

    #[test]
    fn one_refusal_fails_the_job_and_the_rest_is_not_asked() {
        let mut r = requester(2);
        read(&mut r, 1, 0, 512 * 6);
        let first = r.transmit(ME, ms(0)).unwrap();
        let second = r.transmit(ME, ms(0)).unwrap();
        let refusal = TlpBuf::completion(&first.header, THEM, Status::UnsupportedRequest);
        assert_eq!(give(&mut r, &refusal), Ok(None), "the other request is still open");
        assert!(r.transmit(ME, ms(0)).is_none());
        let mut last = None;
        for piece in answer(&second) {
            last = give(&mut r, &piece).unwrap();
        }
        let why = Failure::Status(Status::UnsupportedRequest);
        assert_eq!(last, Some(Finished { job: JobId(1), outcome: Err(why) }));
    }

    #[test]
    fn removal_ends_everything_at_once() {
        let mut r = requester(2);
        read(&mut r, 1, 0, 512 * 6);
        read(&mut r, 2, 0, 4);
        let request = r.transmit(ME, ms(0)).unwrap();
        let ended = r.abort_all(Failure::Removed);
        assert_eq!(ended.iter().map(|f| f.job).collect::<Vec<_>>(), [JobId(1), JobId(2)]);
        assert!(r.transmit(ME, ms(0)).is_none() && r.wake_at().is_none());
        assert!(give(&mut r, &answer(&request)[0]).is_err());
    }
}
