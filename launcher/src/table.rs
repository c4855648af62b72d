//! Tables for a terminal.

/// Aligns the columns of `rows`, which are separated by two blanks; the last column is not padded.
pub(crate) fn render<const N: usize>(rows: &[[String; N]]) -> String {
    let width_of = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width_of);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
