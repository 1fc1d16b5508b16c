//! One measured row, and the CSV file that holds them.

use thiserror::Error;

/// The rows that ship with this crate.
const PAPER_CSV: &str = include_str!("../../data/dxpu-paper.csv");

const HEADER: &str =
    "table,workload,variant,batch_or_size,rtt_us,mean_kernel_us,memop_share_pct,performance_pct";

/// One measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Line of the file, counted from 1, so that an error can point at it.
    pub line: usize,
    /// The paper's table or figure.
    pub table: String,
    /// The program and how it was used, such as `resnet50 train synthetic`.
    pub workload: String,
    /// The configuration, such as `xla off gpu params`.
    pub variant: String,
    /// Batch size, or the resolution of a picture.
    pub batch: String,
    /// Round trip of a PCIe read.
    pub rtt_us: f64,
    /// Mean duration of a kernel on the GPU, where it was published.
    pub mean_kernel_us: Option<f64>,
    /// Share of memory operations in the GPU's time, 0 to 1, where it was published.
    pub memop_share: Option<f64>,
    /// Performance kept, in percent of a GPU in the server.
    pub performance_pct: f64,
}

impl Row {
    /// A name that tells this row from every other.
    pub fn name(&self) -> String {
        let parts = [self.table.as_str(), &self.workload, &self.variant, &self.batch];
        let known: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        format!("{} @{}us", known.join(" / "), self.rtt_us)
    }
}

/// Why a file of rows cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {reason}")]
pub struct PaperError {
    /// Line of the file, counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub reason: String,
}

/// The rows of the paper.
///
/// # Panics
///
/// Never in a build whose tests passed: the file is part of the crate.
pub fn paper_rows() -> Vec<Row> {
    parse(PAPER_CSV).expect("the crate's own rows are well formed")
}

/// Reads rows. Lines that begin with `#` and empty lines are skipped; the first other line is the header.
pub fn parse(text: &str) -> Result<Vec<Row>, PaperError> {
    let mut lines = text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim_end()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    match lines.next() {
        Some((_, HEADER)) => {}
        Some((line, found)) => {
            return Err(PaperError { line, reason: format!("the header must be `{HEADER}`, not `{found}`") });
        }
        None => return Err(PaperError { line: 1, reason: "there is no header and no row".to_owned() }),
    }
    let rows: Vec<Row> = lines.map(|(line, text)| row(line, text)).collect::<Result<_, _>>()?;
    if rows.is_empty() {
        let line = text.lines().count().max(1);
        return Err(PaperError { line, reason: "there is a header but no row".to_owned() });
    }
    Ok(rows)
}

fn row(line: usize, text: &str) -> Result<Row, PaperError> {
    let fields: Vec<&str> = text.split(',').collect();
    let &[table, workload, variant, batch, rtt, kernel, share, performance] = fields.as_slice() else {
        return Err(PaperError { line, reason: format!("8 fields are needed, {} are there", fields.len()) });
    };
    let number = |name: &str, text: &str| match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err(PaperError { line, reason: format!("`{text}` is no {name}") }),
    };
    let optional = |name: &str, text: &str| match text {
        "" => Ok(None),
        text => number(name, text).map(Some),
    };
    let rtt_us = number("round trip", rtt)?;
    let mean_kernel_us = optional("mean kernel duration", kernel)?;
    let memop_share = optional("share of memory operations", share)?.map(|percent| percent / 100.0);
    let performance_pct = number("performance", performance)?;
    if performance_pct == 0.0 || mean_kernel_us == Some(0.0) {
        return Err(PaperError { line, reason: "performance and kernel duration cannot be 0".to_owned() });
    }
    let own = |text: &str| text.to_owned();
    Ok(Row {
        line,
        table: own(table),
        workload: own(workload),
        variant: own(variant),
        batch: own(batch),
        rtt_us,
        mean_kernel_us,
        memop_share,
        performance_pct,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_crate_holds_the_papers_seventy_rows_under_seventy_names() {
        let rows = paper_rows();
        assert_eq!(rows.len(), 70);
        assert_eq!(rows.iter().map(Row::name).collect::<HashSet<_>>().len(), 70);
    }

    #[test]
    fn an_error_names_its_line_and_reason() {
        let check = |text: &str, line: usize, reason: &str| {
            let error = parse(text).unwrap_err();
            assert_eq!(error.line, line, "{error}");
            assert!(error.reason.contains(reason), "{error}");
        };
        check("", 1, "no header");
        check("# only words", 1, "no header");
        check("table,workload", 1, "header must be");
        check(HEADER, 1, "no row");
        let with = |row: &str| format!("# source\n{HEADER}\n{row}\n");
        check(&with("9,a,b,32,6.8,56"), 3, "8 fields are needed, 6");
        check(&with("9,a,b,32,6.8,fast,0.2,85.2"), 3, "`fast` is no mean kernel duration");
        check(&with("9,a,b,32,-1,56,0.2,85.2"), 3, "`-1` is no round trip");
        check(&with("9,a,b,32,6.8,56,0.2,inf"), 3, "`inf` is no performance");
        check(&with("9,a,b,32,6.8,56,0.2,0"), 3, "cannot be 0");
    }
}
