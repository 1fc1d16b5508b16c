//! How busy a GPU's multiprocessors and its memory are, as NVML's GPM counts it (Hopper and newer).
//!
//! GPM compares two samples of the hardware's counters. The slot reads its sensors once a second anyway, so each reading takes
//! one sample and compares it with that of the reading before:
//!
//! ```text
//!   reading   1         2         3                4         5
//!   sample    A         B         fails            C         D
//!   result    nothing   over AB   nothing, B goes  nothing   over CD
//! ```
//!
//! A result is never older than one reading, and a driver or a GPU without GPM gives nothing: zero would mean idle.

use nvml_wrapper::error::NvmlError;
use std::time::{Duration, Instant};

/// NVML asks for 100 ms between two samples. A GPU and the seat on it are read by two slots, maybe right after each other: the
/// second one gets the result of the first.
const APART_MIN: Duration = Duration::from_millis(100);

/// What GPM needs of one GPU.
pub(super) trait Source {
    /// The hardware's counters at one moment.
    type Sample;

    /// Whether this GPU and its driver have GPM.
    fn is_supported(&self) -> Result<bool, NvmlError>;

    /// Takes a sample now.
    fn sample(&self) -> Result<Self::Sample, NvmlError>;

    /// What happened between two samples. A figure that this GPU does not have is nothing.
    fn compare(&self, from: &Self::Sample, to: &Self::Sample) -> Result<Figures, NvmlError>;
}

/// What GPM counts, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// Multiprocessors that had a warp to run, on average.
    pub(super) sm_activity: Option<f64>,
    /// Warps on the multiprocessors, of as many as fit.
    pub(super) sm_occupancy: Option<f64>,
    /// Bytes to and from the GPU's memory, of as many as it can move.
    pub(super) dram_activity: Option<f64>,
}

/// The samples of one GPU.
#[derive(Debug)]
pub(super) struct Gpm<S> {
    support: Support,
    last: Option<(Instant, S)>,
    result: Figures,
}

#[derive(Debug, PartialEq)]
enum Support {
    Unasked,
    Yes,
    No,
}

impl<S> Default for Gpm<S> {
    fn default() -> Self {
        Self { support: Support::Unasked, last: None, result: Figures::default() }
    }
}

impl<S> Gpm<S> {
    /// What happened since the reading before, if both readings got a sample.
    pub(super) fn read(&mut self, source: &impl Source<Sample = S>, now: Instant) -> Figures {
        if self.last.as_ref().is_some_and(|(at, _)| now.saturating_duration_since(*at) < APART_MIN) {
            return self.result;
        }
        self.result = self.take(source, now).unwrap_or_else(|error| {
            if is_lasting(&error) {
                self.support = Support::No;
            }
            Figures::default()
        });
        self.result
    }

    fn take(&mut self, source: &impl Source<Sample = S>, now: Instant) -> Result<Figures, NvmlError> {
        // Taken out first: after an error no sample is left, so no result covers the time of the error.
        let before = self.last.take();
        if self.support == Support::Unasked {
            self.support = if source.is_supported()? { Support::Yes } else { Support::No };
        }
        if self.support == Support::No {
            return Ok(Figures::default());
        }
        let sample = source.sample()?;
        let (_, sample) = self.last.insert((now, sample));
        before.map_or(Ok(Figures::default()), |(_, before)| source.compare(&before, sample))
    }
}

/// Whether the driver lacks the functions: it does so until it is replaced, and this process with it.
fn is_lasting(error: &NvmlError) -> bool {
    matches!(error, NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound)
}

