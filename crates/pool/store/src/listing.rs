//! All records below a prefix, as they were at one moment.

use std::fmt;

use crate::error::StoreError;
use crate::record::{Record, Revision};

/// What a listing carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Keys and values.
    Records,
    /// Keys; every value is empty.
    Keys,
}

type Pages = Box<dyn Iterator<Item = Result<Vec<Record>, StoreError>> + Send>;

/// Pages of records in the order of their keys (by bytes), all from one revision.
///
/// A listing holds a snapshot open: read it to the end or drop it, do not keep it.
pub struct Listing {
    revision: Revision,
    pages: Pages,
}

impl Listing {
    pub(crate) fn new(
        revision: Revision,
        pages: impl Iterator<Item = Result<Vec<Record>, StoreError>> + Send + 'static,
    ) -> Self {
        Self { revision, pages: Box::new(pages) }
    }

    /// The moment of the snapshot; watch from the [`Revision::next`] one to see what happens after it.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// All pages as one.
    pub fn records(self) -> Result<Vec<Record>, StoreError> {
        let mut all = Vec::new();
        for page in self.pages {
            all.append(&mut page?);
        }
        Ok(all)
    }
}

impl Iterator for Listing {
    type Item = Result<Vec<Record>, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.pages.next()
    }
}

impl fmt::Debug for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listing").field("revision", &self.revision).finish_non_exhaustive()
    }
}
