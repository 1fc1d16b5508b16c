//! Contexts that are merged with those of other sessions, as MPS does it on a real GPU: a fault of one ends all that are there. A session
//! that comes later has a context that lives.

use crate::config::SoftConfig;
use cuda_abi::CudaError;
use sharing::PageHandle;

pub(crate) struct Merged {
    page: PageHandle,
    /// How many faults there had been when this session came.
    before: u64,
}

impl Merged {
    /// `None` if contexts of sessions are their own.
    pub(crate) fn of(config: &SoftConfig) -> Option<Self> {
        let page = config.page.clone().filter(|_| config.is_merged)?;
        let (before, _) = page.page().faults();
        Some(Self { page, before })
    }

    /// A context of this session has died.
    pub(crate) fn tell(&self, error: CudaError) {
        if self.ended_by().is_none() {
            self.page.page().note_fault(error.code());
        }
    }

    /// The fault that has ended the contexts of this session.
    pub(crate) fn ended_by(&self) -> Option<CudaError> {
        let (count, code) = self.page.page().faults();
        (count != self.before).then(|| CudaError::from_code(code).unwrap_or(CudaError::UNKNOWN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_ends_the_sessions_that_are_there_and_none_that_comes_later() {
        let (_, page) = shared_words::page::create().unwrap();
        let config = |is_merged| SoftConfig { page: Some(page.clone()), is_merged, ..SoftConfig::default() };
        assert!(Merged::of(&config(false)).is_none());
        let (one, two) = (Merged::of(&config(true)).unwrap(), Merged::of(&config(true)).unwrap());
        assert_eq!((one.ended_by(), two.ended_by()), (None, None));
        one.tell(CudaError::ILLEGAL_ADDRESS);
        assert_eq!(one.ended_by(), Some(CudaError::ILLEGAL_ADDRESS));
        assert_eq!(two.ended_by(), Some(CudaError::ILLEGAL_ADDRESS));
        let later = Merged::of(&config(true)).unwrap();
        // The end of its contexts is no other fault.
        two.tell(CudaError::LAUNCH_FAILED);
        assert_eq!((later.ended_by(), page.page().faults()), (None, (1, 700)));
    }
}
