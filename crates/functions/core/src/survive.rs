//! How instances of a function outlive the loss of their GPU: the words of `DXPU_SURVIVE`, which the CUDA library reads.

use std::fmt;
use std::str::FromStr;

/// The words that the library knows.
const WORDS: [&str; 4] = ["plain", "tight", "careful", "required"];

/// Whether instances go on elsewhere when their session, worker or GPU is lost, and how they are kept safe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Survive {
    /// They end with their GPU, and are not moved.
    #[default]
    Off,
    /// They go on. The library gets these words.
    On(String),
}

impl Survive {
    /// Whether they go on elsewhere.
    pub fn is_on(&self) -> bool {
        *self != Self::Off
    }
}

/// A word that says nothing about survival.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no way to survive: write off, plain, tight, careful, required, or several of the last four with commas between them"
)]
pub struct UnknownSurvive(String);

impl FromStr for Survive {
    type Err = UnknownSurvive;

    fn from_str(text: &str) -> Result<Self, UnknownSurvive> {
        match text {
            "off" | "0" => return Ok(Self::Off),
            "1" => return Ok(Self::On("plain".to_owned())),
            _ => {}
        }
        match text.split(',').find(|word| !WORDS.contains(word)) {
            Some(word) => Err(UnknownSurvive(word.to_owned())),
            None => Ok(Self::On(text.to_owned())),
        }
    }
}

impl fmt::Display for Survive {
    /// As the library reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "0",
            Self::On(words) => words,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_library_and_off() {
        assert_eq!("off".parse(), Ok(Survive::Off));
        assert_eq!("1".parse(), Ok(Survive::On("plain".to_owned())));
        assert_eq!("tight,required".parse(), Ok(Survive::On("tight,required".to_owned())));
        for text in ["", "off,tight", "loose", "tight, required"] {
            assert!(text.parse::<Survive>().is_err(), "{text:?}");
        }
        assert_eq!(
            (Survive::Off.to_string(), Survive::On("tight".to_owned()).to_string()),
            ("0".into(), "tight".into())
        );
    }
}
