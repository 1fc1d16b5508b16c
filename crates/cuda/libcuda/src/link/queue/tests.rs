use super::{super::wired::*, *};
use cuda_wire::{CommandHeader, StreamId, header};
use std::thread;
use transport::Rx;

fn queue(scheme: &str, linger: Duration) -> (Queue, Rx) {
    let (client, worker) = connected(scheme);
    (Queue::new(client.tx, linger, None), worker.rx)
}

fn start(queue: &Queue) {
    queue.start(|error| panic!("{error}")).unwrap();
}

/// A command with a number in it.
fn numbered(number: u32) -> Command<'static> {
    Command::StreamDestroy { stream: StreamId(number) }
}

/// Receives one command: its call and its number.
fn receive(rx: &mut Rx) -> (u32, u32) {
    let mut bytes = [0; CommandHeader::BYTES];
    rx.recv_exact(&mut bytes).unwrap();
    let head: CommandHeader = header(&bytes).unwrap();
    let mut body = vec![0; head.bytes as usize];
    rx.recv_exact(&mut body).unwrap();
    match Command::decode(head.opcode, &body).unwrap() {
        Command::StreamDestroy { stream } => (head.call, stream.0),
        other => panic!("{other:?}"),
    }
}

fn wakes(queue: &Queue) -> usize {
    queue.shared.wakes.load(Ordering::Relaxed)
}

fn is_asleep(queue: &Queue) -> bool {
    queue.shared.gathered.sleeping.load(Ordering::Relaxed)
}

#[test]
fn while_the_sender_lingers_a_call_wakes_no_thread() {
    for scheme in ["tcp", "shm"] {
        lingering_sender(scheme);
    }
}

fn lingering_sender(scheme: &str) {
    let (queue, mut rx) = queue(scheme, PATIENCE);
    start(&queue);
    queue.append(&numbered(0), 0).unwrap();
    receive(&mut rx);
    let wakes_before = wakes(&queue);
    for number in 1..1000 {
        queue.append(&numbered(number), 0).unwrap();
        // One at a time, so that each of them finds a sender that has nothing to do.
        assert_eq!(receive(&mut rx), (0, number));
    }
    assert_eq!(wakes(&queue), wakes_before);
    queue.lose();
}

#[test]
fn a_sender_that_was_woken_lingers_though_another_has_written_the_bytes() {
    let (queue, mut rx) = queue("unix", PATIENCE);
    start(&queue);
    until("the sender sleeps", || is_asleep(&queue));
    // The caller is faster than the sender it wakes: as if its next call, which needs an answer, came at once.
    queue.shared.append(&numbered(0), 0);
    queue.shared.flush().unwrap();
    let looks_before = queue.shared.looks.load(Ordering::Relaxed);
    queue.shared.wake_sender();
    // It finds nothing to write, and looks for more all the same: a sender that went back to sleep would not.
    until("the sender looks", || queue.shared.looks.load(Ordering::Relaxed) > looks_before);
    let wakes_before = wakes(&queue);
    for number in 1..100 {
        queue.append(&numbered(number), 0).unwrap();
    }
    (0..100).for_each(|number| assert_eq!(receive(&mut rx), (0, number)));
    assert_eq!(wakes(&queue), wakes_before);
    queue.lose();
}

#[test]
fn a_sender_that_has_nothing_to_do_sleeps_in_the_end_and_is_woken() {
    for linger in [Duration::ZERO, Duration::from_millis(1)] {
        let (queue, mut rx) = queue("unix", linger);
        start(&queue);
        for number in 0..20 {
            until("the sender sleeps", || is_asleep(&queue));
            queue.append(&numbered(number), 0).unwrap();
            assert_eq!(receive(&mut rx), (0, number));
        }
        assert_eq!(wakes(&queue), 20);
        queue.lose();
    }
}

#[test]
fn into_shared_memory_every_caller_writes_by_itself_if_no_thread_may_poll() {
    // There is not even a sender thread.
    let (queue, mut rx) = queue("shm", Duration::ZERO);
    for number in 0..1000 {
        queue.append(&numbered(number), 0).unwrap();
        assert_eq!(receive(&mut rx), (0, number));
    }
    assert_eq!(wakes(&queue), 0);
    drop(rx);
}

#[test]
fn a_caller_that_finds_the_wire_locked_leaves_its_bytes_to_the_holder() {
    let (queue, mut rx) = queue("unix", Duration::ZERO);
    // No sender thread helps.
    let wire = lock(&queue.shared.wire);
    queue.append_and_flush(&numbered(1), 7).unwrap();
    assert_ne!(queue.shared.gathered.count.load(Ordering::SeqCst), 0, "the bytes must still be in the queue");
    drop(wire);
    // As the thread that held `wire` does.
    queue.shared.flush().unwrap();
    assert_eq!(receive(&mut rx), (7, 1));
}

#[test]
fn a_caller_that_outruns_the_network_is_held_back() {
    let (queue, mut rx) = queue("unix", Duration::ZERO);
    let commands = (2 * BYTES_MAX / 20) as u32;
    let appended = AtomicUsize::new(0);
    thread::scope(|scope| {
        let appender = scope.spawn(|| {
            for number in 0..commands {
                queue.append(&numbered(number), 0).unwrap();
                appended.fetch_add(1, Ordering::SeqCst);
            }
            queue.append_last(&numbered(commands)).unwrap();
        });
        // There is no sender thread, so the caller has locked `wire`: it writes what it appended, and no socket takes all of
        // that while nothing is read.
        until("the caller writes", || try_lock(&queue.shared.wire).is_none());
        let before = appended.load(Ordering::SeqCst);
        assert!(before < commands as usize, "it appended more than the queue may hold");
        (0..=commands).for_each(|number| assert_eq!(receive(&mut rx), (0, number)));
        appender.join().unwrap();
    });
}

