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

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_abi::ERRORS;

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
