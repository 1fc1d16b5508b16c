//! Which connections may stay: a place for every authenticated caller, and a few for strangers.
//!
//! A connection is a stranger's until its certificate or a token sent over it has been believed. Strangers have places
//! of their own, some for each address and some in all. A stranger that comes when these are taken gets the
//! place of the oldest one: an honest client needs milliseconds to authenticate, so only silent connections
//! are closed, however many there are. The door logs none of them; it counts them all.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// So long a stranger may take to authenticate, from the first byte of its handshake on.
const STRANGER_PATIENCE: Duration = Duration::from_secs(10);

/// So long a connection may be without a request. Boxes, hosts and borrowers ask every second or two.
const IDLE_MAX: Duration = Duration::from_secs(90);

/// Strangers at a time, and of one address: a handshake holds some ten kilobytes, and a thousand programs that start at
/// once behind one address shall all get in.
const STRANGERS_MAX: usize = 2048;
const STRANGERS_PER_ADDRESS_MAX: usize = 1024;

/// How many may be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) all: usize,
    pub(crate) strangers: usize,
    pub(crate) strangers_per_address: usize,
}

impl Places {
    /// Of so many connections a quarter may be strangers', and of those half from one address.
    pub(crate) fn of(all: usize) -> Self {
        let strangers = (all / 4).clamp(1, STRANGERS_MAX);
        let strangers_per_address = (strangers / 2).clamp(1, STRANGERS_PER_ADDRESS_MAX);
        Self { all: all.max(1), strangers, strangers_per_address }
    }
}

/// Why a connection ended before its client ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A newer one needed its place.
    Displaced,
    /// It did not authenticate in time.
    Late,
    /// It asked for nothing any more.
    Idle,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) known: usize,
    pub(crate) strangers: usize,
    pub(crate) displaced: u64,
    pub(crate) late: u64,
    pub(crate) idle: u64,
    pub(crate) full: u64,
}

/// Addresses of one owner: a machine with IPv6 has too many addresses to count each.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

#[derive(Debug)]
struct Entry {
    network: IpAddr,
    is_known: bool,
    /// Requests that are being answered.
    busy: u32,
    /// Since when there is none.
    idle_since: Instant,
    leave: Arc<Notify>,
}

/// Numbers grow, so the smallest is the oldest.
type Number = u64;

#[derive(Debug)]
struct State {
    places: Places,
    next: Number,
    entries: HashMap<Number, Entry>,
    strangers: BTreeSet<Number>,
    strangers_of: HashMap<IpAddr, BTreeSet<Number>>,
    /// Authenticated connections without a request, by the time since when.
    idle: BTreeSet<(Instant, Number)>,
    counted: Counted,
}

impl State {
    fn new(places: Places) -> Self {
        Self {
            places,
            next: 0,
            entries: HashMap::new(),
            strangers: BTreeSet::new(),
            strangers_of: HashMap::new(),
            idle: BTreeSet::new(),
            counted: Counted::default(),
        }
    }

    /// A client has connected. None: there is no place.
    fn enter(&mut self, address: IpAddr, now: Instant, leave: Arc<Notify>) -> Option<Number> {
        let network = network(address);
        if !self.make_room(network) {
            self.counted.full += 1;
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.strangers.insert(number);
        self.strangers_of.entry(network).or_default().insert(number);
        self.entries.insert(number, Entry { network, is_known: false, busy: 0, idle_since: now, leave });
        Some(number)
    }

    fn make_room(&mut self, network: IpAddr) -> bool {
        let of_network = self.strangers_of.get(&network);
        let displaced = if of_network.is_some_and(|them| them.len() >= self.places.strangers_per_address) {
            of_network.and_then(|them| them.first().copied())
        } else if self.strangers.len() >= self.places.strangers {
            self.strangers.first().copied()
        } else if self.entries.len() >= self.places.all {
            self.strangers.first().copied().or_else(|| self.idle.first().map(|(_, number)| *number))
        } else {
            return true;
        };
        let Some(number) = displaced else { return false };
        self.send_away(number);
        self.counted.displaced += 1;
        true
    }

    /// Frees the place at once, and notifies the connection's task, which then closes it.
    fn send_away(&mut self, number: Number) {
        if let Some(entry) = self.leave(number) {
            entry.leave.notify_one();
        }
    }

    fn leave(&mut self, number: Number) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        self.forget_stranger(number, entry.network);
        self.idle.remove(&(entry.idle_since, number));
        Some(entry)
    }

