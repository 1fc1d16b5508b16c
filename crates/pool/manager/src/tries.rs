//! Logins that failed, by address: a pure core, told the time.
//!
//! A token is too long to guess; this is for the log and the audit trail, which a script that guesses all the same would
//! fill, and for the person at the login, who is told to stop and look.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// Failed logins of one address in one window.
pub(crate) const TRIES_MAX: u32 = 10;

/// So long the tries of an address count, from the first one on.
const WINDOW_MS: u64 = 60_000;

/// Addresses that are remembered: beyond that, those go whose window ends first.
const ADDRESSES_MAX: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Window {
    began_ms: u64,
    failed: u32,
}

/// Who has failed how often.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    windows: HashMap<IpAddr, Window>,
}

/// Addresses of one owner: a machine with IPv6 has too many to count each.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

impl Tries {
    /// Whether an address may try. If not: how many milliseconds it must wait.
    pub(crate) fn may(&mut self, address: IpAddr, now_ms: u64) -> Result<(), u64> {
        let address = network(address);
        let Some(window) = self.windows.get(&address).copied() else { return Ok(()) };
        let ends_ms = window.began_ms.saturating_add(WINDOW_MS);
        if now_ms >= ends_ms {
            self.windows.remove(&address);
            return Ok(());
        }
        if window.failed < TRIES_MAX { Ok(()) } else { Err(ends_ms - now_ms) }
    }

    /// A login failed.
    pub(crate) fn failed(&mut self, address: IpAddr, now_ms: u64) {
        self.make_room(now_ms);
        let window = self.windows.entry(network(address)).or_insert(Window { began_ms: now_ms, failed: 0 });
        window.failed = window.failed.saturating_add(1);
    }

    /// A login succeeded: there is a person with a token.
    pub(crate) fn succeeded(&mut self, address: IpAddr) {
        self.windows.remove(&network(address));
    }

    fn make_room(&mut self, now_ms: u64) {
        if self.windows.len() < ADDRESSES_MAX {
            return;
        }
        self.windows.retain(|_, window| now_ms < window.began_ms.saturating_add(WINDOW_MS));
        let oldest =
            self.windows.iter().min_by_key(|(_, window)| window.began_ms).map(|(address, _)| *address);
        if let Some(oldest) = oldest.filter(|_| self.windows.len() >= ADDRESSES_MAX) {
            self.windows.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn ten_failures_close_the_login_of_one_address_for_the_rest_of_a_minute() {
        let mut tries = Tries::default();
        for _ in 0..TRIES_MAX {
            assert_eq!(tries.may(ip("10.0.0.1"), 5000), Ok(()));
            tries.failed(ip("10.0.0.1"), 5000);
        }
        assert_eq!(tries.may(ip("10.0.0.1"), 35_000), Err(30_000));
        assert_eq!(tries.may(ip("10.0.0.2"), 35_000), Ok(()), "another address is not concerned");
        assert_eq!(tries.may(ip("10.0.0.1"), 65_000), Ok(()));
    }

    #[test]
    fn a_login_that_succeeds_makes_up_for_those_that_failed() {
        let mut tries = Tries::default();
        for _ in 0..TRIES_MAX {
            tries.failed(ip("2001:db8::1"), 0);
        }
        assert!(tries.may(ip("2001:db8::ffff"), 1).is_err(), "addresses of one machine count together");
        tries.succeeded(ip("2001:db8::2"));
        assert_eq!(tries.may(ip("2001:db8::1"), 2), Ok(()));
    }

    #[test]
    fn any_number_of_addresses_costs_a_bounded_amount() {
        let mut tries = Tries::default();
        for number in 0..3 * ADDRESSES_MAX as u32 {
            tries.failed(IpAddr::from(std::net::Ipv4Addr::from_bits(number)), u64::from(number));
        }
        assert!(tries.windows.len() <= ADDRESSES_MAX);
    }
}
