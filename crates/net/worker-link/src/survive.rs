//! How a program outlives the loss of its GPU: what `dxpu run --survive` and `DXPU_SURVIVE` say.

use std::{fmt, str::FromStr};
use thiserror::Error;

/// How a program outlives the loss of its GPU. The default is plain: everything that is mapped is saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survive {
    /// Memory that its pools have free is not saved, and cuts are taken where little of it lives.
    pub is_tight: bool,
    /// It must be protected by images from its start, or gets no GPU.
    pub is_required: bool,
    /// Its results differ from run to run: a cut follows soon on each of its observations.
    pub is_careful: bool,
}

/// A word that says nothing about survival.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{0:?} is no way to survive: write plain, tight, careful, required, or several with commas between them"
)]
pub struct UnknownSurvive(String);

impl FromStr for Survive {
    type Err = UnknownSurvive;

    fn from_str(text: &str) -> Result<Self, UnknownSurvive> {
        let mut survive = Self::default();
        for word in text.split(',') {
            match word.trim() {
                // Of before there were words.
                "1" | "plain" => {}
                "tight" => survive.is_tight = true,
                "required" => survive.is_required = true,
                "careful" => survive.is_careful = true,
                word => return Err(UnknownSurvive(word.to_owned())),
            }
        }
        Ok(survive)
    }
}

impl fmt::Display for Survive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [(self.is_tight, "tight"), (self.is_careful, "careful"), (self.is_required, "required")];
        let said: Vec<&str> = words.into_iter().filter(|(is, _)| *is).map(|(_, word)| word).collect();
        f.write_str(if said.is_empty() { "plain".to_owned() } else { said.join(",") }.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_written() {
        for text in ["plain", "tight", "careful", "required", "tight,careful,required"] {
            assert_eq!(text.parse::<Survive>().unwrap().to_string(), text);
        }
        assert_eq!("1".parse(), Ok(Survive::default()));
        assert_eq!(
            "tight, required".parse(),
            Ok(Survive { is_tight: true, is_required: true, ..Survive::default() })
        );
        let error = "loose".parse::<Survive>().unwrap_err().to_string();
        assert!(error.contains("loose") && error.contains("tight"), "{error}");
    }
}
