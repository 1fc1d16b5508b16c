//! What can be wrong with PTX text: always a line, a name and a reason.

use std::fmt;

/// A text that is not PTX, or PTX that this engine does not execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxError {
    /// Line of the text, counted from 1; 0 when the error is about the module as a whole.
    pub line: u32,
    /// The instruction, directive or symbol the error is about.
    pub subject: String,
    /// Why it was refused.
    pub reason: String,
}

impl PtxError {
    /// An error about `subject` at `line`.
    pub fn new(line: u32, subject: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { line, subject: subject.into(), reason: reason.into() }
    }
}

impl fmt::Display for PtxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            write!(f, "ptx: `{}`: {}", self.subject, self.reason)
        } else {
            write!(f, "ptx line {}: `{}`: {}", self.line, self.subject, self.reason)
        }
    }
}

impl std::error::Error for PtxError {}

/// Result of everything that reads PTX.
pub(crate) type Result<T> = std::result::Result<T, PtxError>;
