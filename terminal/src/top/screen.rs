//! Lays the panels out on a screen.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Sparkline};

use super::view::{Panel, View};

/// Rows of a panel beside its lines.
const BORDERS: u16 = 2;
/// Rows of the panels on top.
const REQUESTS: u16 = 4 + BORDERS;
/// Rows that the lanes and the tenants share, at most.
const MAX_SMALL: u16 = 8 + BORDERS;

/// What is above and below the panels.
#[derive(Debug)]
pub struct Heading<'a> {
    pub url: &'a str,
    /// What is wrong, if something is.
    pub problem: Option<&'a str>,
    /// Tokens of output a second, oldest first.
    pub speeds: &'a [u64],
    pub colours: bool,
}

/// Draws a view on the whole screen. What does not fit is cut, and each panel says how many lines it lacks.
pub fn draw(frame: &mut Frame<'_>, view: &View, heading: &Heading<'_>) {
    let cache = view.cache.lines.len().max(1) as u16 + BORDERS;
    let rows = [
        Constraint::Length(1),
        Constraint::Length(REQUESTS),
        Constraint::Length(cache),
        Constraint::Min(3),
        Constraint::Length(1),
    ];
    let [top, middle, cache_row, rest, bottom] = Layout::vertical(rows).areas(frame.area());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut title = vec![Span::styled("trunkline top ", bold), Span::raw(heading.url)];
    if let Some(problem) = heading.problem {
        title.push(Span::styled(format!("  {problem}"), coloured(heading, Color::Red)));
    }
    frame.render_widget(Line::from(title), top);
    frame.render_widget(Line::from("q leaves").style(Style::new().add_modifier(Modifier::DIM)), bottom);

    let thirds = [Constraint::Length(28), Constraint::Min(10), Constraint::Length(42)];
    let [requests, speeds, latency] = Layout::horizontal(thirds).areas(middle);
    panel(frame, requests, &view.requests, heading);
    panel(frame, latency, &view.latency, heading);
    let newest = heading.speeds.len().saturating_sub(usize::from(speeds.width.saturating_sub(BORDERS)));
    let line = Sparkline::default()
        .data(&heading.speeds[newest..])
        .style(coloured(heading, Color::Cyan))
        .block(Block::bordered().title("Tokens/s"));
    frame.render_widget(line, speeds);
    panel(frame, cache_row, &view.cache, heading);

    let lists = [&view.models, &view.lanes, &view.tenants].map(|panel| panel.lines.len() as u16);
    let small = |lines: u16| if lines == 0 { 0 } else { (lines + BORDERS).min(MAX_SMALL) };
    let wanted = [Constraint::Min(3), Constraint::Max(small(lists[1])), Constraint::Max(small(lists[2]))];
    let [models, lanes, tenants] = Layout::vertical(wanted).areas(rest);
    panel(frame, models, &view.models, heading);
    panel(frame, lanes, &view.lanes, heading);
    panel(frame, tenants, &view.tenants, heading);
}

fn panel(frame: &mut Frame<'_>, area: Rect, panel: &Panel, heading: &Heading<'_>) {
    if area.height <= BORDERS {
        return;
    }
    let room = usize::from(area.height - BORDERS);
    let missing = panel.lines.len().saturating_sub(room);
    let title = if missing > 0 { format!("{}, {missing} more", panel.title) } else { panel.title.to_owned() };
    let lines: Vec<Line<'_>> = panel.lines.iter().take(room).map(|line| Line::from(line.as_str())).collect();
    let block = Block::bordered().title(Span::styled(title, coloured(heading, Color::Blue)));
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn coloured(heading: &Heading<'_>, colour: Color) -> Style {
    if heading.colours { Style::new().fg(colour) } else { Style::new() }
}
