//! What a stream did before the program saw its end cannot have taken longer than that took.

use model::profile::{Action, Awaited, Record};
use std::collections::HashMap;

/// Scales all durations down until no stream worked longer than there was time; by what, if that was needed.
///
/// The time of a stream is from the beginning of the recording to the return of the last call that waited for it; its work is what
/// was given to it before. A recording in which no call waits for a stream says nothing about it.
pub(super) fn scale(records: &mut [Record]) -> Option<f64> {
    let mut streams: HashMap<u32, Stream> = HashMap::new();
    for record in &*records {
        if let Some((stream, us)) = work(&record.action) {
            streams.entry(stream).or_default().given_us += us;
        }
        match awaited(&record.action) {
            Some(Awaited::Stream(stream)) => {
                if let Some(stream) = streams.get_mut(&stream) {
                    stream.ended(record.returned_us());
                }
            }
            Some(Awaited::Everything) => {
                streams.values_mut().for_each(|stream| stream.ended(record.returned_us()))
            }
            Some(Awaited::Event(_)) | None => {}
        }
    }
    let factor = streams.values().map(Stream::factor).fold(1.0, f64::min);
    if factor >= 1.0 {
        return None;
    }
    for record in records {
        if let Action::Launch { gpu_us, .. } | Action::Copy { gpu_us, .. } | Action::Memset { gpu_us, .. } =
            &mut record.action
        {
            *gpu_us *= factor;
        }
    }
    Some(factor)
}

#[derive(Default)]
struct Stream {
    given_us: f64,
    /// Of that, what had ended when the program last knew, and when that was.
    done_us: f64,
    known_at_us: f64,
}

impl Stream {
    fn ended(&mut self, at_us: f64) {
        (self.done_us, self.known_at_us) = (self.given_us, at_us);
    }

    fn factor(&self) -> f64 {
        if self.done_us > self.known_at_us { self.known_at_us / self.done_us } else { 1.0 }
    }
}

fn work(action: &Action) -> Option<(u32, f64)> {
    match *action {
        Action::Launch { stream, gpu_us, .. }
        | Action::Copy { stream, gpu_us, .. }
        | Action::Memset { stream, gpu_us, .. } => Some((stream, gpu_us)),
        _ => None,
    }
}

fn awaited(action: &Action) -> Option<Awaited> {
    match *action {
        Action::Wait { target } => Some(target),
        Action::Copy { stream, waits: true, .. } => Some(Awaited::Stream(stream)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(at_us: f64, stream: u32, gpu_us: f64) -> Record {
        Record { at_us, call_us: 4.0, action: Action::Launch { stream, kernel: 0, kernels: 1, gpu_us } }
    }

    fn wait(at_us: f64, call_us: f64, target: Awaited) -> Record {
        Record { at_us, call_us, action: Action::Wait { target } }
    }

    fn total_us(records: &[Record]) -> f64 {
        records.iter().filter_map(|record| work(&record.action)).map(|(_, us)| us).sum()
    }

    #[test]
    fn work_that_fits_its_time_is_left_alone() {
        let mut records =
            vec![launch(0.0, 1, 60.0), launch(5.0, 1, 30.0), wait(10.0, 90.0, Awaited::Stream(1))];
        assert_eq!(scale(&mut records), None);
        assert_eq!(total_us(&records), 90.0);
    }

    #[test]
    fn work_that_cannot_have_taken_so_long_is_scaled_to_its_time() {
        let mut records =
            vec![launch(0.0, 1, 150.0), launch(5.0, 1, 50.0), wait(10.0, 90.0, Awaited::Everything)];
        assert_eq!(scale(&mut records), Some(0.5));
        assert_eq!(total_us(&records), 100.0, "as long as the program waited, and no longer");
    }

    #[test]
    fn streams_may_work_at_once_and_work_that_nobody_waited_for_may_last() {
        let mut records = vec![
            launch(0.0, 1, 80.0),
            launch(5.0, 2, 80.0),
            wait(10.0, 90.0, Awaited::Everything),
            launch(100.0, 1, 1e6),
        ];
        assert_eq!(scale(&mut records), None);
    }
}
