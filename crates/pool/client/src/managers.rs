//! The managers that a client knows, and which of them to ask.
//!
//! A manager that is gone refuses at once. One that is frozen takes every connection and answers nothing, while those
//! that follow it still name it as their leader. So where there are several, each is given little time at first, and
//! one that was silent is left alone for a while, whichever manager names it. A manager that is only slow is
//! given more time whenever it was not enough.
//!
//! Time is an argument: the rules are tested without waiting.

use std::time::{Duration, Instant};

use pool_auth::Credential;

use crate::dial::{Place, agent};
use crate::error::ClientError;

/// What a manager is given at first, where there are others: less than it takes them to replace a silent leader.
const ALLOWANCE_FIRST: Duration = Duration::from_secs(2);

/// More than the patience of any caller.
const ALLOWANCE_MAX: Duration = Duration::from_secs(64);

/// For how long one that was silent is not asked while there are others: until they may have replaced it.
const SHUNNED_FOR: Duration = Duration::from_secs(2);

/// Leaders may name addresses that are in no configuration; more than this is not a pool but a mistake.
const MANAGERS_MAX: usize = 32;

pub(crate) struct Managers {
    known: Vec<Known>,
    /// The one to ask.
    current: usize,
}

struct Known {
    place: Place,
    agent: ureq::Agent,
    allowance: Duration,
    silent_at: Option<Instant>,
}

impl Known {
    fn new(place: Place, credential: &Credential) -> Result<Self, ClientError> {
        let agent = agent(&place, credential)?;
        Ok(Self { place, agent, allowance: ALLOWANCE_FIRST, silent_at: None })
    }

    fn is_shunned(&self, now: Instant) -> bool {
        self.silent_at.is_some_and(|at| now.saturating_duration_since(at) < SHUNNED_FOR)
    }
}

impl Managers {
    pub(crate) fn of(credential: &Credential) -> Result<Self, ClientError> {
        let known = credential.managers.iter().map(|address| Known::new(Place::parse(address)?, credential));
        Ok(Self { known: known.collect::<Result<_, _>>()?, current: 0 })
    }

    /// The manager to ask, the number of managers, and how long to wait for the answer at most.
    pub(crate) fn current(&self) -> (Place, ureq::Agent, usize, Duration) {
        let known = &self.known[self.current];
        let allowance = if self.known.len() > 1 { known.allowance } else { ALLOWANCE_MAX };
        (known.place.clone(), known.agent.clone(), self.known.len(), allowance)
    }

    /// It has answered, whatever it said.
    pub(crate) fn answered(&mut self, place: &Place) {
        if let Some(known) = self.known.iter_mut().find(|known| known.place == *place) {
            (known.allowance, known.silent_at) = (ALLOWANCE_FIRST, None);
        }
    }

    /// It did not answer in the time it had.
    pub(crate) fn was_silent(&mut self, place: &Place, now: Instant) {
        if let Some(known) = self.known.iter_mut().find(|known| known.place == *place) {
            known.allowance = (known.allowance * 2).min(ALLOWANCE_MAX);
            known.silent_at = Some(now);
        }
    }

    /// To the next one that is not shunned, unless another thread has gone on already.
    pub(crate) fn go_on(&mut self, from: &Place, now: Instant) {
        if self.known[self.current].place != *from {
            return;
        }
        let count = self.known.len();
        let others = (1..=count).map(|step| (self.current + step) % count);
        let next = others.clone().find(|index| !self.known[*index].is_shunned(now));
        self.current = next.unwrap_or((self.current + 1) % count);
    }

