//! The words of both sides.

use serde::{Deserialize, Serialize};

/// Where a program may go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// A worker's address: "tls:host:port", "tcp:…" or "unix:…".
    pub address: String,
    /// The name that its certificate must have; empty if none.
    #[serde(default)]
    pub name: String,
    /// The file with the token; empty if none.
    #[serde(default)]
    pub token_file: String,
    /// The file with the authority that the worker's certificate must come from.
    #[serde(default)]
    pub ca_file: Option<String>,
    /// The fingerprint that the worker's certificate must have.
    #[serde(default)]
    pub fingerprint: Option<String>,
    /// Where the image can be fetched from; empty if that is not known.
    #[serde(default)]
    pub guardian: String,
}

/// What the keeper had asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// [`ToProgram::Move`].
    Move,
    /// [`ToProgram::Suspend`].
    Suspend,
    /// [`ToProgram::Drill`].
    Drill,
}

/// How well a link is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// A loss is survived.
    Protected,
    /// A loss is the end.
    Unprotected,
    /// The first image is not safe yet.
    Starting,
    /// The image is lost with its guardian, and a new one is not safe yet: a loss now is the end.
    Degraded,
}

/// What the program's library says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FromProgram {
    /// The first line of every connection: which worker this link has.
    Attached {
        /// The address as in `DXPU_WORKER`.
        worker: String,
        /// The program's process.
        pid: u32,
        /// The image's name, in hexadecimal digits; empty without images.
        image: String,
    },
    /// The session is lost, and another session of the same worker could not be had, or the device itself failed. The
    /// keeper answers [`ToProgram::Place`] or [`ToProgram::Nowhere`].
    Lost {
        /// The worker.
        worker: String,
        /// What happened, in words.
        why: String,
        /// The device failed: no session of the same worker will do.
        is_device: bool,
    },
    /// The program goes on there.
    Resumed {
        /// The worker.
        worker: String,
        /// How long the program waited, in milliseconds.
        gap_ms: u64,
        /// Bytes that were told again.
        replayed_bytes: u64,
    },
    /// The answer to [`ToProgram::Move`]: the program goes on at the target, and the source may be released.
    Moved {
        /// The target.
        worker: String,
    },
    /// It cannot be done, and the program goes on where it was.
    Refused {
        /// What.
        what: What,
        /// Why, in words.
        why: String,
    },
    /// The answer to [`ToProgram::Suspend`]: the session is over, and the image is safe.
    Parked {
        /// Bytes of the image.
        image_bytes: u64,
    },
    /// A parked program calls CUDA: the keeper answers [`ToProgram::Place`] when it has a GPU again, or
    /// [`ToProgram::Nowhere`].
    Unpark {},
    /// How well the link is protected: at every change, and at most once a second.
    Protection {
        /// The state.
        state: State,
        /// Why, in words; empty if all is well.
        why: String,
        /// The last safe cut; 0 if there is none.
        cut: u64,
        /// How many boxes have its image.
        #[serde(default)]
        level: u8,
        /// How old it is, in milliseconds.
        safe_age_ms: u64,
        /// Bytes of live device memory at the last cut.
        live_bytes: u64,
        /// Bytes that the journal keeps.
        journal_bytes: u64,
        /// How long the last cut held work back, in microseconds.
        pause_us: u32,
        /// How long a resume would take, in milliseconds.
        predicted_ms: u64,
    },
    /// The answer to [`ToProgram::Drill`].
    Drilled {
        /// How long it took, in milliseconds.
        took_ms: u64,
        /// The first difference, if there was one.
        difference: Option<String>,
    },
}

/// What the keeper says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToProgram {
    /// Go on there.
    Place {
        /// Where.
        place: Place,
    },
    /// There is no place: the program gets CUDA's error with this sentence.
    Nowhere {
        /// Why.
        why: String,
    },
    /// There is no place yet, and the program waits for one whatever its patience: that begins anew with this word. An answer
    /// follows.
    Wait {},
    /// Go on there, although nothing is lost; [`FromProgram::Moved`] follows.
    Move {
        /// Where.
        place: Place,
    },
    /// End the session and keep the image; [`FromProgram::Parked`] follows.
    Suspend {},
    /// Resume a copy there from the last image, replay, compare, and throw it away; [`FromProgram::Drilled`] follows.
    Drill {
        /// Where.
        place: Place,
    },
}
