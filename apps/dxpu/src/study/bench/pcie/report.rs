//! The figures, as JSON and as tables, and which of them miss their mark.

use bench_harness::link::Fairness;
use serde_json::{Value, json};

/// Nanoseconds for each TLP, both ends.
pub(super) struct Conversion {
    pub(super) plain_ns: f64,
    pub(super) encrypted_ns: f64,
    pub(super) batched_ns: f64,
    pub(super) encrypted_batched_ns: f64,
}

/// One network, bare and under a link.
#[derive(Clone, Copy)]
pub(super) struct Shell {
    pub(super) name: &'static str,
    pub(super) raw_rtt_us: f64,
    pub(super) rtt_us: f64,
    pub(super) rtt_encrypted_us: f64,
    pub(super) raw_gbps: f64,
    pub(super) write_gbps: f64,
    pub(super) write_encrypted_gbps: f64,
    pub(super) copier_write_gbps: f64,
    pub(super) copier_read_gbps: f64,
    pub(super) copier_push_gbps: f64,
}

impl Shell {
    /// The best of each figure.
    pub(super) fn best_of(&self, other: &Self) -> Self {
        Self {
            name: self.name,
            raw_rtt_us: self.raw_rtt_us.min(other.raw_rtt_us),
            rtt_us: self.rtt_us.min(other.rtt_us),
            rtt_encrypted_us: self.rtt_encrypted_us.min(other.rtt_encrypted_us),
            raw_gbps: self.raw_gbps.max(other.raw_gbps),
            write_gbps: self.write_gbps.max(other.write_gbps),
            write_encrypted_gbps: self.write_encrypted_gbps.max(other.write_encrypted_gbps),
            copier_write_gbps: self.copier_write_gbps.max(other.copier_write_gbps),
            copier_read_gbps: self.copier_read_gbps.max(other.copier_read_gbps),
            copier_push_gbps: self.copier_push_gbps.max(other.copier_push_gbps),
        }
    }
}

/// The clock of a measurement.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Clock {
    Real,
    Virtual,
}

/// Reads with so many tags of such a size at such a distance.
pub(super) struct Reads {
    pub(super) clock: Clock,
    pub(super) delay_us: f64,
    pub(super) tags: u16,
    pub(super) read_bytes: u32,
    /// Of one read alone.
    pub(super) rtt_us: f64,
    pub(super) link_gbps: f64,
    pub(super) read_gbps: f64,
    pub(super) push_gbps: f64,
    pub(super) write_gbps: f64,
}

impl Reads {
    fn equation_1_gbps(&self) -> f64 {
        f64::from(self.tags) * f64::from(self.read_bytes) / (self.rtt_us * 1e3)
    }

    fn expected_gbps(&self) -> f64 {
        self.equation_1_gbps().min(self.link_gbps)
    }

    fn error_pct(&self) -> f64 {
        100.0 * (self.read_gbps / self.expected_gbps() - 1.0)
    }
}

pub(super) struct Report {
    pub(super) conversion: Conversion,
    pub(super) shells: Vec<Shell>,
    pub(super) reads: Vec<Reads>,
    pub(super) fairness: Fairness,
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

const CONVERSION_NS_MAX: f64 = 400.0;
const CONVERSION_ENCRYPTED_NS_MAX: f64 = 800.0;
const RTT_OVER_RAW_MAX: f64 = 1.6;
const WRITE_OF_RAW_MIN: f64 = 0.7;
const READ_ERROR_PCT_MAX: f64 = 5.0;
const JAIN_MIN: f64 = 0.95;

impl Report {
    pub(super) fn object(&self) -> Value {
        let shell = |shell: &Shell| {
            let value = json!({
                "raw_rtt_us_p50": rounded(shell.raw_rtt_us),
                "rtt_us_p50": rounded(shell.rtt_us),
                "rtt_encrypted_us_p50": rounded(shell.rtt_encrypted_us),
                "raw_gbps": rounded(shell.raw_gbps),
                "write_gbps": rounded(shell.write_gbps),
                "write_encrypted_gbps": rounded(shell.write_encrypted_gbps),
                "copier_write_gbps": rounded(shell.copier_write_gbps),
                "copier_read_gbps": rounded(shell.copier_read_gbps),
                "copier_push_gbps": rounded(shell.copier_push_gbps),
            });
            (shell.name.to_owned(), value)
        };
        let reads = |reads: &Reads| {
            json!({
                "clock": if reads.clock == Clock::Real { "real" } else { "virtual" },
                "delay_us": reads.delay_us,
                "tags": reads.tags,
                "read_bytes": reads.read_bytes,
                "rtt_us": rounded(reads.rtt_us),
                "link_gbps": rounded(reads.link_gbps),
                "read_gbps": rounded(reads.read_gbps),
                "equation_1_gbps": rounded(reads.equation_1_gbps()),
                "expected_gbps": rounded(reads.expected_gbps()),
                "error_pct": rounded(reads.error_pct()),
                "push_gbps": rounded(reads.push_gbps),
                "write_gbps": rounded(reads.write_gbps),
            })
        };
        json!({
            "conversion_ns": rounded(self.conversion.plain_ns),
            "conversion_encrypted_ns": rounded(self.conversion.encrypted_ns),
            "conversion_batched_ns": rounded(self.conversion.batched_ns),
            "conversion_encrypted_batched_ns": rounded(self.conversion.encrypted_batched_ns),
            "shells": self.shells.iter().map(shell).collect::<serde_json::Map<_, _>>(),
            "reads": self.reads.iter().map(reads).collect::<Vec<_>>(),
            "fairness": { "leases": self.fairness.leases, "jain": rounded(self.fairness.jain) },
            "missed": self.missed(),
        })
    }

