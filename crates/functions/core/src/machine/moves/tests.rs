use super::*;
use crate::machine::{Event, Kind, Settings, Spec};
use crate::record::FunctionKey;

const AFTER_MS: u64 = 1_000;

fn key() -> FunctionKey {
    FunctionKey { tenant: "a".to_owned(), name: "f".to_owned() }
}

/// A machine with one function, and a shell that does at once what it says.
struct Bench {
    machine: Machine,
    now_ms: u64,
    /// GPUs that the pool has left.
    left: usize,
    started: Vec<InstanceId>,
    moves: Vec<(InstanceId, SlotId)>,
    finished: Vec<(String, Verdict)>,
    asked: usize,
}

impl Bench {
    fn new(survives: bool, gpus: usize) -> Self {
        let settings =
            Settings { sharing: 2, gpus_max: 2, balance_after_ms: Some(AFTER_MS), ..Settings::default() };
        let mut bench = Self {
            machine: Machine::new(settings),
            now_ms: 0,
            left: gpus,
            started: Vec::new(),
            moves: Vec::new(),
            finished: Vec::new(),
            asked: 0,
        };
        let spec = Spec {
            revision: 1,
            timeout_ms: 100_000,
            memory_mb: 128,
            gpu_mb: Some(400),
            survives,
            concurrency: None,
            retries: 0,
            age_max_ms: u64::MAX,
        };
        bench.step(Event::Deployed { key: key(), spec });
        bench
    }

    fn step(&mut self, event: Event) {
        for action in self.machine.step(event, self.now_ms) {
            match action {
                Action::Start { instance, .. } => {
                    self.started.push(instance);
                    self.step(Event::Asked { instance });
                }
                Action::AskGpu { slot, .. } => {
                    self.asked += 1;
                    let is_there = self.left > 0;
                    self.left = self.left.saturating_sub(1);
                    self.step(match is_there {
                        true => Event::GpuGranted { slot, total_mb: 1000 },
                        false => Event::GpuLost { slot },
                    });
                }
                Action::Kill { instance } => self.step(Event::Ended { instance }),
                Action::Finish { id, verdict, .. } => self.finished.push((id, verdict)),
                Action::Move { instance, to } => self.moves.push((instance, to)),
                Action::ReturnGpu { .. } => self.left += 1,
                _ => {}
            }
        }
    }

    /// Two invocations that run beside each other, and whose programs are protected.
    fn with_two(survives: bool, gpus: usize) -> Self {
        let mut bench = Self::new(survives, gpus);
        for id in ["one", "two"] {
            bench.step(Event::Invoked { id: id.to_owned(), key: key(), kind: Kind::Sync });
        }
        for instance in bench.started.clone() {
            bench.step(Event::Linked { instance, link: Link::Protected });
        }
        bench
    }

    fn wait(&mut self, ms: u64) {
        let until_ms = self.now_ms + ms;
        while self.now_ms < until_ms {
            self.now_ms += 20;
            self.step(Event::Tick);
        }
    }

    fn running(&self) -> Vec<u32> {
        self.machine.loads().iter().map(|load| load.running).collect()
    }
}

#[test]
fn a_gpu_is_asked_for_and_one_of_two_moves_there_once() {
    let mut bench = Bench::with_two(true, 2);
    assert_eq!(bench.running(), [2]);
    bench.wait(AFTER_MS - 100);
    assert!(bench.moves.is_empty());
    bench.wait(300);
    let [(instance, to)] = bench.moves[..] else { panic!("{:?}", bench.moves) };
    bench.step(Event::Moved { instance });
    assert_eq!((bench.running(), bench.machine.slot_of(instance)), (vec![1, 1], Some(to)));
    bench.wait(60_000);
    assert_eq!((bench.moves.len(), bench.finished.len()), (1, 0));
}

