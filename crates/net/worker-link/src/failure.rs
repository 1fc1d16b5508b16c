//! Why a worker does not serve this program.

use cuda_abi::CudaError;
use std::time::Duration;
use thiserror::Error;
use transport::Address;

/// Why a worker does not serve this program, as a sentence for its user.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// The worker refused.
    #[error("worker {address}: {text}")]
    Refused {
        /// The worker.
        address: Address,
        /// The error that a call of the CUDA API returns for it.
        code: CudaError,
        /// The worker's words.
        text: String,
    },
    /// The worker has too much to do for the moment. It is asked again.
    #[error("worker {address} is busy: {why}")]
    Busy {
        /// The worker.
        address: Address,
        /// What happened.
        why: String,
    },
    /// The worker cannot be reached, or what answers at its address is no worker of this version.
    #[error("cannot use worker {address}: {why}")]
    Unusable {
        /// The worker.
        address: Address,
        /// What happened.
        why: String,
    },
    /// The worker was asked again until the program's patience was at its end.
    #[error(
        "{last}; given up after {tries} tries in {:.1} s (DXPU_PATIENCE says how long to try)",
        .waited.as_secs_f64()
    )]
    GivenUp {
        /// What happened the last time.
        last: Box<Failure>,
        /// How often the worker was asked.
        tries: u32,
        /// For how long.
        waited: Duration,
    },
}

impl Failure {
    /// The error that cuInit returns for it.
    pub fn code(&self) -> CudaError {
        match self {
            Self::Refused { code, .. } => *code,
            Self::Busy { .. } => CudaError::SYSTEM_NOT_READY,
            Self::Unusable { .. } => CudaError::DEVICE_UNAVAILABLE,
            Self::GivenUp { last, .. } => last.code(),
        }
    }
}
