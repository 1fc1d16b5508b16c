//! What each kind of call is charged on a plane, as plain numbers, so that one replay serves all planes and a single term can be
//! waived to see what it is worth.

use super::machine::Habits;
use super::plane::{Api, Charged, CopyLatency, Pcie, Plane};

/// Bytes that take a microsecond at one gigabyte a second.
const BYTES_PER_US_AND_GBPS: f64 = 1e3;

/// A cost that a plane adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Term {
    /// What kernels and memsets lose to the distance (pcie plane).
    Launches,
    /// Host-to-device copies at the rate of tags or network.
    UploadRate,
    /// Host-to-device copies that wait for the distance.
    UploadLatency,
    /// Device-to-host copies at the rate of the network.
    DownloadRate,
    /// Device-to-host copies that wait for the distance.
    DownloadLatency,
    /// Waits that are told late.
    Waits,
    /// Questions whether the GPU is done.
    Queries,
    /// Other calls whose answer the program needs.
    AwaitedCalls,
    /// The program's own time in one-way calls (api plane).
    CallTime,
    /// The worker's time to issue calls (api plane).
    Dispatch,
}

/// All terms.
pub const ALL_TERMS: [Term; 10] = [
    Term::Launches,
    Term::UploadRate,
    Term::UploadLatency,
    Term::DownloadRate,
    Term::DownloadLatency,
    Term::Waits,
    Term::Queries,
    Term::AwaitedCalls,
    Term::CallTime,
    Term::Dispatch,
];

impl Term {
    /// As people say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Launches => "kernels and memsets that lose a round trip each",
            Self::UploadRate => "host-to-device copies, by their bytes",
            Self::UploadLatency => "host-to-device copies, by their number",
            Self::DownloadRate => "device-to-host copies, by their bytes",
            Self::DownloadLatency => "device-to-host copies, by their number",
            Self::Waits => "waits for the GPU",
            Self::Queries => "questions whether the GPU is done",
            Self::AwaitedCalls => "other calls whose answer is needed",
            Self::CallTime => "the program's time in one-way calls",
            Self::Dispatch => "the worker's time to issue calls",
        }
    }
}

/// Costs of one plane at one distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Charges {
    /// Whether a worker issues the calls.
    pub(super) is_remote: bool,
    /// The program's part of an asynchronous call; `None`: as recorded.
    pub(super) call_us: Option<f64>,
    /// A call that asks for state; `None`: as recorded.
    pub(super) local_call_us: Option<f64>,
    pub(super) there_us: f64,
    pub(super) dispatch_us: f64,
    pub(super) command_us: f64,
    pub(super) inline_bytes: u64,
    pub(super) chunk_bytes: u64,
    pub(super) window_calls: usize,
    /// Microseconds that the network needs per byte, each way.
    pub(super) uplink_us_per_byte: f64,
    pub(super) downlink_us_per_byte: f64,
    /// What a kernel or memset loses, on the GPU and on the launching thread.
    pub(super) kernel_gpu_us: f64,
    pub(super) kernel_host_us: f64,
    /// The filler before a kernel or memset: what it takes of the queue.
    pub(super) filler_us: Option<f64>,
    /// What the launch of a filler takes of the calling thread, before copies too.
    pub(super) filler_host_us: f64,
    /// A copy waits for the distance only where its bytes do not take longer anyway.
    pub(super) upload_waits_in_rate: bool,
    /// The GPU's copy engine: microseconds per byte at the least, a factor, and what each copy waits besides.
    pub(super) upload_us_per_byte: f64,
    pub(super) upload_wait_us: f64,
    pub(super) download_us_per_byte: f64,
    pub(super) download_factor: f64,
    pub(super) download_wait_us: f64,
    /// From the fact to the thread that is told of it.
    pub(super) wait_back_us: f64,
    pub(super) download_back_us: f64,
    pub(super) query_back_us: f64,
    pub(super) awaited_back_us: f64,
}

impl Charges {
    const NATIVE: Self = Self {
        is_remote: false,
        call_us: None,
        local_call_us: None,
        there_us: 0.0,
        dispatch_us: 0.0,
        command_us: 0.0,
        inline_bytes: 0,
        chunk_bytes: 1,
        window_calls: usize::MAX,
        uplink_us_per_byte: 0.0,
        downlink_us_per_byte: 0.0,
        kernel_gpu_us: 0.0,
        kernel_host_us: 0.0,
        filler_us: None,
        filler_host_us: 0.0,
        upload_waits_in_rate: false,
        upload_us_per_byte: 0.0,
        upload_wait_us: 0.0,
        download_us_per_byte: 0.0,
        download_factor: 1.0,
        download_wait_us: 0.0,
        wait_back_us: 0.0,
        download_back_us: 0.0,
        query_back_us: 0.0,
        awaited_back_us: 0.0,
    };

