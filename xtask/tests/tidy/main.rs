//! Rules of this repository that no compiler checks, held by a test each. A message says which rule is broken, where, and
//! what to do about it.
//!
//! Rules with a list of exceptions are exact in both directions: an entry that is no longer needed fails too, so that the
//! lists only ever get shorter by being true.

mod binary;
mod built_once;
mod errors;
mod first_look;
mod functions;
mod layout;
mod locks;
mod markdown;
mod pure;
mod tree;
