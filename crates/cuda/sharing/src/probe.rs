//! When every request of a program is disturbed, what one takes without guests is not known, and so not what they cost. Then the gate
//! stays closed between requests for a second, now and then, which makes some of them calm.
//!
//! The host of such a program pauses within each request for longer than any linger, and its guest was there first.

/// From the end of a probe that told nothing to the next one; twice as long each time.
const AGAIN_AFTER_S: u32 = 30;
const DOUBLINGS_MAX: u32 = 5;

/// Decides when to probe.
#[derive(Clone, Debug, Default)]
pub(crate) struct Probe {
    /// Probes that told nothing.
    in_vain: u32,
    /// Until the next one may be.
    rest_s: u32,
}

impl Probe {
    /// A second has passed. `is_blind`: there were disturbed requests, and none that they could be compared with. True: probe in the next.
    pub(crate) fn second(&mut self, is_blind: bool) -> bool {
        self.rest_s = self.rest_s.saturating_sub(1);
        if !is_blind || self.rest_s > 0 {
            return false;
        }
        self.rest_s = AGAIN_AFTER_S << self.in_vain.min(DOUBLINGS_MAX);
        self.in_vain += 1;
        true
    }

    /// The cost is known.
    pub(crate) fn told(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds in which a program is probed that is always blind.
    fn probes(probe: &mut Probe, seconds: u32) -> Vec<u32> {
        (0..seconds).filter(|_| probe.second(true)).collect()
    }

    #[test]
    fn a_probe_that_tells_nothing_comes_again_ever_more_rarely() {
        let mut probe = Probe::default();
        assert_eq!(probes(&mut probe, 500), [0, 30, 90, 210, 450]);
        let often = probes(&mut probe, 100_000).len();
        assert!((100_000 / 960..110).contains(&(often as u32)), "{often}");
        probe.told();
        assert_eq!(probes(&mut probe, 40), [0, 30]);
    }

    #[test]
    fn a_program_that_can_be_measured_is_not_probed() {
        let mut probe = Probe::default();
        assert!((0..1000).all(|_| !probe.second(false)));
    }
}
