//! The version of what agents and clients say to managers.
//!
//! A manager takes requests of its own version and of older ones down to [`PROTOCOL_OLDEST`], so that managers are upgraded
//! first, and boxes, hosts and borrowers one by one afterwards.

use crate::{ErrorCode, ErrorDetail};

/// The header in which a client says its version, and a manager its own.
pub const PROTOCOL_HEADER: &str = "dxpu-protocol";

/// What this build speaks. It grows when a request or a report gets something that an older manager would refuse.
///
/// - 1: everything before there was this header;
/// - 2: limits on the time of leases, idle leases;
/// - 3: classes of leases, seats for guests;
/// - 4: counters of multiprocessors and memory bandwidth. Managers ignore counters they do not know from here on.
///   Parts of GPUs. Seats whose guests must leave, and what is left to a guest there.
pub const PROTOCOL: u32 = 4;

/// The oldest version that this build's managers take: that of the release before.
pub const PROTOCOL_OLDEST: u32 = 1;

/// Whether a manager takes requests of a client that says this of itself, and if not, what it answers.
///
/// A caller that says nothing is taken as it is: a browser, Prometheus, a dxpu from before there was the header.
pub fn check_protocol(said: Option<&str>) -> Result<(), ErrorDetail> {
    check_between(said, PROTOCOL_OLDEST, PROTOCOL)
}

fn check_between(said: Option<&str>, oldest: u32, newest: u32) -> Result<(), ErrorDetail> {
    let refused = |message: String, hint: &str| {
        Err(ErrorDetail { code: ErrorCode::BadRequest, message, hint: hint.to_owned() })
    };
    let Some(said) = said else { return Ok(()) };
    match said.trim().parse::<u32>() {
        Err(_) => refused(
            format!("the header {PROTOCOL_HEADER} is not a number"),
            "leave the header out, or send the version that dxpu sends",
        ),
        Ok(version) if version > newest => refused(
            format!(
                "this dxpu speaks version {version} of the protocol, and the manager speaks version {newest}"
            ),
            "upgrade the managers first, then this machine; until then use the dxpu of before here",
        ),
        Ok(version) if version < oldest => refused(
            format!(
                "this dxpu speaks version {version} of the protocol, and the manager takes versions {oldest} to {newest}"
            ),
            "upgrade dxpu on this machine",
        ),
        Ok(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_before_is_taken_and_others_are_told_what_to_do() {
        for fine in [None, Some("3"), Some("4"), Some("5"), Some(" 5 ")] {
            assert_eq!(check_between(fine, 3, 5), Ok(()), "{fine:?}");
        }
        let newer = check_between(Some("6"), 3, 5).unwrap_err();
        assert!(newer.hint.starts_with("upgrade the managers first"), "{newer:?}");
        let older = check_between(Some("2"), 3, 5).unwrap_err();
        assert_eq!(older.hint, "upgrade dxpu on this machine");
        assert!(older.message.contains("versions 3 to 5"), "{older:?}");
        assert_eq!(check_between(Some("x"), 3, 5).unwrap_err().code, ErrorCode::BadRequest);
        const { assert!(PROTOCOL_OLDEST < PROTOCOL, "the release before must be taken") };
    }
}
