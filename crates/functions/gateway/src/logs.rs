//! What functions print: the last lines of each.

use functions::FunctionKey;
use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

/// Lines of one function.
const LINES_MAX: usize = 2_000;
/// Bytes of one line: the rest of it is dropped.
pub(crate) const LINE_BYTES_MAX: usize = 4 << 10;
/// What `LogType=Tail` returns, as Lambda.
const TAIL_BYTES: usize = 4 << 10;

/// One line.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Line {
    pub(crate) at_ms: u64,
    /// The invocation that ran when it was printed.
    pub(crate) request: Option<String>,
    pub(crate) text: String,
}

/// The lines of all functions.
#[derive(Default)]
pub(crate) struct Logs {
    lines: Mutex<HashMap<FunctionKey, VecDeque<Line>>>,
}

impl Logs {
    pub(crate) fn add(&self, key: &FunctionKey, line: Line) {
        let mut all = locks::lock(&self.lines);
        let lines = all.entry(key.clone()).or_default();
        if lines.len() >= LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    pub(crate) fn of(&self, key: &FunctionKey) -> Vec<Line> {
        locks::lock(&self.lines).get(key).into_iter().flatten().cloned().collect()
    }

    pub(crate) fn forget(&self, key: &FunctionKey) {
        locks::lock(&self.lines).remove(key);
    }

    /// The end of what one invocation printed.
    pub(crate) fn tail(&self, key: &FunctionKey, request: &str) -> String {
        let all = locks::lock(&self.lines);
        let lines = all.get(key).into_iter().flatten();
        let text: Vec<&str> = lines
            .filter(|line| line.request.as_deref() == Some(request))
            .map(|line| line.text.as_str())
            .collect();
        let text = text.join("\n");
        let from = (text.len().saturating_sub(TAIL_BYTES)..).find(|at| text.is_char_boundary(*at));
        text[from.unwrap_or(0)..].to_owned()
    }
}
