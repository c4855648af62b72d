//! The columns of a table.

use unicode_width::UnicodeWidthStr;

const GAP: &str = "  ";

/// Aligns the columns of a table of Markdown; `None` if it is wider than `width`, or if its second line is no rule.
/// `paint` colours the rule.
pub(super) fn render(lines: &[String], width: usize, paint: impl Fn(&str) -> String) -> Option<String> {
    let rows: Vec<Vec<String>> = lines.iter().map(|line| cells(line)).collect();
    let is_rule = |row: &[String]| {
        row.iter().all(|cell| !cell.is_empty() && cell.chars().all(|c| matches!(c, '-' | ':')))
    };
    if !rows.get(1).is_some_and(|row| is_rule(row)) {
        return None;
    }
    let columns = rows.iter().map(Vec::len).max()?;
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let cells = rows.iter().filter(|row| !is_rule(row)).filter_map(|row| row.get(column));
            cells.map(|cell| cell.width()).max().unwrap_or(0)
        })
        .collect();
    let whole = widths.iter().sum::<usize>() + GAP.len() * columns.saturating_sub(1);
    if whole > width {
        return None;
    }
    let text = |row: &Vec<String>| {
        if is_rule(row) {
            return paint(&"─".repeat(whole));
        }
        let cells = row.iter().zip(&widths).map(|(cell, width)| {
            let blanks = " ".repeat(width.saturating_sub(cell.width()));
            format!("{cell}{blanks}")
        });
        cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
    };
    Some(rows.iter().map(|row| text(row) + "\n").collect())
}

/// Returns the cells of a row, without the marks of emphasis, which would have a width.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim();
    let line = line.strip_prefix('|').unwrap_or(line);
    let line = line.strip_suffix('|').unwrap_or(line);
    line.split('|').map(|cell| cell.trim().replace("**", "").replace('`', "").replace('\t', " ")).collect()
}