    pub(super) fn of(plane: &Plane, habits: &Habits, waived: Option<Term>) -> Self {
        let mut charges = match plane {
            Plane::Native => Self::NATIVE,
            Plane::Pcie(pcie) => Self::of_pcie(pcie, habits),
            Plane::Api(api) => Self::of_api(api, habits),
        };
        if let Some(term) = waived {
            charges.waive(term);
        }
        charges
    }

    fn of_pcie(pcie: &Pcie, habits: &Habits) -> Self {
        let added = pcie.path.added_rtt_us(pcie.rtt_us);
        // A GPU in the server loses nothing: the fixed cost belongs to the network, too.
        let fixed = if added > 0.0 { pcie.fixed_us } else { 0.0 };
        let exposed =
            pcie.hiding_us.map_or(1.0, |hiding| (hiding / habits.mean_kernel_us.max(hiding)).min(1.0));
        let loss = pcie.exposed_round_trips * (added + fixed) * exposed;
        let read_gbps = pcie.path.tag_limited_gbps(pcie.rtt_us).min(pcie.bandwidth_gbps);
        let filler = match pcie.charged {
            Charged::Filler { least_us, host_us } if added > 0.0 => Some((least_us, host_us)),
            _ => None,
        };
        let crosses = f64::from(u8::from(added > 0.0));
        Self {
            kernel_gpu_us: if filler.is_some() { 0.0 } else { loss },
            kernel_host_us: if pcie.charged == Charged::GpuAndHost { loss } else { 0.0 },
            filler_us: filler.map(|(least_us, _)| loss.max(least_us)),
            filler_host_us: filler.map_or(0.0, |(_, host_us)| host_us),
            upload_waits_in_rate: pcie.copy_latency == CopyLatency::UnlessSlowed,
            upload_us_per_byte: crosses / (read_gbps * BYTES_PER_US_AND_GBPS),
            upload_wait_us: pcie.copy_round_trips * added,
            download_us_per_byte: crosses / (pcie.bandwidth_gbps * BYTES_PER_US_AND_GBPS),
            download_factor: 1.0 + crosses * pcie.path.write_slowdown(),
            download_wait_us: 0.5 * pcie.copy_round_trips * added,
            wait_back_us: pcie.wait_round_trips * added,
            ..Self::NATIVE
        }
    }

    fn of_api(api: &Api, habits: &Habits) -> Self {
        let half = 0.5 * api.rtt_us;
        let us_per_byte = 1.0 / (api.bandwidth_gbps * BYTES_PER_US_AND_GBPS);
        Self {
            is_remote: true,
            call_us: Some(api.call_us),
            local_call_us: Some(api.local_call_us),
            there_us: half,
            dispatch_us: api.dispatch_us.unwrap_or(habits.call_us),
            command_us: api.command_bytes * us_per_byte,
            inline_bytes: api.inline_bytes,
            chunk_bytes: api.chunk_bytes.max(1),
            window_calls: api.window_calls.max(1),
            uplink_us_per_byte: us_per_byte,
            downlink_us_per_byte: us_per_byte,
            wait_back_us: half,
            download_back_us: half,
            query_back_us: half,
            awaited_back_us: half,
            ..Self::NATIVE
        }
    }

    /// Takes one term out. An answer that costs nothing is one that comes so early that what follows it arrives in time.
    fn waive(&mut self, term: Term) {
        match term {
            Term::Launches => {
                (self.kernel_gpu_us, self.kernel_host_us, self.filler_us) = (0.0, 0.0, None);
            }
            Term::UploadRate => (self.upload_us_per_byte, self.uplink_us_per_byte) = (0.0, 0.0),
            Term::UploadLatency => self.upload_wait_us = 0.0,
            Term::DownloadRate => {
                self.download_factor = 1.0;
                (self.download_us_per_byte, self.downlink_us_per_byte) = (0.0, 0.0);
            }
            Term::DownloadLatency => {
                self.download_wait_us = 0.0;
                self.download_back_us = -self.there_us;
            }
            Term::Waits => self.wait_back_us = -self.there_us,
            Term::Queries => self.query_back_us = -self.there_us,
            Term::AwaitedCalls => self.awaited_back_us = -self.there_us,
            Term::CallTime => self.call_us = self.call_us.map(|_| 0.0),
            Term::Dispatch => self.dispatch_us = 0.0,
        }
    }
}