/// A thread is stuck in a write; others go on appending. They are held back too, or the queue would take all memory.
#[test]
fn callers_behind_a_blocked_write_into_shared_memory_are_held_back() {
    let (queue, mut rx) = queue("shm", Duration::ZERO);
    let wire = lock(&queue.shared.wire);
    let commands = (2 * BYTES_MAX / 20) as u32;
    thread::scope(|scope| {
        let appender =
            scope.spawn(|| (0..commands).for_each(|number| queue.append(&numbered(number), 0).unwrap()));
        // It fills the queue and then waits for `wire`.
        while queue.shared.gathered.count.load(Ordering::SeqCst) <= BYTES_MAX {
            assert!(!appender.is_finished(), "it appended more than the queue may hold");
            thread::yield_now();
        }
        drop(wire);
        (0..commands).for_each(|number| assert_eq!(receive(&mut rx), (0, number)));
        appender.join().unwrap();
    });
}

#[test]
fn many_threads_lose_nothing_and_each_keeps_its_order() {
    const THREADS: u32 = 4;
    const COMMANDS: u32 = 5000;
    for (scheme, linger) in [
        ("tcp", Duration::ZERO),
        ("tcp", Duration::from_micros(50)),
        ("unix", PATIENCE),
        ("shm", Duration::ZERO),
    ] {
        let (queue, mut rx) = queue(scheme, linger);
        start(&queue);
        let queue = Arc::new(queue);
        let threads: Vec<_> = (1..=THREADS)
            .map(|thread| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    for number in 0..COMMANDS {
                        // Some one-way commands, some whose answer a caller waits for.
                        match number % 3 {
                            0 => queue.append_and_flush(&numbered(number), thread),
                            _ => queue.append(&numbered(number), thread),
                        }
                        .unwrap();
                    }
                })
            })
            .collect();
        let mut next = [0; THREADS as usize];
        for _ in 0..THREADS * COMMANDS {
            let (thread, number) = receive(&mut rx);
            let expected = &mut next[thread as usize - 1];
            assert_eq!(number, *expected, "thread {thread} over {scheme}");
            *expected += 1;
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        queue.lose();
    }
}

#[test]
fn a_write_that_fails_is_reported() {
    for scheme in ["shm", "unix"] {
        let (queue, rx) = queue(scheme, Duration::ZERO);
        drop(rx);
        until("the append fails", || queue.append_and_flush(&numbered(1), 1).is_err());
    }
    // Where only the sender thread writes, the sender reports it.
    let (queue, rx) = queue("unix", Duration::from_millis(1));
    let (told, hears) = std::sync::mpsc::channel();
    queue.start(move |error| told.send(error).unwrap()).unwrap();
    drop(rx);
    until("the sender fails", || {
        queue.append(&numbered(1), 0).unwrap();
        hears.try_recv().is_ok()
    });
}

/// Keeps an account of what it is told.
#[derive(Default)]
struct Account {
    position: Mutex<usize>,
    told: Mutex<Vec<String>>,
}

impl Keeper for Account {
    fn announce(&self, bytes: usize) {
        lock(&self.told).push(format!("announced {bytes}"));
    }

    fn keep(&self, mut commands: Vec<u8>) -> Vec<u8> {
        *lock(&self.position) += commands.len();
        lock(&self.told).push(format!("kept {}", commands.len()));
        commands.clear();
        commands
    }

    fn broke(&self, number: SessionNumber, error: io::Error) {
        panic!("session {number}: {error}");
    }
}

fn frame_of(number: u32) -> Vec<u8> {
    let mut out = Vec::new();
    let start = begin_command(&mut out, numbered(number).opcode(), 0);
    numbered(number).put_body(&mut out);
    finish_command(&mut out, start);
    out
}

#[test]
fn a_marked_frame_has_its_place_between_the_commands_before_and_after_it() {
    let (client, worker) = connected("unix");
    let mut rx = worker.rx;
    let account = Arc::new(Account::default());
    let queue = Queue::new(client.tx, Duration::ZERO, Some(Arc::clone(&account) as Arc<dyn Keeper>));
    // No sender thread: what is appended waits for the thread that holds the wire.
    queue.append(&numbered(1), 0).unwrap();
    let mut wire = queue.hold();
    let bytes = frame_of(2).len();
    wire.divide();
    let is_sent = wire.send_marked(frame_of(2), || {
        assert_eq!(*lock(&account.position), bytes, "what had gathered was written and kept before the mark");
        assert_eq!(lock(&account.told).last(), Some(&format!("announced {bytes}")));
        // Appended while the mark is made: it comes behind.
        queue.append_and_flush(&numbered(3), 0).unwrap();
        true
    });
    assert!(is_sent && wire.has_gathered());
    wire.divide();
    assert!(!wire.send_marked(frame_of(9), || false), "a frame that is not wanted");
    wire.let_go().unwrap();
    assert_eq!([(); 3].map(|()| receive(&mut rx).1), [1, 2, 3]);
    assert_eq!(*lock(&account.position), 3 * bytes);
    queue.append_and_flush(&numbered(4), 0).unwrap();
    assert_eq!(receive(&mut rx).1, 4, "the unwanted frame has left nothing behind");
}
