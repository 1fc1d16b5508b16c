//! The line to the process that knows more places to go on at: `dxpu run`.
//!
//! A thread reads what the keeper says. Answers go to the thread that looks for a place, wishes (a move, a suspension, a
//! drill) to the thread that takes cuts. A keeper that is gone is no error: the program goes on without it.

use crate::log;
use keeper::{FromProgram, Place, ToProgram, read_line, write_line};
use locks::lock;
use std::{
    collections::VecDeque,
    io::{self, BufReader},
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::Path,
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

/// A keeper that does not read for this long has ended for us: no thread of the program waits for it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct KeeperLine {
    descriptor: i32,
    out: Mutex<UnixStream>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_gone: bool,
    /// When the keeper last said that a place will come, since the last question.
    told_to_wait: Option<Instant>,
    answers: VecDeque<Answer>,
    wishes: VecDeque<Wish>,
}

/// What the keeper says to a program without a session.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Go on there.
    Place(Box<Place>),
    /// There is no place.
    Nowhere(String),
}

/// What the keeper wants of a program.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Move(Box<Place>),
    Suspend,
    Drill(Box<Place>),
}

impl KeeperLine {
    /// Connects to the keeper and says which link this is. `woken` runs after each wish.
    pub(super) fn open(
        path: &Path,
        attached: &FromProgram,
        woken: impl Fn() + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let mut stream = UnixStream::connect(path)?;
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        write_line(&mut stream, attached).map_err(io::Error::other)?;
        let reading = stream.try_clone()?;
        let line = Arc::new(Self {
            descriptor: stream.as_raw_fd(),
            out: Mutex::new(stream),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let reader = Arc::clone(&line);
        crate::threads::spawn("dxpu-keeper", move || reader.read(reading, &woken))?;
        Ok(line)
    }

    fn read(&self, stream: UnixStream, woken: &dyn Fn()) {
        let mut stream = BufReader::new(stream);
        loop {
            let word = match read_line::<ToProgram>(&mut stream) {
                Ok(Some(word)) => word,
                Ok(None) => break,
                Err(error) => {
                    log::warn(&format!("the line to `dxpu run` is given up: {error}"));
                    break;
                }
            };
            let mut state = lock(&self.state);
            match word {
                ToProgram::Place { place } => state.answers.push_back(Answer::Place(Box::new(place))),
                ToProgram::Nowhere { why } => state.answers.push_back(Answer::Nowhere(why)),
                ToProgram::Wait {} => state.told_to_wait = Some(Instant::now()),
                ToProgram::Move { place } => state.wishes.push_back(Wish::Move(Box::new(place))),
                ToProgram::Suspend {} => state.wishes.push_back(Wish::Suspend),
                ToProgram::Drill { place } => state.wishes.push_back(Wish::Drill(Box::new(place))),
            }
            drop(state);
            self.changed.notify_all();
            woken();
        }
        lock(&self.state).is_gone = true;
        self.changed.notify_all();
        woken();
    }

    /// Says something. A keeper that cannot be told is gone.
    pub(super) fn tell(&self, word: &FromProgram) {
        if self.is_gone() {
            return;
        }
        if write_line(&mut *lock(&self.out), word).is_err() {
            lock(&self.state).is_gone = true;
            self.changed.notify_all();
        }
    }

    /// Asks for a place and waits for the answer, for at most `time` after the question or the last word to wait; `None`: the
    /// keeper is gone, or has not answered.
    pub(super) fn ask(&self, question: &FromProgram, time: Option<Duration>) -> Option<Answer> {
        // What came too late for an earlier question says nothing about this one.
        let mut state = lock(&self.state);
        state.answers.clear();
        state.told_to_wait = None;
        drop(state);
        self.tell(question);
        let asked = Instant::now();
        let mut state = lock(&self.state);
        loop {
            if let Some(answer) = state.answers.pop_front() {
                return Some(answer);
            }
            if state.is_gone {
                return None;
            }
            state = match time {
                None => locks::wait(&self.changed, state),
                Some(time) => {
                    let deadline = state.told_to_wait.unwrap_or(asked) + time;
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    locks::wait_for(&self.changed, state, left)
                }
            };
        }
    }

    /// When the keeper last said that the program waits whatever its patience, since the last question.
    pub(super) fn told_to_wait(&self) -> Option<Instant> {
        lock(&self.state).told_to_wait
    }

    /// The next thing that the keeper wants.
    pub(super) fn wish(&self) -> Option<Wish> {
        lock(&self.state).wishes.pop_front()
    }

    pub(super) fn is_gone(&self) -> bool {
        lock(&self.state).is_gone
    }

    /// What a forked child must close.
    pub(super) fn descriptor(&self) -> i32 {
        self.descriptor
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        os::unix::net::UnixListener,
        sync::atomic::{AtomicU32, Ordering},
        thread,
    };

    const LONG: Option<Duration> = Some(Duration::from_secs(20));

    fn attached() -> FromProgram {
        FromProgram::Attached { worker: "unix:/worker".to_owned(), pid: 1, image: "00".to_owned() }
    }

    #[test]
    fn answers_go_to_the_thread_that_asked_and_wishes_wait_for_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keeper");
        let listener = UnixListener::bind(&path).unwrap();
        let keeper = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            let first: FromProgram = read_line(&mut lines).unwrap().unwrap();
            write_line(&mut stream, &ToProgram::Suspend {}).unwrap();
            let question: FromProgram = read_line(&mut lines).unwrap().unwrap();
            let place = Place { address: "unix:/other".to_owned(), ..Place::default() };
            write_line(&mut stream, &ToProgram::Place { place }).unwrap();
            let _: Option<FromProgram> = read_line(&mut lines).unwrap();
            (first, question)
        });
        let woken = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&woken);
        let line = KeeperLine::open(&path, &attached(), move || {
            count.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
        let Some(Answer::Place(place)) = line.ask(&FromProgram::Unpark {}, LONG) else { panic!("no place") };
        assert_eq!(place.address, "unix:/other");
        assert_eq!(line.wish(), Some(Wish::Suspend));
        assert_eq!(line.wish(), None);
        // The keeper ends after the next line: a question that it does not answer ends, too.
        assert_eq!(line.ask(&FromProgram::Unpark {}, LONG), None);
        assert!(line.is_gone());
        assert_eq!(keeper.join().unwrap(), (attached(), FromProgram::Unpark {}));
        assert!(woken.load(Ordering::SeqCst) >= 2);
    }

    #[test]
    fn a_word_to_wait_begins_the_time_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keeper");
        let listener = UnixListener::bind(&path).unwrap();
        let keeper = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for _ in 0..10 {
                thread::sleep(Duration::from_millis(300));
                write_line(&mut stream, &ToProgram::Wait {}).unwrap();
            }
            write_line(&mut stream, &ToProgram::Nowhere { why: "it is over".to_owned() }).unwrap();
            stream
        });
        let line = KeeperLine::open(&path, &attached(), || {}).unwrap();
        let began = Instant::now();
        let answer = line.ask(&FromProgram::Unpark {}, Some(Duration::from_secs(2)));
        assert_eq!(answer, Some(Answer::Nowhere("it is over".to_owned())), "after {:?}", began.elapsed());
        assert!(line.told_to_wait().is_some_and(|at| at > began));
        // Without another word the time is over as ever, and the words for the last question do not count.
        assert_eq!(line.ask(&FromProgram::Unpark {}, Some(Duration::from_millis(50))), None);
        assert!(line.told_to_wait().is_none() && !line.is_gone());
        drop(keeper.join().unwrap());
    }

    #[test]
    fn without_a_keeper_there_is_no_line() {
        assert!(KeeperLine::open(Path::new("/nowhere/keeper"), &attached(), || {}).is_err());
    }
}
