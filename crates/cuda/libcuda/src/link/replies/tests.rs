use super::{super::wired::*, *};
use cuda_wire::{ReplyHeader, Wire};
use std::thread;
use transport::Tx;

fn reply_to(call: u32, body: &[u8]) -> Vec<u8> {
    let head = ReplyHeader {
        bytes: body.len() as u32,
        call,
        status: 0,
        deferred: 0,
        deferred_context: 0,
        notices: 0,
        chunks: Default::default(),
        memory_credit_bytes: 0,
    };
    let mut bytes = head.to_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Replies over a real connection, and the worker's end of it.
fn replies(spin: Duration) -> (Arc<Replies>, Tx) {
    let (client, worker) = connected("tcp");
    (Arc::new(Replies::new(client.rx, Some(spin), false)), worker.tx)
}

/// The reply, or why there is none; all of the first session.
fn wait(replies: &Replies, name: u32) -> Result<Reply, LinkEnd> {
    replies.wait(name).map(|(_, reply)| reply).map_err(|(_, end)| end)
}

fn is_waited_for(replies: &Replies, name: u32) -> bool {
    lock(&replies.state).call(name).is_some_and(|call| call.waiter.is_some())
}

fn waiter(replies: &Arc<Replies>, name: u32) -> thread::JoinHandle<Result<u32, LinkEnd>> {
    replies.expect(name);
    let replies = Arc::clone(replies);
    thread::spawn(move || wait(&replies, name).map(|reply| reply.0.call))
}

#[test]
fn one_who_waits_alone_needs_nobody() {
    let (replies, mut worker) = replies(Duration::ZERO);
    for name in 1..100 {
        replies.expect(name);
        worker.send(&[&reply_to(name, &name.to_le_bytes())]).unwrap();
        let (head, body) = wait(&replies, name).unwrap();
        assert_eq!((head.call, body), (name, name.to_le_bytes().to_vec()));
    }
    let state = lock(&replies.state);
    assert!(state.calls.is_empty() && !state.somebody_reads);
}

/// Asleep, or still looking, when the reading is handed over.
const SPINS: [Duration; 2] = [Duration::ZERO, PATIENCE];

#[test]
fn who_has_its_reply_hands_the_reading_over() {
    for spin in SPINS {
        let (replies, mut worker) = replies(spin);
        let first = waiter(&replies, 1);
        until("the first reads", || lock(&replies.state).somebody_reads);
        let second = waiter(&replies, 2);
        until("the second waits", || is_waited_for(&replies, 2));
        worker.send(&[&reply_to(1, b"")]).unwrap();
        assert_eq!(first.join().unwrap().unwrap(), 1);
        worker.send(&[&reply_to(2, b"")]).unwrap();
        assert_eq!(second.join().unwrap().unwrap(), 2);
    }
}

#[test]
fn reading_is_not_handed_to_one_who_has_its_reply() {
    for spin in SPINS {
        let (replies, mut worker) = replies(spin);
        // Call 1 has its reply but has not looked; call 2 waits while another thread reads.
        replies.expect(1);
        let head: ReplyHeader = cuda_wire::header(&reply_to(1, b"")).unwrap();
        lock(&replies.state).call(1).unwrap().reply = Some((head, Vec::new()));
        lock(&replies.state).call(1).unwrap().waiter = Some(Arc::default());
        lock(&replies.state).somebody_reads = true;
        let second = waiter(&replies, 2);
        until("the second waits", || is_waited_for(&replies, 2));
        // The reader leaves.
        let mut state = lock(&replies.state);
        state.somebody_reads = false;
        state.pass_reading_on();
        drop(state);
        worker.send(&[&reply_to(2, b"")]).unwrap();
        assert_eq!(second.join().unwrap().unwrap(), 2);
        assert_eq!(wait(&replies, 1).unwrap().0.call, 1);
    }
}

#[test]
fn the_end_wakes_everybody() {
    for spin in SPINS {
        let (replies, worker) = replies(spin);
        let waiters: Vec<_> = (1..5).map(|name| waiter(&replies, name)).collect();
        until("all wait", || (1..5).filter(|name| is_waited_for(&replies, *name)).count() == 3);
        drop(worker);
        let ends: Vec<LinkEnd> =
            waiters.into_iter().map(|waiter| waiter.join().unwrap().unwrap_err()).collect();
        // The thread that read has seen why; the others are told that it is over.
        assert_eq!(ends.iter().filter(|end| matches!(end, LinkEnd::Closed)).count(), 1, "{ends:?}");
        assert_eq!(ends.iter().filter(|end| matches!(end, LinkEnd::Ended)).count(), 3, "{ends:?}");
        replies.expect(9);
        assert!(matches!(wait(&replies, 9), Err(LinkEnd::Ended)));
        assert!(matches!(wait(&replies, 10), Err(LinkEnd::Unannounced(10))));
    }
}

#[test]
fn an_answer_that_nobody_asked_for_ends_the_link() {
    let (replies, mut worker) = replies(Duration::ZERO);
    replies.expect(1);
    worker.send(&[&reply_to(2, b"")]).unwrap();
    let end = wait(&replies, 1).unwrap_err();
    assert!(matches!(end, LinkEnd::Protocol(Breach::UnexpectedReply(2))), "{end:?}");
}

#[test]
fn transfers_among_the_replies_must_be_named_and_expected() {
    // What the worker sends under the name of no call, and how the link ends.
    let ends_with = |body: &[u8]| {
        let (replies, mut worker) = replies(Duration::ZERO);
        replies.land_with(|_, _| false);
        replies.expect(1);
        worker.send(&[&reply_to(0, body)]).unwrap();
        wait(&replies, 1).unwrap_err()
    };
    let end = ends_with(&[1, 2, 3]);
    assert!(matches!(end, LinkEnd::Protocol(Breach::UnnamedTransfer)), "{end:?}");
    let end = ends_with(&77u64.to_le_bytes());
    assert!(matches!(end, LinkEnd::Protocol(Breach::UnexpectedTransfer(TransferId(77)))), "{end:?}");
    assert!(end.to_string().contains("77"), "{end}");
}

#[test]
fn many_threads_get_their_own_replies_in_whatever_order() {
    const THREADS: u32 = 6;
    const ROUNDS: u32 = 200;
    for spin in [Duration::ZERO, Duration::from_micros(20), PATIENCE] {
        let (client, mut worker) = connected("unix");
        let replies = Arc::new(Replies::new(client.rx, Some(spin), false));
        let to_worker = Arc::new(Mutex::new(client.tx));
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (replies, to_worker) = (Arc::clone(&replies), Arc::clone(&to_worker));
                thread::spawn(move || {
                    for round in 0..ROUNDS {
                        let name = 1 + round * THREADS + thread;
                        replies.expect(name);
                        lock(&to_worker).send(&[&name.to_le_bytes()]).unwrap();
                        let (head, body) = wait(&replies, name).unwrap();
                        assert_eq!((head.call, body), (name, vec![name as u8; name as usize % 100]));
                    }
                })
            })
            .collect();
        // Answers two at a time, the later one first, unless only one call is waiting.
        let mut asked = Vec::new();
        for _ in 0..THREADS * ROUNDS {
            let mut name = [0; 4];
            worker.rx.recv_exact(&mut name).unwrap();
            asked.push(u32::from_le_bytes(name));
            if asked.len() == 2 || !worker.rx.wait(Some(Duration::from_millis(1))).unwrap() {
                for name in asked.drain(..).rev() {
                    worker.tx.send(&[&reply_to(name, &vec![name as u8; name as usize % 100])]).unwrap();
                }
            }
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(lock(&replies.state).calls.is_empty());
    }
}

