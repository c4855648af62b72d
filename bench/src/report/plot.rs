//! Plots as SVG, which need no script. Colours are classes, so that the page chooses them.

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 40.0;
/// Lines of a grid, about.
const TICKS: f64 = 5.0;
/// Colours of the page.
pub const COLOURS: usize = 8;
/// Most points of a line; of more, some are left out.
const MAX_POINTS: usize = 1000;

/// A line, or points without one.
pub struct Series {
    pub title: String,
    pub points: Vec<(f64, f64)>,
    pub is_scatter: bool,
}

pub struct Plot<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    pub series: Vec<Series>,
}

impl Plot<'_> {
    /// Draws the plot in a figure with its title and legend; nothing without points.
    pub fn render(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let max = |value: fn(&(f64, f64)) -> f64| points().map(value).fold(0.0, f64::max);
        let (max_x, max_y) = (nice_end(max(|p| p.0)), nice_end(max(|p| p.1)));
        if points().next().is_none() {
            return String::new();
        }
        let place = |x: f64, y: f64| {
            let across = LEFT + x / max_x * (WIDTH - LEFT - RIGHT);
            let down = HEIGHT - BOTTOM - y / max_y * (HEIGHT - TOP - BOTTOM);
            (across, down)
        };
        let mut svg = format!(
            "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"{}\">",
            escape(self.title),
            escape(self.title)
        );
        for tick in ticks(max_y) {
            let (right, down) = place(max_x, tick);
            svg += &format!(
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right:.1}\" y1=\"{down:.1}\" y2=\"{down:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                down + 4.0,
                label(tick)
            );
        }
        for tick in ticks(max_x) {
            let (across, down) = place(tick, 0.0);
            svg += &format!(
                "<text x=\"{across:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                down + 16.0,
                label(tick)
            );
        }
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        svg += &format!(
            "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\" class=\"axis\">{}</text>\
             <text x=\"{LEFT}\" y=\"{:.1}\" class=\"axis\">{}</text>",
            HEIGHT - 6.0,
            escape(self.x),
            TOP - 9.0,
            escape(self.y)
        );
        for (number, series) in self.series.iter().enumerate() {
            svg += &drawn(series, number % COLOURS, &place);
        }
        svg + "</svg>" + &self.legend() + "</figure>"
    }

    fn legend(&self) -> String {
        if self.series.len() < 2 {
            return String::new();
        }
        let entry = |(number, series): (usize, &Series)| {
            format!("<span><i class=\"b{}\"></i>{}</span>", number % COLOURS, escape(&series.title))
        };
        let entries: String = self.series.iter().enumerate().map(entry).collect();
        format!("<p class=\"legend\">{entries}</p>")
    }
}

fn drawn(series: &Series, colour: usize, place: &impl Fn(f64, f64) -> (f64, f64)) -> String {
    let step = series.points.len().div_ceil(MAX_POINTS).max(1);
    let points = series.points.iter().step_by(step).map(|(x, y)| place(*x, *y));
    if series.is_scatter {
        return points
            .map(|(x, y)| format!("<circle class=\"f{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\"/>"))
            .collect();
    }
    let line: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let mut svg = format!("<polyline class=\"s{colour}\" points=\"{}\"/>", line.join(" "));
    if series.points.len() <= 20 {
        for (x, y) in series.points.iter().map(|(x, y)| place(*x, *y)) {
            svg += &format!("<circle class=\"f{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>");
        }
    }
    svg
}

/// Returns the distance of the lines of a grid up to `end`: 1, 2 or 5 times a power of ten.
fn step(end: f64) -> f64 {
    let rough = end / TICKS;
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= rough)
        .unwrap_or(rough)
}

/// Rounds up to a line of the grid.
fn nice_end(end: f64) -> f64 {
    if end <= 0.0 { 1.0 } else { (end / step(end)).ceil() * step(end) }
}

fn ticks(end: f64) -> impl Iterator<Item = f64> {
    let step = step(end);
    (0..=(end / step).round() as u32).map(move |i| f64::from(i) * step)
}

/// Writes the value of a line of the grid, without the error of its multiplication.
fn label(tick: f64) -> String {
    format!("{}", (tick * 1e6).round() / 1e6)
}

/// Makes text safe within HTML and its attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
