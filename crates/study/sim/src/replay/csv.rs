//! Reading tables of a trace: every complaint names file, line and reason, and nothing is half read.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Bytes a trace file may have; the largest published one has half a megabyte.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// A trace cannot be read, or is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read at all.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A line is not what it should be.
    #[error("{}, line {line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from one.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The file as a whole is not what it should be.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// A table with named columns, all rows of equal length.
pub(super) struct Table {
    path: PathBuf,
    columns: Vec<String>,
    text: String,
}

impl Table {
    /// Reads a whole file and its heading.
    pub(super) fn read(path: &Path) -> Result<Self, TraceError> {
        let unreadable = |source| TraceError::Unreadable { path: path.to_owned(), source };
        let size = std::fs::metadata(path).map_err(unreadable)?.len();
        if size > FILE_BYTES_MAX {
            let reason = format!("{size} bytes are more than the {FILE_BYTES_MAX} that a trace may have");
            return Err(TraceError::File { path: path.to_owned(), reason });
        }
        let bytes = std::fs::read(path).map_err(unreadable)?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = 1 + good.iter().filter(|&&byte| byte == b'\n').count();
            TraceError::Line { path: path.to_owned(), line, reason: "this is not text (UTF-8)".to_owned() }
        })?;
        Self::new(path, text)
    }

    fn new(path: &Path, text: String) -> Result<Self, TraceError> {
        let path = path.to_owned();
        let Some(heading) = text.lines().next().filter(|line| !line.is_empty()) else {
            return Err(TraceError::Line { path, line: 1, reason: "there is no heading".to_owned() });
        };
        let columns: Vec<String> = heading.split(',').map(str::to_owned).collect();
        let table = Self { path, columns, text };
        if !table.text.ends_with('\n') {
            let reason = "the file ends in the middle of a line: it is truncated";
            return Err(table.wrong_line(table.text.lines().count(), reason));
        }
        Ok(table)
    }

    pub(super) fn wrong_line(&self, line: usize, reason: impl fmt::Display) -> TraceError {
        TraceError::Line { path: self.path.clone(), line, reason: reason.to_string() }
    }

    pub(super) fn wrong_file(&self, reason: impl fmt::Display) -> TraceError {
        TraceError::File { path: self.path.clone(), reason: reason.to_string() }
    }

    /// Where a column is.
    pub(super) fn column(&self, name: &str) -> Result<usize, TraceError> {
        self.optional_column(name)
            .ok_or_else(|| self.wrong_line(1, format_args!("there is no column {name:?} in the heading")))
    }

    pub(super) fn optional_column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column == name)
    }

    /// The rows after the heading.
    pub(super) fn rows(&self) -> impl Iterator<Item = Result<Row<'_>, TraceError>> {
        self.text.lines().enumerate().skip(1).map(|(number, text)| {
            let fields: Vec<&str> = text.split(',').collect();
            let line = number + 1;
            if fields.len() == self.columns.len() {
                return Ok(Row { table: self, line, fields });
            }
            let (have, need) = (fields.len(), self.columns.len());
            Err(self.wrong_line(line, format_args!("{have} fields, where the heading has {need}")))
        })
    }
}

/// One row of a table.
pub(super) struct Row<'a> {
    table: &'a Table,
    line: usize,
    fields: Vec<&'a str>,
}

impl<'a> Row<'a> {
    pub(super) fn text(&self, column: usize) -> &'a str {
        self.fields[column]
    }

    pub(super) fn number<T: FromStr>(&self, column: usize) -> Result<T, TraceError> {
        let text = self.fields[column];
        text.parse().map_err(|_| {
            let name = &self.table.columns[column];
            self.wrong(format_args!("{text:?} in column {name:?} is not a number that can stand there"))
        })
    }

    pub(super) fn wrong(&self, reason: impl fmt::Display) -> TraceError {
        self.table.wrong_line(self.line, reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Result<Table, TraceError> {
        Table::new(Path::new("a.csv"), text.to_owned())
    }

    fn complaint<T>(result: Result<T, TraceError>) -> String {
        result.err().expect("this must be refused").to_string()
    }

    #[test]
    fn complaints_name_file_line_and_reason() {
        assert_eq!(complaint(table("")), "a.csv, line 1: there is no heading");
        assert_eq!(
            complaint(table("a,b\n1,2\n3")),
            "a.csv, line 3: the file ends in the middle of a line: it is truncated"
        );
        let good = table("a,b\n1,x\n2\n").unwrap();
        assert!(complaint(good.column("c")).starts_with("a.csv, line 1: there is no column \"c\""));
        let mut rows = good.rows();
        let first = rows.next().unwrap().unwrap();
        assert_eq!(first.number::<u32>(0).unwrap(), 1);
        assert_eq!(
            complaint(first.number::<u32>(1)),
            "a.csv, line 2: \"x\" in column \"b\" is not a number that can stand there"
        );
        assert_eq!(complaint(rows.next().unwrap()), "a.csv, line 3: 1 fields, where the heading has 2");
    }

    #[test]
    fn files_that_are_not_there_or_not_text_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.csv");
        assert!(complaint(Table::read(&path)).starts_with("cannot read "));
        std::fs::write(&path, b"a,b\n\xff\xfe\n").unwrap();
        assert!(complaint(Table::read(&path)).ends_with("a.csv, line 2: this is not text (UTF-8)"));
    }
}
