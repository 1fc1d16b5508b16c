//! Where two runs of bytes differ.

use std::ops::Range;

/// Differences with fewer equal bytes than this between them are sent as one piece: a command costs about as much.
pub(super) const CLOSE: usize = 64;

/// Where two runs of equal length differ. Differences that lie close together count as one.
pub(super) fn differences(new: &[u8], old: &[u8]) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    if new == old {
        return found;
    }
    for (at, _) in new.iter().zip(old).enumerate().filter(|(_, (new, old))| new != old) {
        match found.last_mut() {
            Some(last) if at < last.end + CLOSE => last.end = at + 1,
            _ => found.push(at..at + 1),
        }
    }
    found
}

/// The smallest piece of memory that a program and a kernel are expected to share out between them: both sides exchange
/// words of at least this size.
pub(super) const WORD: usize = 4;

/// Where two runs of equal length differ, in whole words and without any word that is equal.
pub(super) fn differing_words(new: &[u8], old: &[u8]) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    if new == old {
        return found;
    }
    let words = new.chunks(WORD).zip(old.chunks(WORD)).enumerate();
    for (number, (word, _)) in words.filter(|(_, (new, old))| new != old) {
        let (start, end) = (number * WORD, number * WORD + word.len());
        match found.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => found.push(start..end),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_equal_are_left_out() {
        let old = [0; 22];
        let mut new = old;
        assert!(differing_words(&new, &old).is_empty());
        (new[1], new[7], new[12], new[21]) = (1, 1, 1, 1);
        assert_eq!(differing_words(&new, &old), [0..8, 12..16, 20..22]);
    }

    #[test]
    fn differences_that_lie_close_together_are_sent_as_one() {
        let old = [0; 400];
        let mut new = old;
        assert!(differences(&new, &old).is_empty());
        (new[3], new[40], new[105], new[399]) = (1, 1, 1, 1);
        assert_eq!(differences(&new, &old), [3..41, 105..106, 399..400]);
    }
}