    /// Targets that are missed, in words.
    pub(super) fn missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        let Conversion { plain_ns, encrypted_ns, .. } = self.conversion;
        for (what, ns, most) in [
            ("a conversion", plain_ns, CONVERSION_NS_MAX),
            ("an encrypted conversion", encrypted_ns, CONVERSION_ENCRYPTED_NS_MAX),
        ] {
            if ns > most {
                missed.push(format!("{what} takes {ns:.0} ns; the mark is {most:.0}"));
            }
        }
        for shell in &self.shells {
            let (rtt, write) = (shell.rtt_us / shell.raw_rtt_us, shell.write_gbps / shell.raw_gbps);
            if rtt > RTT_OVER_RAW_MAX {
                missed.push(format!(
                    "{}: a round trip takes {rtt:.2} times the bare one; the mark is {RTT_OVER_RAW_MAX}",
                    shell.name
                ));
            }
            if write < WRITE_OF_RAW_MIN {
                missed.push(format!(
                    "{}: writes move {write:.2} of the bare network; the mark is {WRITE_OF_RAW_MIN}",
                    shell.name
                ));
            }
        }
        let far = self.reads.iter().filter(|reads| reads.clock == Clock::Virtual);
        for reads in far.filter(|reads| reads.error_pct().abs() > READ_ERROR_PCT_MAX) {
            missed.push(format!(
                "{} tags of {} bytes over {} us: {:.2} GB/s for {:.2} expected",
                reads.tags,
                reads.read_bytes,
                reads.delay_us,
                reads.read_gbps,
                reads.expected_gbps()
            ));
        }
        if self.fairness.jain < JAIN_MIN {
            missed.push(format!("Jain's index is {:.3}; the mark is {JAIN_MIN}", self.fairness.jain));
        }
        missed
    }

    pub(super) fn print(&self) {
        let Conversion { plain_ns, encrypted_ns, batched_ns, encrypted_batched_ns } = self.conversion;
        outln!("conversion of a TLP of 128 bytes, both ends    alone in a datagram    with seven others");
        outln!("  plain                                        {plain_ns:>16.0} ns  {batched_ns:>16.0} ns");
        outln!(
            "  encrypted                                    {encrypted_ns:>16.0} ns  {encrypted_batched_ns:>16.0} ns"
        );
        outln!(
            "\nshell    round trip us: bare    read  (x bare)  encrypted   GB/s: bare  writes (of bare)  encrypted   copier: writes  reads  pushes"
        );
        for shell in &self.shells {
            outln!(
                "  {:<8}{:>19.2} {:>7.2}  ({:>5.2})   {:>9.2}   {:>10.2}  {:>6.2}  ({:>5.2})   {:>9.2}   {:>14.2} {:>6.2} {:>7.2}",
                shell.name,
                shell.raw_rtt_us,
                shell.rtt_us,
                shell.rtt_us / shell.raw_rtt_us,
                shell.rtt_encrypted_us,
                shell.raw_gbps,
                shell.write_gbps,
                shell.write_gbps / shell.raw_gbps,
                shell.write_encrypted_gbps,
                shell.copier_write_gbps,
                shell.copier_read_gbps,
                shell.copier_push_gbps,
            );
        }
        outln!(
            "\nreads: clock  delay us  read bytes  tags   one alone us   GB/s    Eq. 1     link  of min(both)   push"
        );
        for reads in &self.reads {
            outln!(
                "     {:>8} {:>9.1} {:>11} {:>5} {:>14.2} {:>6.2} {:>8.2} {:>8.2} {:>+11.1} % {:>6.2}",
                if reads.clock == Clock::Real { "real" } else { "virtual" },
                reads.delay_us,
                reads.read_bytes,
                reads.tags,
                reads.rtt_us,
                reads.read_gbps,
                reads.equation_1_gbps(),
                reads.link_gbps,
                reads.error_pct(),
                reads.push_gbps,
            );
        }
        outln!("\nfairness: Jain's index of {} leases is {:.4}", self.fairness.leases, self.fairness.jain);
    }
}