    fn forget_stranger(&mut self, number: Number, network: IpAddr) {
        self.strangers.remove(&number);
        if let Some(them) = self.strangers_of.get_mut(&network) {
            them.remove(&number);
            if them.is_empty() {
                self.strangers_of.remove(&network);
            }
        }
    }

    fn know(&mut self, number: Number) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        if !std::mem::replace(&mut entry.is_known, true) {
            let network = entry.network;
            if entry.busy == 0 {
                self.idle.insert((entry.idle_since, number));
            }
            self.forget_stranger(number, network);
        }
    }

    fn begin(&mut self, number: Number) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        entry.busy += 1;
        self.idle.remove(&(entry.idle_since, number));
    }

    fn end(&mut self, number: Number, now: Instant) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        entry.busy = entry.busy.saturating_sub(1);
        entry.idle_since = now;
        if entry.busy == 0 && entry.is_known {
            self.idle.insert((now, number));
        }
    }

    /// Whether the door may close this connection before its next request is answered: it closes a stranger's after
    /// [`STRANGER_PATIENCE`], whatever is being answered then.
    fn ends_soon(&self, number: Number, came: Instant, now: Instant) -> bool {
        self.entries.get(&number).is_none_or(|entry| !entry.is_known) && now >= came + STRANGER_PATIENCE / 2
    }

    /// The reason why a connection must be closed now, or when to look again.
    fn overdue(&mut self, number: Number, came: Instant, now: Instant) -> Result<Instant, Reason> {
        let Some(entry) = self.entries.get(&number) else { return Err(Reason::Displaced) };
        let (until, reason) = match (entry.is_known, entry.busy) {
            (false, _) => (came + STRANGER_PATIENCE, Reason::Late),
            (true, 0) => (entry.idle_since + IDLE_MAX, Reason::Idle),
            (true, _) => return Ok(now + IDLE_MAX),
        };
        if now < until {
            return Ok(until);
        }
        match reason {
            Reason::Late => self.counted.late += 1,
            _ => self.counted.idle += 1,
        }
        Err(reason)
    }
}

/// The door of a manager.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    state: Arc<Mutex<State>>,
}

impl Door {
    pub(crate) fn new(places: Places) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(places))) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client has connected. None: there is no place.
    pub(crate) fn enter(&self, address: SocketAddr) -> Option<Guest> {
        let (now, leave) = (Instant::now(), Arc::new(Notify::new()));
        let number = self.lock().enter(address.ip(), now, leave.clone())?;
        Some(Guest { place: Arc::new(Place { door: self.clone(), number, came: now, leave }) })
    }

    /// No file descriptors are left: the oldest stranger's connection is closed.
    pub(crate) fn send_one_away(&self) {
        let mut state = self.lock();
        if let Some(number) = state.strangers.first().copied() {
            state.send_away(number);
            state.counted.displaced += 1;
        }
    }

    pub(crate) fn counted(&self) -> Counted {
        let state = self.lock();
        let strangers = state.strangers.len();
        Counted { strangers, known: state.entries.len() - strangers, ..state.counted }
    }
}

/// A connected client, for as long as anything of the connection is left.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    place: Arc<Place>,
}

#[derive(Debug)]
struct Place {
    door: Door,
    number: Number,
    came: Instant,
    leave: Arc<Notify>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.door.lock().leave(self.number);
    }
}

impl Guest {
    /// Its caller has been authenticated.
    pub(crate) fn believed(&self) {
        self.place.door.lock().know(self.place.number);
    }

    /// Marks the connection as busy until the returned value is dropped.
    pub(crate) fn asks(&self) -> Asking {
        self.place.door.lock().begin(self.place.number);
        Asking { guest: self.clone() }
    }

    /// Whether the manager tells the client with its next answer to connect anew, see [`State::ends_soon`].
    pub(crate) fn ends_soon(&self) -> bool {
        self.place.door.lock().ends_soon(self.place.number, self.place.came, Instant::now())
    }

    /// Returns when the connection must be closed.
    pub(crate) async fn must_go(&self) -> Reason {
        loop {
            let due = self.place.door.lock().overdue(self.place.number, self.place.came, Instant::now());
            let look_again = match due {
                Ok(look_again) => look_again,
                Err(reason) => return reason,
            };
            tokio::select! {
                () = self.place.leave.notified() => return Reason::Displaced,
                () = tokio::time::sleep_until(look_again.into()) => {}
            }
        }
    }
}

