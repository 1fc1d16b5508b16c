//! What is wrong for a while is said when it begins, now and then while it lasts, and when it is over: a full disk must not
//! fill with words about itself.

use std::time::{Duration, Instant};

/// While something stays wrong it is said this often.
const SAY_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Something else that is wrong in the same place is said sooner, but no more often than this.
const SAY_OTHER_AFTER: Duration = Duration::from_secs(1);

/// One thing that may be wrong.
#[derive(Debug, Default)]
pub(crate) struct Complaint {
    last: Option<Last>,
}

#[derive(Debug)]
struct Last {
    text: String,
    said: Instant,
    times: u64,
}

impl Complaint {
    /// It is wrong. Gives how often it has been so, when it should be said now.
    pub(crate) fn wrong(&mut self, text: &str, now: Instant) -> Option<u64> {
        let Some(last) = &mut self.last else {
            self.last = Some(Last { text: text.to_owned(), said: now, times: 1 });
            return Some(1);
        };
        last.times += 1;
        let after = if last.text == text { SAY_AGAIN_AFTER } else { SAY_OTHER_AFTER };
        if now.duration_since(last.said) < after {
            return None;
        }
        (last.said, last.text) = (now, text.to_owned());
        Some(last.times)
    }

    /// It is right. Gives how often it was wrong before, if it was.
    pub(crate) fn right(&mut self) -> Option<u64> {
        self.last.take().map(|last| last.times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_of_trouble_is_some_lines_and_its_end_is_one() {
        let (start, mut complaint) = (Instant::now(), Complaint::default());
        assert_eq!(complaint.right(), None);
        let said = (0..86_400 * 5u64)
            .filter(|step| {
                complaint.wrong("the disk is full", start + Duration::from_millis(step * 200)).is_some()
            })
            .count();
        assert_eq!(said, 1440, "one a minute");
        assert_eq!(complaint.right(), Some(86_400 * 5));
        assert_eq!(complaint.right(), None);
        assert_eq!(complaint.wrong("the disk is full", start), Some(1), "it begins anew");
    }

    #[test]
    fn other_trouble_is_said_soon_and_no_flood() {
        let (start, mut complaint) = (Instant::now(), Complaint::default());
        let said = (0..1000u64)
            .filter(|step| {
                complaint
                    .wrong(&format!("attempt {step}"), start + Duration::from_millis(step * 10))
                    .is_some()
            })
            .count();
        assert_eq!(said, 10, "one a second");
    }
}