#[test]
fn replies_are_read_whatever_pieces_they_come_in() {
    let (mut client, mut worker) = connected("unix");
    let large = vec![7; 100_000];
    let whole = [reply_to(1, b"abc"), reply_to(2, b""), reply_to(3, &large), reply_to(4, b"end")].concat();
    client.rx.set_spin(Duration::ZERO);
    let mut reader = ReplyReader::new(client.rx, None);
    let sender = thread::spawn(move || {
        // First all at once, then a few bytes at a time.
        worker.tx.send(&[&whole]).unwrap();
        for piece in whole.chunks(37) {
            worker.tx.send(&[piece]).unwrap();
        }
        worker
    });
    for _ in 0..2 {
        for (name, body) in [(1, &b"abc"[..]), (2, b""), (3, &large), (4, b"end")] {
            let (head, found) = reader.next().unwrap();
            assert!(head.call == name && found == body, "reply {name}");
        }
    }
    drop(sender.join().unwrap());
    assert!(matches!(reader.next(), Err(LinkEnd::Closed)));
}

#[test]
fn a_reply_without_end_is_refused_before_memory_is_taken() {
    let (client, mut worker) = connected("unix");
    let mut bytes = reply_to(1, b"");
    bytes[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    worker.tx.send(&[&bytes]).unwrap();
    let end = ReplyReader::new(client.rx, None).next().unwrap_err();
    assert!(matches!(end, LinkEnd::Protocol(Breach::TooLong { bytes: u32::MAX, .. })), "{end:?}");
}
