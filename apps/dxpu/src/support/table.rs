//! Tables: those of the pool's tools, which fit the terminal, and those of figures.

use crate::support::paint::{Paper, Tone};

/// One value, and how it is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), tone: Tone::Plain }
    }
}

impl Cell {
    pub(crate) fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }
}

/// A column's head, and how it behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    /// Text that is shown whole.
    Whole(&'static str),
    /// Text that is cut where there is no room.
    Cut(&'static str),
    /// A number.
    Number(&'static str),
    /// Text that can be spared, as it repeats another column or is one figure more: the column is left out where there is no
    /// room for it.
    Spare(&'static str),
}

impl Column {
    fn head(self) -> &'static str {
        match self {
            Self::Whole(head) | Self::Cut(head) | Self::Number(head) | Self::Spare(head) => head,
        }
    }
}

/// Two spaces between columns.
const GAP: usize = 2;
/// Less of a text says little. Only where even that has no room, texts become as short as the second number.
const CUT_MIN: [usize; 2] = [8, 3];

/// The table as lines, heads first.
pub(crate) fn lines(columns: &[Column], rows: &[Vec<Cell>], paper: Paper) -> Vec<String> {
    let widths = widths(columns, rows, paper.width);
    let is_too_wide = paper.width.is_some_and(|room| total(&widths) > room);
    if is_too_wide && let Some(spare) = columns.iter().rposition(|column| matches!(column, Column::Spare(_)))
    {
        let without = |row: &Vec<Cell>| {
            row.iter()
                .enumerate()
                .filter(|(index, _)| *index != spare)
                .map(|(_, cell)| cell.clone())
                .collect()
        };
        let rows: Vec<Vec<Cell>> = rows.iter().map(without).collect();
        return lines(&[&columns[..spare], &columns[spare + 1..]].concat(), &rows, paper);
    }
    let head: Vec<Cell> = columns.iter().map(|column| Cell::toned(column.head(), Tone::Faint)).collect();
    std::iter::once(&head).chain(rows).map(|row| line(columns, row, &widths, paper)).collect()
}

fn widths(columns: &[Column], rows: &[Vec<Cell>], room: Option<usize>) -> Vec<usize> {
    let natural = |index: usize| {
        let cells = rows.iter().filter_map(|row| row.get(index)).map(|cell| width_of(&cell.text));
        cells.chain([width_of(columns[index].head())]).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..columns.len()).map(natural).collect();
    let Some(room) = room else { return widths };
    // The widest gives way first, until it fits or all that can be cut are short.
    for least in CUT_MIN {
        while total(&widths) > room {
            let can_shrink = |index: &usize| matches!(columns[*index], Column::Cut(head) if widths[*index] > width_of(head).max(least));
            let Some(widest) = (0..columns.len()).filter(can_shrink).max_by_key(|index| widths[*index])
            else {
                break;
            };
            widths[widest] -= 1;
        }
    }
    widths
}

fn total(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
}

fn line(columns: &[Column], row: &[Cell], widths: &[usize], paper: Paper) -> String {
    let mut line = String::new();
    for (index, (cell, width)) in row.iter().zip(widths).enumerate() {
        let text = cut(&cell.text, *width);
        let pad = " ".repeat(width - width_of(&text).min(*width));
        let painted = cell.tone.paint(&text, paper.is_colourful);
        let is_last = index + 1 == columns.len();
        match columns[index] {
            Column::Number(_) => {
                line.push_str(&pad);
                line.push_str(&painted);
            }
            _ => {
                line.push_str(&painted);
                if !is_last {
                    line.push_str(&pad);
                }
            }
        }
        if !is_last {
            line.push_str(&" ".repeat(GAP));
        }
    }
    line.truncate(line.trim_end().len());
    line
}

/// Names in a pool are ASCII; notes are what people write, where one character is close enough to one place.
fn width_of(text: &str) -> usize {
    text.chars().count()
}

/// At most so many characters. Control characters, which others may have written, do not reach the terminal.
pub(crate) fn cut(text: &str, width: usize) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { '·' } else { c }).collect();
    if width_of(&clean) <= width {
        return clean;
    }
    clean.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// A table of figures as text: the first column, which names the rows, to the left and all others to the right. Nothing is
/// cut.
pub(crate) fn figures(heads: &[&'static str], rows: &[Vec<String>]) -> String {
    let column = |(index, head): (usize, &&'static str)| match index {
        0 => Column::Whole(head),
        _ => Column::Number(head),
    };
    let columns: Vec<Column> = heads.iter().enumerate().map(column).collect();
    let rows: Vec<Vec<Cell>> =
        rows.iter().map(|row| row.iter().map(|text| text.as_str().into()).collect()).collect();
    let plain = Paper { width: None, height: None, is_colourful: false };
    lines(&columns, &rows, plain).into_iter().map(|line| line + "\n").collect()
}

/// Prints [`figures`].
pub(crate) fn print_figures(heads: &[&'static str], rows: &[Vec<String>]) {
    out!("{}", figures(heads, rows));
}

/// Names and values of one thing, one below the other.
pub(crate) fn pairs(pairs: &[(&str, String)], paper: Paper) -> Vec<String> {
    let width = pairs.iter().map(|(name, _)| width_of(name)).max().unwrap_or(0);
    let show = |(name, value): &(&str, String)| {
        let value = cut(value, usize::MAX);
        format!(
            "{}{}  {value}",
            Tone::Faint.paint(name, paper.is_colourful),
            " ".repeat(width - width_of(name))
        )
    };
    pairs.iter().map(show).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [Column::Whole("ID"), Column::Number("GPUS"), Column::Cut("NOTE")];

    fn paper(width: Option<usize>) -> Paper {
        Paper { width, height: None, is_colourful: false }
    }

    fn row(id: &str, gpus: &str, note: &str) -> Vec<Cell> {
        vec![id.into(), gpus.into(), note.into()]
    }

    #[test]
    fn columns_line_up_and_long_text_is_cut_to_fit() {
        let rows = [row("a", "1", "short"), row("bcd", "12", "a note that is much too long for it")];
        let whole = lines(&COLUMNS, &rows, paper(None));
        assert_eq!(whole[0], "ID   GPUS  NOTE");
        assert_eq!(whole[1], "a       1  short");
        assert!(whole[2].ends_with("too long for it"));
        let narrow = lines(&COLUMNS, &rows, paper(Some(24)));
        assert_eq!(narrow[2], "bcd    12  a note that …");
        assert!(narrow.iter().all(|line| width_of(line) <= 24));
    }

    #[test]
    fn what_cannot_be_cut_is_shown_whole_even_without_room() {
        let rows = [row("a-long-identifier", "1", "note")];
        assert!(lines(&COLUMNS, &rows, paper(Some(10)))[1].starts_with("a-long-identifier"));
    }

    #[test]
    fn a_spare_column_is_left_out_where_there_is_no_room() {
        let columns = [Column::Whole("ID"), Column::Spare("BAR"), Column::Cut("NOTE")];
        let rows = [row("a", "xxxxxxxxxx", "a note of some length")];
        assert_eq!(lines(&columns, &rows, paper(Some(24)))[1], "a   xxxxxxxxxx  a note …");
        assert_eq!(lines(&columns, &rows, paper(Some(17)))[1], "a   a note of so…");
    }

    #[test]
    fn figures_stand_to_the_right_of_the_name_of_their_row() {
        let rows = [["warm", "2", "1.50"], ["cold start", "11", ""]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(
            figures(&["what", "number", "ms"], &rows),
            "what        number    ms\nwarm             2  1.50\ncold start      11\n"
        );
    }

    #[test]
    fn a_note_cannot_steer_the_terminal() {
        let text = &lines(&COLUMNS, &[row("a", "1", "x\x1b[2J\ny")], paper(None))[1];
        assert!(text.ends_with("x·[2J·y"), "{text}");
    }
}
