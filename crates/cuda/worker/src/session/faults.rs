//! Whose fault an error is: the device's or the program's.
//!
//! A protected program goes on elsewhere when its device fails. So it must not see the device's error: the session ends
//! with [`cuda_wire::Notice::DeviceLost`] before a reply carries it.

use cuda_abi::CudaError;

/// Where an error comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The answer of a command, whose arguments are the program's.
    Command,
    /// Work in a stream, or a wait for it.
    Work,
}

/// Whether an error says that the device has failed.
///
/// | code | name | whose |
/// |---|---|---|
/// | 214 | ECC_UNCORRECTABLE | the device's |
/// | 220 | NVLINK_UNCORRECTABLE | the device's |
/// | 46 | DEVICE_UNAVAILABLE | the device's |
/// | 999 | UNKNOWN | the device's: the driver has no name for what the program did |
/// | 100, 101 | NO_DEVICE, INVALID_DEVICE | the device's if work met it; a command may name a device that there never was |
/// | all others, such as 700, 710, 716, 718, 719 | | the program's |
pub(crate) fn is_devices(error: CudaError, origin: Origin) -> bool {
    match error {
        CudaError::ECC_UNCORRECTABLE
        | CudaError::NVLINK_UNCORRECTABLE
        | CudaError::DEVICE_UNAVAILABLE
        | CudaError::UNKNOWN => true,
        CudaError::NO_DEVICE | CudaError::INVALID_DEVICE => origin == Origin::Work,
        _ => false,
    }
}

/// Whether an error may be the fault of another session, where contexts are merged: it has ended the contexts of all, and each session
/// meets it. Whose it was is not known here. The client finds out: a program's own fault comes again in the next session.
///
/// A command may name a context that the program itself has ended (4, 709), so these count for work alone.
pub(crate) fn may_be_anothers(error: CudaError, origin: Origin) -> bool {
    let is_answer_to_names = matches!(error, CudaError::DEINITIALIZED | CudaError::CONTEXT_IS_DESTROYED);
    error.ends_merged_contexts() && (origin == Origin::Work || !is_answer_to_names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_abi::ERRORS;

    #[test]
    fn what_ends_a_context_may_be_another_sessions_and_is_never_the_devices() {
        let of = |origin| {
            let codes = ERRORS.iter().map(|row| row.0);
            let is_one = |code: &u32| may_be_anothers(CudaError::from_code(*code).unwrap(), origin);
            codes.filter(is_one).collect::<Vec<_>>()
        };
        let sticky = [700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 805, 806, 807, 808, 809, 810];
        assert_eq!(of(Origin::Command), sticky);
        let mut of_work = of(Origin::Work);
        of_work.retain(|code| !sticky.contains(code));
        assert_eq!(of_work, [4, 709]);
        let both = |code: &u32| is_devices(CudaError::from_code(*code).unwrap(), Origin::Work);
        assert!(!of(Origin::Work).iter().any(both));
    }

    #[test]
    fn these_errors_and_no_others_are_the_devices() {
        let of = |origin| {
            let codes = ERRORS.iter().map(|row| row.0);
            let is_devices = |code: &u32| is_devices(CudaError::from_code(*code).unwrap(), origin);
            codes.filter(is_devices).collect::<Vec<_>>()
        };
        assert_eq!(of(Origin::Work), [46, 100, 101, 214, 220, 999]);
        assert_eq!(of(Origin::Command), [46, 214, 220, 999]);
        let programs = [700, 710, 716, 718, 719];
        assert!(programs.iter().all(|code| !of(Origin::Work).contains(code)));
        assert!(!is_devices(CudaError::from_code(12345).unwrap(), Origin::Work), "a code without a name");
    }
}
