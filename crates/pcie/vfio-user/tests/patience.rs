//! How long a session waits for its device, in a time that the test makes up.

mod device;

use std::time::{Duration, Instant};

use device::{LATE_PAGE, Remembering};
use vfio_user::message::{Command, Direction, HEADER_BYTES, Header, Reply, Request};
use vfio_user::{AccessId, Completion, Completions, Session};

const PATIENCE: Duration = Duration::from_millis(200);
const MOMENT: Duration = Duration::from_nanos(1);

struct Guest {
    device: Remembering,
    session: Session,
}

impl Guest {
    fn new() -> Self {
        let mut device = Remembering::new();
        let session = Session::new(&mut device, Completions::new().unwrap(), PATIENCE, AccessId(1));
        let mut guest = Self { device, session };
        guest.ask(Request::Version { major: 0, minor: 0, capabilities: b"{}" }, Instant::now());
        assert_eq!(guest.session.take_replies().len(), 1);
        guest
    }

    fn ask(&mut self, request: Request<'_>, now: Instant) {
        let body = request.encode();
        let direction = Direction::Command { no_reply: false };
        let header = Header { id: 7, command: request.command() as u16, body_bytes: body.len(), direction };
        self.session.on_message(header, &body, Vec::new(), &mut self.device, now).unwrap();
    }

    fn read_late(&mut self, now: Instant) {
        self.ask(Request::RegionRead { region: 0, offset: LATE_PAGE, count: 4 }, now);
    }

    fn tick(&mut self, now: Instant) {
        self.session.on_tick(&mut self.device, now);
    }

    /// The bytes of each read that is answered by now.
    fn answers(&mut self) -> Vec<[u8; 4]> {
        let data =
            |message: Vec<u8>| match Reply::decode(Command::RegionRead as u16, &message[HEADER_BYTES..]) {
                Ok(Reply::RegionRead { data, .. }) => data.try_into().unwrap(),
                other => panic!("{other:?} answers no read"),
            };
        self.session.take_replies().into_iter().map(data).collect()
    }

    fn abandoned(&self) -> Vec<AccessId> {
        self.device.seen.lock().unwrap().abandoned.clone()
    }
}

#[test]
fn a_read_is_given_up_when_its_time_is_over_and_not_a_moment_earlier() {
    let (mut guest, began) = (Guest::new(), Instant::now());
    guest.read_late(began);
    assert_eq!(guest.session.wake_at(), Some(began + PATIENCE));
    guest.tick(began + PATIENCE - MOMENT);
    assert_eq!((guest.answers(), guest.abandoned()), (vec![], vec![]));
    guest.tick(began + PATIENCE);
    assert_eq!((guest.answers(), guest.abandoned()), (vec![[0xff; 4]], vec![AccessId(1)]));
    assert_eq!(guest.session.wake_at(), None);
    // The answer that comes after all is for no read.
    guest.session.on_completion(Completion { access: AccessId(1), data: vec![7; 4] }, &guest.device);
    assert!(guest.answers().is_empty());
}

#[test]
fn each_read_has_its_own_time() {
    let (mut guest, began) = (Guest::new(), Instant::now());
    guest.read_late(began);
    guest.read_late(began + PATIENCE / 2);
    guest.tick(began + PATIENCE);
    assert_eq!((guest.answers(), guest.abandoned()), (vec![[0xff; 4]], vec![AccessId(1)]));
    assert_eq!(guest.session.wake_at(), Some(began + PATIENCE / 2 + PATIENCE));
    // However late the device is, an answer that comes before the session has looked at the time counts.
    guest.session.on_completion(Completion { access: AccessId(2), data: vec![1, 2, 3, 4] }, &guest.device);
    guest.tick(began + 2 * PATIENCE);
    assert_eq!((guest.answers(), guest.abandoned()), (vec![[1, 2, 3, 4]], vec![AccessId(1)]));
}
