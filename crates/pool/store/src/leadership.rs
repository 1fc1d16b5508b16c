//! Leadership: which process may write.
//!
//! ```text
//!              campaign                    resign, or no keep_alive for a ttl
//! (vacant) ------------------> led by A --------------------------------------> (vacant)
//! ```
//!
//! Clocks decide only how soon a silent leader is replaced. That two leaders' writes never both succeed is decided by
//! revisions: every campaign won makes a new leadership record, and [`Leadership::condition`] names its revision.

use std::time::Duration;

use crate::record::Revision;
use crate::transaction::Condition;

/// Below this are the records of elections: `leader/<name>`, whose value is the leader's address.
pub const LEADER_PREFIX: &str = "leader/";

/// A process that wants to lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidacy {
    /// What is to be led, such as `manager`.
    pub name: String,
    /// Where clients of the leader are sent.
    pub address: String,
    /// How long a leader may be silent. Engines may round it up: etcd counts whole seconds, two at least.
    pub ttl: Duration,
}

impl Candidacy {
    /// The record that the leader has made.
    pub fn key(&self) -> String {
        key(&self.name)
    }
}

pub(crate) fn key(name: &str) -> String {
    format!("{LEADER_PREFIX}{name}")
}

/// How a [`Candidacy`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Campaign {
    /// We lead.
    Won(Leadership),
    /// Another does.
    Led(Leader),
}

/// The leader of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Where it can be reached.
    pub address: String,
    /// When it began; a later leader has a greater one.
    pub tenure: Revision,
}

/// The right to write, for as long as its record stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// What is led.
    pub name: String,
    /// The record that stands for it.
    pub key: String,
    /// The revision that made the record. Stays for the whole of this leadership, and grows from leader to leader.
    pub tenure: Revision,
    /// The record's revision now; [`Store::fence`](crate::Store::fence) moves it.
    pub revision: Revision,
    /// How long it lasts without [`Store::keep_alive`](crate::Store::keep_alive), as the engine granted it.
    pub ttl: Duration,
    /// The engine's own name for it.
    pub(crate) handle: i64,
}

impl Leadership {
    /// What each transaction of a leader must carry.
    pub fn condition(&self) -> Condition {
        Condition::modified_at(self.key.clone(), self.revision)
    }
}