/// A request that is being answered.
pub(crate) struct Asking {
    guest: Guest,
}

impl Drop for Asking {
    fn drop(&mut self) {
        let place = &self.guest.place;
        place.door.lock().end(place.number, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(all: usize, strangers: usize, per_address: usize) -> State {
        State::new(Places { all, strangers, strangers_per_address: per_address })
    }

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn enter(state: &mut State, address: IpAddr, now: Instant) -> Option<Number> {
        state.enter(address, now, Arc::new(Notify::new()))
    }

    #[test]
    fn the_stranger_who_is_here_longest_goes_first() {
        let now = Instant::now();
        let mut door = state(10, 4, 2);
        let first = enter(&mut door, ip(1), now).unwrap();
        let second = enter(&mut door, ip(1), now).unwrap();
        let third = enter(&mut door, ip(1), now).unwrap();
        assert!(!door.entries.contains_key(&first), "its address has two places");
        for address in 2..=4 {
            enter(&mut door, ip(address), now).unwrap();
        }
        assert!(!door.entries.contains_key(&second), "strangers have four places");
        assert!(door.entries.contains_key(&third));
        assert_eq!((door.strangers.len(), door.counted.displaced), (4, 2));
    }

    #[test]
    fn who_is_known_stays_whoever_comes() {
        let now = Instant::now();
        let mut door = state(6, 3, 3);
        let known: Vec<Number> = (0..4)
            .map(|_| {
                let number = enter(&mut door, ip(1), now).unwrap();
                door.know(number);
                number
            })
            .collect();
        for _ in 0..1000 {
            assert!(enter(&mut door, ip(2), now).is_some(), "an honest one may be among them");
        }
        assert!(known.iter().all(|number| door.entries.contains_key(number)));
        assert_eq!(door.entries.len(), 6);
    }

    #[test]
    fn when_all_are_known_the_idlest_goes_and_nobody_who_is_busy() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let mut door = state(2, 1, 1);
        let (busy, idle) = {
            let mut come = || {
                let number = enter(&mut door, ip(1), now).unwrap();
                door.know(number);
                number
            };
            (come(), come())
        };
        door.begin(busy);
        let third = enter(&mut door, ip(1), later).unwrap();
        assert!(door.entries.contains_key(&busy) && !door.entries.contains_key(&idle));
        door.know(third);
        door.begin(third);
        assert_eq!(enter(&mut door, ip(1), later), None);
        assert_eq!(door.counted.full, 1);
        door.end(third, later);
        assert!(enter(&mut door, ip(1), later).is_some());
    }

    #[test]
    fn strangers_are_late_and_known_ones_idle() {
        let came = Instant::now();
        let mut door = state(4, 4, 4);
        let number = enter(&mut door, ip(1), came).unwrap();
        door.begin(number);
        assert_eq!(door.overdue(number, came, came), Ok(came + STRANGER_PATIENCE));
        assert!(!door.ends_soon(number, came, came));
        assert!(door.ends_soon(number, came, came + STRANGER_PATIENCE / 2));
        assert_eq!(
            door.overdue(number, came, came + STRANGER_PATIENCE),
            Err(Reason::Late),
            "also with a request that never ends"
        );
        door.know(number);
        assert!(!door.ends_soon(number, came, came + STRANGER_PATIENCE));
        assert!(door.overdue(number, came, came + 10 * IDLE_MAX).is_ok(), "a request may take its time");
        door.end(number, came);
        assert_eq!(door.overdue(number, came, came + IDLE_MAX), Err(Reason::Idle));
        assert_eq!((door.counted.late, door.counted.idle), (1, 1));
        door.leave(number);
        assert!(door.entries.is_empty() && door.idle.is_empty() && door.strangers_of.is_empty());
    }

    #[test]
    fn places_fit_and_networks_are_told_apart() {
        assert_eq!(Places::of(20_000), Places { all: 20_000, strangers: 2048, strangers_per_address: 1024 });
        assert_eq!(Places::of(768), Places { all: 768, strangers: 192, strangers_per_address: 96 });
        assert_eq!(Places::of(0), Places { all: 1, strangers: 1, strangers_per_address: 1 });
        let net = |text: &str| network(text.parse().unwrap());
        assert_eq!(net("2001:db8::1"), net("2001:db8::ffff:2"));
        assert_ne!(net("2001:db8:0:1::1"), net("2001:db8:0:2::1"));
        assert_eq!(net("::ffff:10.0.0.1"), net("10.0.0.1"));
    }
}
