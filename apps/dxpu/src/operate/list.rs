//! `ls` and `show`: once or for as long as the user watches, as a table or as JSON.

use super::ask;
use crate::support::exit::{Exit, Outcome};
use crate::support::paint::Paper;
use crate::support::pool_access::{PoolAccess, failure};
use crate::support::table::{self, Cell, Column};
use crate::support::yaml;
use anyhow::Context;
use pool_client::{Client, ClientError};
use serde::Serialize;
use std::io::Write;
use std::time::Duration;

/// How answers are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people
    Table,
    /// For people with wide screens
    Wide,
    /// As the API gives it
    Json,
    /// The same as YAML
    Yaml,
    /// Only names, one a line
    #[value(hide = true)]
    Name,
}

impl Format {
    /// A value for programs; none for people, who get a table.
    pub(crate) fn of<T: Serialize>(self, value: &T, is_repeated: bool) -> anyhow::Result<Option<String>> {
        Ok(Some(match self {
            Self::Table | Self::Wide => return Ok(None),
            Self::Json if is_repeated => serde_json::to_string(value)? + "\n",
            Self::Json => serde_json::to_string_pretty(value)? + "\n",
            Self::Yaml if is_repeated => format!("---\n{}", yaml::document(&serde_json::to_value(value)?)),
            Self::Yaml => yaml::document(&serde_json::to_value(value)?),
            Self::Name => names(&serde_json::to_value(value)?),
        }))
    }
}

/// What things are called: `id` where they have one, else `name`.
fn names(value: &serde_json::Value) -> String {
    let items = match value {
        serde_json::Value::Array(items) => items.as_slice(),
        one => std::slice::from_ref(one),
    };
    let name = |item: &serde_json::Value| {
        let name =
            ["id", "name", "tenant", "owner", "model"].iter().find_map(|field| item.get(field)?.as_str())?;
        Some(format!("{name}\n"))
    };
    items.iter().filter_map(name).collect()
}

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Look {
    #[command(flatten)]
    pub(crate) access: PoolAccess,
    /// How to show it
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
    pub(crate) output: Format,
    /// Show it again whenever it changes, until Ctrl-C
    #[arg(short, long)]
    pub(crate) watch: bool,
}

impl Look {
    pub(crate) fn is_wide(&self) -> bool {
        self.output == Format::Wide
    }

    /// Shows what `fetch` gives: `show` turns it into lines, JSON shows it as it is.
    pub(crate) fn show<T: Serialize>(
        &self,
        fetch: impl Fn(&Client) -> Result<T, ClientError>,
        show: impl Fn(&T, Paper) -> Vec<String>,
    ) -> Outcome {
        let client = self.access.client()?;
        let mut last = None;
        loop {
            let paper = Paper::stdout();
            // Asked for first: a change between the two questions is seen by the next wait, not lost.
            let version = if self.watch { Some(current(&client).map_err(failure)?) } else { None };
            let value = fetch(&client).map_err(failure)?;
            let text = match self.output.of(&value, self.watch)? {
                Some(text) => text,
                None => show(&value, paper).join("\n") + "\n",
            };
            if last.as_ref() != Some(&text) {
                let clear = if self.watch && paper.width.is_some() { "\x1b[H\x1b[2J" } else { "" };
                if !print(&format!("{clear}{text}"))? {
                    return Ok(Exit::Success);
                }
                last = Some(text);
            }
            let Some(version) = version else { return Ok(Exit::Success) };
            ask::wait_for_change(&client, version, WATCH_WAIT).map_err(failure)?;
        }
    }

    /// The same for a list.
    pub(crate) fn table<T: Serialize>(
        &self,
        columns: &[Column],
        fetch: impl Fn(&Client) -> Result<Vec<T>, ClientError>,
        row: impl Fn(&T) -> Vec<Cell>,
        empty: &str,
    ) -> Outcome {
        self.show(fetch, |items: &Vec<T>, paper| {
            let rows: Vec<Vec<Cell>> = items.iter().map(&row).collect();
            if rows.is_empty() { vec![empty.to_owned()] } else { table::lines(columns, &rows, paper) }
        })
    }
}

/// What GPUs measure changes without a change of the pool: so often one looks anyway.
const WATCH_WAIT: Duration = Duration::from_secs(2);

fn current(client: &Client) -> Result<u64, ClientError> {
    // No pool is at version 0, so this does not wait.
    ask::wait_for_change(client, 0, Duration::ZERO)
}

/// Prints; returns whether the reader of standard output is still there.
pub(crate) fn print(text: &str) -> anyhow::Result<bool> {
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        other => other.map(|()| true).context("cannot write the answer"),
    }
}

/// Shows the one thing that a command changed.
pub(crate) fn changed<T: Serialize>(output: Format, value: &T, said: &str) -> Outcome {
    print(&output.of(value, false)?.unwrap_or_else(|| format!("{said}\n")))?;
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_format_for_programs_has_all_of_the_answer() {
        let value = json!([{"id": "a/0", "name": "x"}, {"name": "b"}]);
        assert_eq!(Format::Name.of(&value, false).unwrap().unwrap(), "a/0\nb\n");
        assert!(Format::Json.of(&value, true).unwrap().unwrap().starts_with("[{\"id\":\"a/0\""));
        assert!(Format::Yaml.of(&value, false).unwrap().unwrap().starts_with("- id: a/0\n"));
        assert!(Format::Wide.of(&value, false).unwrap().is_none());
    }
}
