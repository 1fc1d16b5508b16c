//! Columns for people.

/// Prints rows under a header, the first column to the left and all others to the right.
pub(super) fn print(header: &[&str], rows: &[Vec<String>]) {
    print!("{}", text(header, rows));
}

/// The same as text.
pub(crate) fn text(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &[String]| {
        let mut text = String::new();
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let gap = width - cell.chars().count();
            if column == 0 {
                text.push_str(cell);
                text.extend(std::iter::repeat_n(' ', gap));
            } else {
                text.extend(std::iter::repeat_n(' ', gap + 2));
                text.push_str(cell);
            }
        }
        format!("{}\n", text.trim_end())
    };
    let header = line(&header.iter().map(|&cell| cell.to_owned()).collect::<Vec<_>>());
    std::iter::once(header).chain(rows.iter().map(|row| line(row))).collect()
}
