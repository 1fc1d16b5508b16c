//! Tags and timeouts under every schedule: answers that are lost, repeated, late, out of order, or made up.

use std::collections::BTreeMap;
use std::time::Duration;

use pcie::flow::{Failure, JobId, Request, Requester, RequesterOptions};
use pcie::host::{Access, HostMemory, HostOutput, HostPort, HostPortOptions};
use pcie::{Bdf, SizeLimit, TagSpace, Time, TlpBuf};
use proptest::prelude::*;
use tlp::{Body, Header, ReadCompletionBoundary, Span, Status, Tag, TransactionId};

const ME: Bdf = Bdf::new(3, 0, 0);
const TAGS: u16 = 8;

fn byte_at(address: u64) -> u8 {
    (address.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

fn requests(address: u64, bytes: usize) -> Vec<Request> {
    let mut start = 0;
    tlp::split_request(address, bytes as u64, SizeLimit::new(256).unwrap())
        .map(|(at, len)| {
            let into = start..start + len as usize;
            start = into.end;
            let header = Header::memory_read(TransactionId::default(), Span::of_bytes(at, len).unwrap());
            Request { header, payload: Vec::new(), into, first_byte: at }
        })
        .collect()
}

fn answers(request: &TlpBuf) -> Vec<TlpBuf> {
    let Body::Memory(memory) = request.header.body else { unreachable!() };
    let (first, count) = (memory.span().first_byte(), u64::from(memory.span().byte_count()));
    let data: Vec<u8> = (first..first + count).map(byte_at).collect();
    let (limit, boundary) = (SizeLimit::new(128).unwrap(), ReadCompletionBoundary::Bytes64);
    TlpBuf::completions(&request.header, Bdf::default(), first, &data, limit, boundary).collect()
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Read { address: u16, bytes: u16 },
    Send,
    Deliver { which: u8 },
    DeliverTwice { which: u8 },
    Lose { which: u8 },
    Refuse { which: u8 },
    Invent { tag: u16 },
    Wait { ms: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (any::<u16>(), 1..3000u16).prop_map(|(address, bytes)| Step::Read { address, bytes }),
        6 => Just(Step::Send),
        8 => any::<u8>().prop_map(|which| Step::Deliver { which }),
        1 => any::<u8>().prop_map(|which| Step::DeliverTwice { which }),
        1 => any::<u8>().prop_map(|which| Step::Lose { which }),
        1 => any::<u8>().prop_map(|which| Step::Refuse { which }),
        1 => (0..300u16).prop_map(|tag| Step::Invent { tag }),
        1 => (0..30u8).prop_map(|ms| Step::Wait { ms }),
    ]
}

/// Completions of one request stay in order; those of different requests come in any.
struct Model {
    requester: Requester,
    now: Time,
    /// Answers on their way, a queue for each request.
    answers: Vec<(Header, Vec<TlpBuf>)>,
    wanted: BTreeMap<JobId, (u64, usize)>,
    ended: usize,
    started: usize,
}

impl Model {
    fn give(&mut self, packet: &TlpBuf) -> bool {
        let Body::Completion(completion) = packet.header.body else { unreachable!() };
        match self.requester.on_completion(ME, &packet.header, &completion, &packet.payload) {
            Ok(finished) => {
                finished.into_iter().for_each(|finished| self.end(finished.job, finished.outcome));
                true
            }
            Err(_) => false,
        }
    }

    fn end(&mut self, job: JobId, outcome: Result<Vec<u8>, Failure>) {
        let (address, bytes) = self.wanted.remove(&job).expect("a job ends once");
        self.ended += 1;
        if let Ok(data) = outcome {
            assert!(data.iter().zip(address..).all(|(byte, at)| *byte == byte_at(at)) && data.len() == bytes);
        }
    }

    fn run(&mut self, step: Step) {
        let pick = |which: u8, len: usize| if len == 0 { None } else { Some(usize::from(which) % len) };
        match step {
            Step::Read { address, bytes } => {
                self.started += 1;
                let (job, address, bytes) =
                    (JobId(self.started as u64), u64::from(address), usize::from(bytes));
                self.wanted.insert(job, (address, bytes));
                assert!(self.requester.submit(job, bytes, requests(address, bytes)).is_none());
            }
            Step::Send => {
                if let Some(packet) = self.requester.transmit(ME, self.now) {
                    // A tag in use is never given out again.
                    let id = packet.header.id();
                    self.answers.retain(|(header, _)| header.id() != id);
                    self.answers.push((packet.header, answers(&packet)));
                }
            }
            Step::Deliver { which } | Step::DeliverTwice { which } => {
                if let Some(n) = pick(which, self.answers.len()) {
                    let packet = self.answers[n].1.remove(0);
                    if self.answers[n].1.is_empty() {
                        self.answers.remove(n);
                    }
                    self.give(&packet);
                    if matches!(step, Step::DeliverTwice { .. }) {
                        assert!(!self.give(&packet), "the same answer counts once");
                    }
                }
            }
            Step::Lose { which } => {
                if let Some(n) = pick(which, self.answers.len()) {
                    self.answers.remove(n);
                }
            }
            Step::Refuse { which } => {
                if let Some(n) = pick(which, self.answers.len()) {
                    let (header, _) = self.answers.remove(n);
                    self.give(&TlpBuf::completion(&header, Bdf::default(), Status::CompleterAbort));
                }
            }
            Step::Invent { tag } => {
                let open: Vec<u16> = self.answers.iter().map(|(header, _)| header.tag().value()).collect();
                if !open.contains(&tag) {
                    let id = TransactionId::new(Bdf::new(9, 0, 0), Tag::truncated(tag));
                    let asked = Header::memory_read(id, Span::of_bytes(0, 64).unwrap());
                    assert!(!self.give(&answers(&TlpBuf::bare(asked))[0]), "nobody asked");
                }
            }
            Step::Wait { ms } => self.wait(Duration::from_millis(ms.into())),
        }
        assert!(self.requester.open_count() <= usize::from(TAGS));
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        for finished in self.requester.on_tick(self.now) {
            self.end(finished.job, finished.outcome);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn every_read_ends_once_and_right(steps in proptest::collection::vec(step(), 1..200)) {
        let options = RequesterOptions { space: TagSpace::EightBits, tags_max: TAGS, timeout: Duration::from_millis(50) };
        let mut model = Model {
            requester: Requester::new(options),
            now: Time::ZERO,
            answers: Vec::new(),
            wanted: BTreeMap::new(),
            ended: 0,
            started: 0,
        };
        steps.into_iter().for_each(|step| model.run(step));
        // With time and no answers, everything ends.
        for _ in 0..2000 {
            while let Some(packet) = model.requester.transmit(ME, model.now) {
                prop_assert!(packet.header.tag().value() < 256);
            }
            match model.requester.wake_at() {
                Some(at) => model.wait(at.since(model.now)),
                None => break,
            }
        }
        prop_assert_eq!(model.started, model.ended);
        prop_assert_eq!(model.requester.open_count() + model.requester.waiting_count(), 0);
    }
}

/// Guest memory with a border: everything outside is not the guest's.
struct Guarded(std::cell::RefCell<Vec<u8>>, std::ops::Range<u64>);

impl HostMemory for Guarded {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let end = address.checked_add(into.len() as u64);
        if address < self.1.start || end.is_none_or(|end| end > self.1.end) {
            return false;
        }
        into.copy_from_slice(&self.0.borrow()[address as usize..address as usize + into.len()]);
        true
    }
    fn write(&self, address: u64, from: &[u8]) -> bool {
        let end = address.checked_add(from.len() as u64);
        if address < self.1.start || end.is_none_or(|end| end > self.1.end) {
            return false;
        }
        self.0.borrow_mut()[address as usize..address as usize + from.len()].copy_from_slice(from);
        true
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    /// Whatever bytes a box's proxy sends, if they are a packet at all: only the guest's memory changes, only by packets
    /// in the device's own name, and no access is answered that was not made.
    #[test]
    fn a_port_believes_nobody(
        packets in proptest::collection::vec((any::<[u8; 16]>(), any::<bool>(), 0..6u8), 1..60),
        accesses in 0..5u64,
    ) {
        let options = HostPortOptions::default();
        let mut port = HostPort::new(options);
        let memory = Guarded(std::cell::RefCell::new(vec![0; 0x4000]), 0x1000..0x3000);
        for access in 0..accesses {
            port.config_read(Access(access), 0, 4);
        }
        while port.transmit(Time::ZERO).is_some() {}
        let mut foreign_writes = 0;
        for (mut bytes, own_name, kind) in packets {
            // Steer random bytes towards headers that decode: kind, length 1, small addresses, the device's name.
            bytes[0] = [0x40, 0x00, 0x4a, 0x0a, 0x44, 0x60][usize::from(kind)];
            bytes[1] &= 0x70;
            (bytes[2], bytes[3]) = (0, 1);
            if kind < 2 {
                bytes[7] = 0x0f;
                (bytes[8], bytes[9]) = (0, 0);
                bytes[11] &= 0xfc;
            }
            if own_name && kind < 2 {
                bytes[4..6].copy_from_slice(&options.device.0.to_be_bytes());
            }
            let Ok(decoded) = Header::decode(&bytes) else { continue };
            let header = decoded.header;
            let payload = vec![0xee; header.payload_bytes()];
            if !own_name && header.id().requester != options.device {
                foreign_writes += 1;
            }
            let before = memory.0.borrow().clone();
            port.receive(&TlpBuf { header, payload }, &memory);
            if header.id().requester != options.device {
                prop_assert!(*memory.0.borrow() == before);
            }
        }
        let contents = memory.0.borrow();
        prop_assert!(contents[..0x1000].iter().chain(&contents[0x3000..]).all(|byte| *byte == 0));
        let violations = port.violations();
        prop_assert!(violations.foreign_requester + violations.unexpected_completion <= 60);
        prop_assert!(foreign_writes == 0 || violations.foreign_requester + violations.unexpected_completion > 0);
        let mut done = Vec::new();
        while let Some(output) = port.next_output() {
            if let HostOutput::Done { access, .. } = output {
                prop_assert!(access.0 < accesses && !done.contains(&access));
                done.push(access);
            }
        }
    }
}

#[test]
fn a_number_that_is_used_twice_is_answered_twice() {
    let mut port = HostPort::new(HostPortOptions::default());
    port.config_read(Access(7), 1, 2);
    port.config_read(Access(7), 0, 4);
    assert_eq!(port.next_output(), Some(HostOutput::Done { access: Access(7), data: None }));
    assert_eq!(port.next_output(), None);
    let asked = port.transmit(Time::ZERO).unwrap();
    let (limit, boundary) = (SizeLimit::new(128).unwrap(), ReadCompletionBoundary::Bytes128);
    let answer =
        TlpBuf::completions(&asked.header, Bdf::new(1, 0, 0), 0, &[1, 2, 3, 4], limit, boundary).next();
    let memory = Guarded(std::cell::RefCell::new(Vec::new()), 0..0);
    port.receive(&answer.unwrap(), &memory);
    assert_eq!(port.next_output(), Some(HostOutput::Done { access: Access(7), data: Some(vec![2, 3]) }));
    port.remove();
    port.bar_read(Access(8), 0, 0, 4);
    assert_eq!(port.next_output(), Some(HostOutput::Done { access: Access(8), data: None }));
}
