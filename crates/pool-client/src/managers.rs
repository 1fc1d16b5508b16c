//! The managers that a client knows, and which of them to ask.
//!
//! A manager that is gone refuses at once. One that is frozen takes every connection and answers nothing, while those
//! that follow it still name it as their leader. So where there are several, each is given little time at first, and
//! one that was silent is left alone for a while, whoever names it. A manager that is only slow is given more time
//! whenever it was not enough.

use std::time::{Duration, Instant};

use pool_auth::Credential;

use crate::dial::{Place, agent};
use crate::error::ClientError;

/// What a manager is given at first, where there are others: less than it takes them to replace a silent leader.
const ALLOWANCE_FIRST: Duration = Duration::from_secs(2);

/// More than anybody's patience.
const ALLOWANCE_MAX: Duration = Duration::from_secs(64);

/// For how long one that was silent is not asked while there are others: until they may have replaced it.
const SHUNNED_FOR: Duration = Duration::from_secs(2);

/// Leaders may name addresses that nobody configured; more than this is not a pool but a mistake.
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

    fn is_shunned(&self) -> bool {
        self.silent_at.is_some_and(|at| at.elapsed() < SHUNNED_FOR)
    }
}

impl Managers {
    pub(crate) fn of(credential: &Credential) -> Result<Self, ClientError> {
        let known = credential.managers.iter().map(|address| Known::new(Place::parse(address)?, credential));
        Ok(Self { known: known.collect::<Result<_, _>>()?, current: 0 })
    }

    /// Whom to ask, of how many, and how long to wait for the answer at most.
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
    pub(crate) fn was_silent(&mut self, place: &Place) {
        if let Some(known) = self.known.iter_mut().find(|known| known.place == *place) {
            known.allowance = (known.allowance * 2).min(ALLOWANCE_MAX);
            known.silent_at = Some(Instant::now());
        }
    }

    /// To the next one that is not shunned, unless somebody has gone on already.
    pub(crate) fn go_on(&mut self, from: &Place) {
        if self.known[self.current].place != *from {
            return;
        }
        let count = self.known.len();
        let others = (1..=count).map(|step| (self.current + step) % count);
        let next = others.clone().find(|index| !self.known[*index].is_shunned());
        self.current = next.unwrap_or((self.current + 1) % count);
    }

    /// To the one that leads, as another says. False if it cannot be asked, or was silent just now.
    pub(crate) fn go_to(&mut self, place: Place, credential: &Credential) -> bool {
        if let Some(index) = self.known.iter().position(|known| known.place == place) {
            if self.known[index].is_shunned() {
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
