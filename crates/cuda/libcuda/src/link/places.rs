//! Where a program goes on whose session is over, and in which order places are tried.
//!
//! ```text
//!   (the target of a move) ▸ own worker ▸ standbys ▸ round again for a moment ▸ what the keeper says ▸ … until patience ends
//! ```
//!
//! A place that refuses for good is not asked again. When no place is left, that is said at once.

use std::time::Duration;
use transport::Address;
use worker_link::Config;

/// How long the places that are known are tried before the keeper is asked for another one. A worker has another session
/// ready within a moment, if it has one at all.
const KNOWN_PLACES_FIRST: Duration = Duration::from_secs(1);

/// A worker, how to reach it, and where the image can be fetched from.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) address: Address,
    pub(super) config: Config,
    /// A guardian that has the image, if another one than that of the last session; empty: none is known.
    pub(super) guardian: String,
}

impl Place {
    /// The worker that a program starts with.
    pub(super) fn first(address: &Address, config: &Config) -> Self {
        Self { address: address.clone(), config: config.clone(), guardian: String::new() }
    }

    /// The standbys that the configuration names.
    pub(super) fn standbys(config: &Config) -> Vec<Self> {
        let at = |address: &Address| {
            let config = Config { workers: vec![address.clone()], names: Vec::new(), ..config.clone() };
            Self { address: address.clone(), config, guardian: String::new() }
        };
        config.standbys.iter().map(at).collect()
    }

    /// A place that the keeper named. What it leaves open is as for the worker that `config` is for.
    pub(super) fn named(place: &keeper::Place, config: &Config) -> Result<Self, String> {
        let address: Address =
            place.address.parse().map_err(|error| format!("{}: {error}", place.address))?;
        let (ca_file, fingerprint) = (place.ca_file.as_deref(), place.fingerprint.as_deref());
        let config = config.at(&address, &place.name, &place.token_file, ca_file, fingerprint)?;
        Ok(Self { address, config, guardian: place.guardian.clone() })
    }
}

/// So many sessions in a row that differ by chance say that it is no chance. Of 240 sessions of an H200's driver one did.
const ANEW_MAX: u32 = 5;

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The same place may do later: it is busy, or cannot be reached.
    Again(String),
    /// A new session of the same place may do at once: this one differs from the lost one by chance.
    Anew(String),
    /// Another place may do: this one refuses, or the program cannot go on there.
    Elsewhere(String),
    /// No place will do.
    Final(String),
}

impl Failure {
    pub(super) fn why(&self) -> &str {
        match self {
            Self::Again(why) | Self::Anew(why) | Self::Elsewhere(why) | Self::Final(why) => why,
        }
    }
}

/// What to do next.
pub(super) enum Next {
    /// Open a session there.
    Try(Box<Place>),
    /// All have failed for now: pause, and come again.
    Pause,
    /// Ask the keeper for a place.
    AskKeeper,
    /// There is none.
    GiveUp(String),
}

/// The search for a place. Times are those since it began.
pub(super) struct Search {
    places: Vec<Candidate>,
    /// Which of them is next.
    next: usize,
    /// What the keeper named last.
    given: Option<Place>,
    /// That place is being tried.
    given_tried: Option<Place>,
    /// How many further sessions may be tried because one differed by chance.
    anew_left: u32,
    has_keeper: bool,
    last_why: String,
}

struct Candidate {
    place: Place,
    is_refused: bool,
}

impl Search {
    /// A search among these places, in their order. `why`: what happened that makes it necessary.
    pub(super) fn new(places: Vec<Place>, has_keeper: bool, why: String) -> Self {
        let places = places.into_iter().map(|place| Candidate { place, is_refused: false }).collect();
        Self {
            places,
            next: 0,
            given: None,
            given_tried: None,
            anew_left: ANEW_MAX,
            has_keeper,
            last_why: why,
        }
    }

    /// What to do at `now` with this much patience in all.
    pub(super) fn next(&mut self, now: Duration, patience: Duration) -> Next {
        if let Some(place) = self.given.take() {
            self.given_tried = Some(place.clone());
            return Next::Try(Box::new(place));
        }
        self.given_tried = None;
        while let Some(candidate) = self.places.get(self.next) {
            if !candidate.is_refused {
                return Next::Try(Box::new(candidate.place.clone()));
            }
            self.next += 1;
        }
        let is_any_left = self.places.iter().any(|candidate| !candidate.is_refused);
        if now >= patience || (!is_any_left && !self.has_keeper) {
            return Next::GiveUp(self.last_why.clone());
        }
        self.next = 0;
        match self.has_keeper && (!is_any_left || now >= KNOWN_PLACES_FIRST.min(patience / 2)) {
            true => Next::AskKeeper,
            false => Next::Pause,
        }
    }

    /// The attempt at the place that [`Search::next`] named has failed.
    pub(super) fn failed(&mut self, failure: &Failure) {
        self.last_why = failure.why().to_owned();
        let is_chance = matches!(failure, Failure::Anew(_));
        let given = self.given_tried.take();
        if is_chance && self.anew_left > 0 {
            self.anew_left -= 1;
            self.given = given;
            return;
        }
        if given.is_some() {
            return;
        }
        if let Some(candidate) = self.places.get_mut(self.next) {
            candidate.is_refused |= is_chance || matches!(failure, Failure::Elsewhere(_));
        }
        self.next += 1;
    }

    /// The keeper names a place.
    pub(super) fn give(&mut self, place: Place) {
        self.given = Some(place);
    }

    /// The keeper is gone.
    pub(super) fn keeper_is_gone(&mut self) {
        self.has_keeper = false;
    }

    /// Whether there are other places than the one that is tried.
    pub(super) fn has_others(&self) -> bool {
        self.has_keeper || self.places.len() > 1
    }

    /// Why the last attempt failed.
    pub(super) fn last_why(&self) -> &str {
        &self.last_why
    }
}

#[cfg(test)]
mod tests;
