//! What a binary of `make demo` says of itself: the compiler had a third of the work with it, and it is slow.

use crate::support::exit::{Exit, Failure};

/// Whether this binary was compiled by a profile that does not inherit from `release`. `build.rs` finds out.
pub(crate) const IS_QUICK: bool = cfg!(quick_build);

pub(crate) const WHAT_TO_DO: &str =
    "`make build` makes the fast one, target/release/dxpu; `make install` installs it";

/// The version, for `dxpu --version`. `scripts/dist` and `deploy/package` look for "quick build" in it and refuse such a binary.
pub(crate) const VERSION: &str = version(IS_QUICK);

const fn version(is_quick: bool) -> &'static str {
    if is_quick {
        concat!(env!("CARGO_PKG_VERSION"), " (quick build, slow: `make build` makes the fast one)")
    } else {
        env!("CARGO_PKG_VERSION")
    }
}

/// Refuses to measure with a quick build.
pub(crate) fn refuse_to_measure() -> Result<(), Failure> {
    refused(IS_QUICK)
}

fn refused(is_quick: bool) -> Result<(), Failure> {
    if is_quick {
        let what = "this is a quick build: what it measures says nothing about dxpu";
        return Err(Failure::new(Exit::Unsupported, what, WHAT_TO_DO));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_build_says_so_and_measures_nothing() {
        assert_eq!(version(false), env!("CARGO_PKG_VERSION"));
        assert!(version(true).contains(" (quick build"), "{}", version(true));
        assert!(refused(false).is_ok());
        let refusal = refused(true).expect_err("a quick build");
        assert_eq!(refusal.exit, Exit::Unsupported);
        assert!(refusal.hint.contains("target/release/dxpu"), "{}", refusal.hint);
    }
}
