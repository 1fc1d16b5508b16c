//! The tokens that we show: one for all workers, or one for each, a line apiece.
//!
//! Lease tokens live shorter than programs. `dxpu run` writes new ones into the same file, so the file is read again
//! whenever a connection is opened.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// The tokens of a program. Never printed.
#[derive(Clone, Default)]
pub struct Tokens {
    /// As they were when we started.
    known: Vec<String>,
    /// The file they came from, and which line of it belongs to our worker; `None`: the tokens are for all workers.
    file: Option<PathBuf>,
    line: Option<usize>,
}

impl Tokens {
    /// The same token for all workers.
    pub fn one(token: impl Into<String>) -> Self {
        Self { known: vec![token.into()], file: None, line: None }
    }

    /// The token in a file, which is read again whenever a connection is opened.
    pub(crate) fn from_file(path: &Path) -> Result<Self, String> {
        let text =
            fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Ok(Self { known: lines(&text), file: Some(path.to_owned()), line: None })
    }

    /// What the environment says.
    pub(crate) fn from_environment() -> Result<Self, String> {
        let file = env::var_os("DXPU_TOKEN_FILE").map(PathBuf::from);
        let text = match &file {
            Some(path) => fs::read_to_string(path)
                .map_err(|error| format!("DXPU_TOKEN_FILE: cannot read {}: {error}", path.display()))?,
            None => env::var("DXPU_TOKEN").unwrap_or_default(),
        };
        Ok(Self { known: lines(&text), file, line: None })
    }

    /// Whether there are enough for so many workers.
    pub(crate) fn check(&self, workers: usize) -> Result<(), String> {
        match self.known.len() {
            0 | 1 => Ok(()),
            tokens if tokens == workers => Ok(()),
            tokens => {
                Err(format!("there are {tokens} tokens for {workers} workers; give one, or one for each"))
            }
        }
    }

    /// Those for one worker.
    pub(crate) fn of(&self, worker: usize) -> Self {
        Self { line: Some(worker), ..self.clone() }
    }

    /// The token to show now.
    pub(crate) fn current(&self) -> String {
        let line = self.line.unwrap_or(0);
        let written = self.file.as_ref().and_then(|path| fs::read_to_string(path).ok());
        let newer = written.map(|text| lines(&text)).filter(|newer| newer.len() == self.known.len());
        let tokens = newer.as_ref().unwrap_or(&self.known);
        tokens.get(line).or(tokens.first()).cloned().unwrap_or_default()
    }
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_has_its_line_and_one_line_is_for_all() {
        let several = Tokens { known: lines("first\n second\n\n"), ..Tokens::default() };
        assert_eq!(
            (several.of(0).current(), several.of(1).current()),
            ("first".to_owned(), "second".to_owned())
        );
        assert!(several.check(2).is_ok() && several.check(3).is_err() && several.check(1).is_err());
        let one = Tokens::one("only");
        assert_eq!((one.of(0).current(), one.of(5).current()), ("only".to_owned(), "only".to_owned()));
        assert!(one.check(7).is_ok() && Tokens::default().check(2).is_ok());
        assert_eq!(Tokens::default().of(1).current(), "");
    }

    #[test]
    fn what_is_written_anew_is_shown_next_and_what_is_half_written_is_not() {
        let path = env::temp_dir().join(format!("dxpu-tokens-{}", std::process::id()));
        fs::write(&path, "a\nb\n").unwrap();
        let second = Tokens::from_file(&path).unwrap().of(1);
        fs::write(&path, "c\nd\n").unwrap();
        assert_eq!(second.current(), "d");
        fs::write(&path, "e").unwrap();
        assert_eq!(second.current(), "b");
        fs::remove_file(&path).unwrap();
        assert_eq!(second.current(), "b");
    }
}
