//! Why a command about an image was not carried out.

use cuda_abi::CudaError;
use cuda_driver::{Driver, StoreError};

/// An error for the client, with words for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) error: CudaError,
    /// `None`: the driver has the words.
    words: Option<String>,
}

impl Refusal {
    pub(crate) fn new(error: CudaError, words: impl Into<String>) -> Self {
        Self { error, words: Some(words.into()) }
    }

    /// The words, if they are not the driver's.
    pub(crate) fn own_words(&self) -> Option<&str> {
        self.words.as_deref()
    }

    /// The words. The driver gives its own once.
    pub(crate) fn words(&self, driver: &dyn Driver) -> String {
        let own = self.words.clone();
        own.or_else(|| driver.take_message()).unwrap_or_else(|| format!("the driver refused: {}", self.error))
    }
}

/// The driver refused.
impl From<CudaError> for Refusal {
    fn from(error: CudaError) -> Self {
        Self { error, words: None }
    }
}

/// The guardian refused. Its codes are none of those that mean a broken device.
impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let code = match error {
            StoreError::Lost(_) => CudaError::SYSTEM_NOT_READY,
            StoreError::Refused(_) => CudaError::NOT_PERMITTED,
        };
        Self::new(code, error.to_string())
    }
}
