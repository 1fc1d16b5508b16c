//! The paper's measurements: rows of a CSV file, each with what the closed form needs to explain it.
//!
//! The rows are data. What is *inferred* from the paper's text to make a row predictable (a mean kernel duration that is
//! published for one batch size only, say) is done by [`inputs_of`], in the open, and marked as inferred.

mod families;
mod inputs;
mod rows;

pub use families::{Family, Target, family_of, target_of};
pub use inputs::{Explained, NoPredictor, Source, inputs_of};
pub use rows::{PaperError, Row, paper_rows, parse};