#[test]
fn what_does_not_survive_does_not_move_and_neither_does_what_is_not_protected_yet() {
    let mut bench = Bench::with_two(false, 2);
    bench.wait(10_000);
    assert_eq!((bench.moves.len(), bench.asked), (0, 1));
    let mut bench = Bench::with_two(true, 2);
    for instance in bench.started.clone() {
        bench.step(Event::Linked { instance, link: Link::Attached });
    }
    bench.wait(10_000);
    assert_eq!((bench.moves.len(), bench.asked), (0, 1));
}

#[test]
fn a_move_that_fails_leaves_the_instance_where_it_is_for_a_while() {
    let mut bench = Bench::with_two(true, 2);
    bench.wait(AFTER_MS + 100);
    let [(first, _)] = bench.moves[..] else { panic!("{:?}", bench.moves) };
    bench.step(Event::NotMoved { instance: first });
    assert_eq!(bench.running(), [2, 0]);
    // The other one is tried next; the first again only after its rest.
    bench.wait(2 * AFTER_MS);
    let [_, (second, _)] = bench.moves[..] else { panic!("{:?}", bench.moves) };
    assert_ne!(first, second);
    bench.step(Event::NotMoved { instance: second });
    bench.wait(20_000);
    assert_eq!(bench.moves.len(), 2);
    bench.wait(15_000);
    assert_eq!(bench.moves.len(), 3);
}

#[test]
fn a_pool_without_a_spare_gpu_costs_no_invocation_and_is_asked_seldom() {
    let mut bench = Bench::with_two(true, 1);
    bench.wait(25_000);
    assert!(bench.finished.is_empty() && bench.moves.is_empty());
    assert!((3..=4).contains(&bench.asked), "{}", bench.asked);
}

#[test]
fn an_instance_that_survives_takes_a_place_on_another_gpu_when_its_own_is_lost() {
    let mut bench = Bench::with_two(true, 2);
    bench.wait(AFTER_MS + 100);
    let [(instance, to)] = bench.moves[..] else { panic!("{:?}", bench.moves) };
    bench.step(Event::Moved { instance });
    bench.step(Event::GpuLost { slot: to });
    assert_eq!((bench.running(), bench.finished.len()), (vec![2], 0));
    let last = bench.machine.slot_of(instance).unwrap();
    bench.step(Event::GpuLost { slot: last });
    assert_eq!(bench.finished, [("one".to_owned(), Verdict::GpuLost), ("two".to_owned(), Verdict::GpuLost)]);
}

#[test]
fn a_worker_that_ended_ends_what_does_not_survive() {
    for (survives, finished) in [(true, 0), (false, 2)] {
        let mut bench = Bench::with_two(survives, 2);
        let slot = bench.machine.slot_of(bench.started[0]).unwrap();
        bench.step(Event::GpuChanged { slot, is_there: true });
        assert_eq!(bench.finished.len(), finished, "{survives}");
    }
}

#[test]
fn a_lease_that_waits_for_a_gpu_takes_nothing_until_it_has_one() {
    let mut bench = Bench::with_two(true, 2);
    bench.wait(AFTER_MS + 100);
    let [(instance, to)] = bench.moves[..] else { panic!("{:?}", bench.moves) };
    bench.step(Event::Moved { instance });
    bench.step(Event::GpuChanged { slot: to, is_there: false });
    bench.step(Event::Stranded { instance });
    // Both run on the GPU that is left, and the rest of the one that moved is over.
    bench.wait(9_000);
    assert_eq!((bench.running(), bench.moves.len()), (vec![2, 0], 1));
    bench.step(Event::GpuChanged { slot: to, is_there: true });
    bench.wait(AFTER_MS + 100);
    assert_eq!(bench.moves.len(), 2);
}

#[test]
fn an_instance_whose_program_ended_elsewhere_is_not_used_again() {
    let mut bench = Bench::with_two(true, 2);
    let instance = bench.started[0];
    let slot = bench.machine.slot_of(instance).unwrap();
    bench.step(Event::GpuChanged { slot, is_there: true });
    bench.step(Event::Answered { instance, id: "one".to_owned(), is_success: true });
    bench.step(Event::Linked { instance, link: Link::None });
    bench.step(Event::Asked { instance });
    assert_eq!(bench.machine.slot_of(instance), None, "it has ended");
}