    /// To the one that leads, as another says. False if it cannot be asked, or was silent just now.
    pub(crate) fn go_to(&mut self, place: Place, credential: &Credential, now: Instant) -> bool {
        if let Some(index) = self.known.iter().position(|known| known.place == place) {
            if self.known[index].is_shunned(now) {
                return false;
            }
            self.current = index;
            return true;
        }
        match Known::new(place, credential) {
            Ok(known) if self.known.len() < MANAGERS_MAX => {
                self.known.push(known);
                self.current = self.known.len() - 1;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool_auth::{Authority, Identity};

    fn managers(count: u16) -> (Managers, Credential) {
        let authority = Authority::make(1_700_000_000_000).unwrap();
        let credential = Credential {
            managers: (1..=count).map(|number| format!("https://m{number}:7500")).collect(),
            authority: authority.certificate_pem().to_owned(),
            identity: Identity::Viewer("tester".to_owned()),
            token: None,
            certificate: None,
            key: None,
        };
        (Managers::of(&credential).unwrap(), credential)
    }

    fn place(number: u16) -> Place {
        Place(format!("m{number}:7500"))
    }

    fn current(managers: &Managers) -> (Place, Duration) {
        let (place, _, _, allowance) = managers.current();
        (place, allowance)
    }

    #[test]
    fn a_silent_manager_is_passed_over_for_a_while_and_then_asked_again() {
        let (mut managers, credential) = managers(3);
        let began = Instant::now();
        managers.was_silent(&place(1), began);
        managers.go_on(&place(1), began);
        managers.go_on(&place(2), began);
        assert_eq!(current(&managers).0, place(3));
        let soon = began + SHUNNED_FOR - Duration::from_millis(1);
        managers.go_on(&place(3), soon);
        assert_eq!(current(&managers).0, place(2), "the first was silent");
        assert!(!managers.go_to(place(1), &credential, soon), "also when another names it");
        assert_eq!(current(&managers).0, place(2));
        assert!(managers.go_to(place(1), &credential, began + SHUNNED_FOR));
        assert_eq!(current(&managers).0, place(1));
    }

    #[test]
    fn where_all_are_silent_the_next_one_is_asked() {
        let (mut managers, _) = managers(2);
        let now = Instant::now();
        managers.was_silent(&place(1), now);
        managers.was_silent(&place(2), now);
        managers.go_on(&place(1), now);
        assert_eq!(current(&managers).0, place(2));
        managers.go_on(&place(2), now);
        assert_eq!(current(&managers).0, place(1));
    }

    #[test]
    fn a_slow_manager_is_given_more_time_until_it_answers() {
        let (mut managers, _) = managers(2);
        let now = Instant::now();
        assert_eq!(current(&managers), (place(1), ALLOWANCE_FIRST));
        for doubled in 1..=5 {
            managers.was_silent(&place(1), now);
            assert_eq!(current(&managers).1, ALLOWANCE_FIRST * (1 << doubled));
        }
        managers.was_silent(&place(1), now);
        assert_eq!(current(&managers).1, ALLOWANCE_MAX, "bounded");
        managers.answered(&place(1));
        assert_eq!(current(&managers).1, ALLOWANCE_FIRST);
    }

    #[test]
    fn the_only_manager_has_all_the_time_there_is() {
        let (mut managers, _) = managers(1);
        let now = Instant::now();
        assert_eq!(current(&managers), (place(1), ALLOWANCE_MAX));
        managers.was_silent(&place(1), now);
        managers.go_on(&place(1), now);
        assert_eq!(current(&managers), (place(1), ALLOWANCE_MAX));
    }

    #[test]
    fn a_thread_that_comes_late_does_not_send_the_others_on() {
        let (mut managers, _) = managers(3);
        let now = Instant::now();
        managers.go_on(&place(1), now);
        managers.go_on(&place(1), now);
        assert_eq!(current(&managers).0, place(2), "the second thread had asked the first manager too");
    }

    #[test]
    fn managers_that_others_name_are_remembered_up_to_a_bound() {
        let (mut managers, credential) = managers(1);
        let now = Instant::now();
        for number in 2..=MANAGERS_MAX as u16 {
            assert!(managers.go_to(place(number), &credential, now), "{number}");
            assert!(managers.go_to(place(number), &credential, now), "{number}, known by now");
        }
        assert_eq!(managers.current().2, MANAGERS_MAX);
        assert!(!managers.go_to(place(100), &credential, now));
        assert_eq!(managers.current().2, MANAGERS_MAX);
        assert!(managers.go_to(place(1), &credential, now), "those that are known are found");
    }
}