/// A figure as reports carry it. A driver that counts over a very short time may give a little more than all of it.
pub(super) fn whole_percent(figure: Option<f64>) -> Option<u32> {
    let figure = figure.filter(|figure| figure.is_finite())?;
    Some(figure.clamp(0.0, 100.0).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::VecDeque;

    /// A GPU whose samples are numbers: the hardware's counter of busy multiprocessors.
    #[derive(Default)]
    struct Fake {
        support: RefCell<VecDeque<Result<bool, NvmlError>>>,
        samples: RefCell<VecDeque<Result<u32, NvmlError>>>,
        has_no_comparison: bool,
    }

    impl Fake {
        fn new<const N: usize>(
            support: Result<bool, NvmlError>,
            samples: [Result<u32, NvmlError>; N],
        ) -> Self {
            Self {
                support: RefCell::new([support].into()),
                samples: RefCell::new(samples.into()),
                ..Self::default()
            }
        }

        /// The results of readings a second apart.
        fn read(&self, times: u64) -> Vec<Option<f64>> {
            let (mut gpm, began) = (Gpm::default(), Instant::now());
            let at = |second| began + Duration::from_secs(second);
            (0..times).map(|second| gpm.read(self, at(second)).sm_activity).collect()
        }
    }

    impl Source for Fake {
        type Sample = u32;

        fn is_supported(&self) -> Result<bool, NvmlError> {
            self.support.borrow_mut().pop_front().expect("asked once more than it should be")
        }

        fn sample(&self) -> Result<u32, NvmlError> {
            self.samples.borrow_mut().pop_front().expect("sampled once more than it should be")
        }

        fn compare(&self, from: &u32, to: &u32) -> Result<Figures, NvmlError> {
            if self.has_no_comparison {
                return Err(NvmlError::FailedToLoadSymbol("nvmlGpmMetricsGet".to_owned()));
            }
            Ok(Figures { sm_activity: Some(f64::from(to - from)), ..Figures::default() })
        }
    }

    #[test]
    fn each_reading_covers_the_time_since_the_one_before_and_the_first_covers_none() {
        let fake = Fake::new(Ok(true), [Ok(10), Ok(40), Ok(45)]);
        assert_eq!(fake.read(3), [None, Some(30.0), Some(5.0)]);
    }

    #[test]
    fn a_gpu_without_gpm_gives_nothing_and_is_asked_once() {
        assert_eq!(Fake::new(Ok(false), []).read(3), [None; 3]);
    }

    #[test]
    fn a_driver_without_the_functions_gives_nothing_and_is_asked_once() {
        let missing = || NvmlError::FailedToLoadSymbol("nvmlGpmQueryDeviceSupport".to_owned());
        assert_eq!(Fake::new(Err(missing()), []).read(3), [None; 3]);
        assert_eq!(Fake::new(Ok(true), [Err(missing())]).read(3), [None; 3]);
        let fake = Fake { has_no_comparison: true, ..Fake::new(Ok(true), [Ok(1), Ok(2)]) };
        assert_eq!(fake.read(4), [None; 4]);
    }

    #[test]
    fn a_sample_that_fails_leaves_a_gap_and_no_result_spans_it() {
        let fake = Fake::new(Ok(true), [Ok(0), Ok(7), Err(NvmlError::Unknown), Ok(50), Ok(59)]);
        assert_eq!(fake.read(5), [None, Some(7.0), None, None, Some(9.0)]);
    }

    #[test]
    fn a_gpu_that_could_not_be_asked_is_asked_again() {
        let fake = Fake::new(Err(NvmlError::Timeout), [Ok(0), Ok(3)]);
        fake.support.borrow_mut().push_back(Ok(true));
        assert_eq!(fake.read(3), [None, None, Some(3.0)]);
    }

    #[test]
    fn a_second_reader_within_a_tenth_of_a_second_gets_the_result_of_the_first() {
        let fake = Fake::new(Ok(true), [Ok(0), Ok(20), Ok(22)]);
        let (mut gpm, began) = (Gpm::default(), Instant::now());
        let mut read = |ms| gpm.read(&fake, began + Duration::from_millis(ms)).sm_activity;
        assert_eq!([read(0), read(99), read(1000), read(1001)], [None, None, Some(20.0), Some(20.0)]);
        assert_eq!(read(1100), Some(2.0), "the sample of 1000 ms was kept");
    }

    #[test]
    fn figures_are_whole_percents_and_what_is_no_number_is_nothing() {
        let cases = [(0.4, 0), (0.5, 1), (99.6, 100), (100.2, 100), (-0.1, 0)];
        for (figure, percent) in cases {
            assert_eq!(whole_percent(Some(figure)), Some(percent), "{figure}");
        }
        assert_eq!(
            [whole_percent(Some(f64::NAN)), whole_percent(Some(f64::INFINITY)), whole_percent(None)],
            [None; 3]
        );
    }
}
