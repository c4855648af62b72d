//! `trunkline top`: a live view of a server.
//!
//! ```text
//! mod      asks the server, and draws until a key is pressed
//! metrics  reads the text of `/metrics`
//! view     what is shown
//! screen   where
//! ```

pub mod metrics;
pub mod screen;
pub mod view;

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::{DefaultTerminal, TerminalOptions};

use self::metrics::Samples;
use self::screen::Heading;
use self::view::{Cache, Scrape, View};
use crate::client::Endpoint;
use crate::error::Error;
use crate::style;

/// Time between two scrapes.
const INTERVAL: Duration = Duration::from_secs(1);
/// Percentiles are those of this time.
const WINDOW: usize = 30;
/// Rates are those of this time.
const RATE_WINDOW: usize = 3;
/// Speeds that a wide screen shows.
const MAX_SPEEDS: usize = 512;
/// How often a key is looked for.
const TICK: Duration = Duration::from_millis(100);

/// Where the numbers of a server are.
pub struct Source {
    pub server: Endpoint,
    /// The address of `--metrics-port`, which needs no key.
    pub metrics: Option<Endpoint>,
}

impl Source {
    /// Asks the server. Only the metrics are needed.
    fn scrape(&self, at: Duration) -> Result<Scrape, Error> {
        let (status, body) = self.metrics.as_ref().unwrap_or(&self.server).get("/metrics")?;
        let url = || self.server.url.clone();
        match status {
            200 => {}
            401 => return Err(Error::Unauthorized { url: url() }),
            _ => {
                return Err(Error::Foreign { url: url(), problem: format!("`/metrics` answered {status}") });
            }
        }
        let samples = Samples::parse(&String::from_utf8_lossy(&body));
        let cache = self.server.get("/v1/kv").ok().filter(|(status, _)| *status == 200);
        let cache = cache.and_then(|(_, body)| serde_json::from_slice::<Cache>(&body).ok());
        let not_ready = match self.server.get("/readyz") {
            Ok((200, _)) => None,
            Ok((_, body)) => {
                let answer: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
                Some(answer["error"].as_str().unwrap_or("not ready").to_owned())
            }
            Err(error) => Some(error.to_string()),
        };
        let models = self.server.models().unwrap_or_default();
        Ok(Scrape { at, samples, models, cache, not_ready })
    }
}

/// Returns one view as text. Its rates are those of a second, its percentiles those since the server's start.
pub fn once(source: &Source) -> Result<String, Error> {
    let begin = Instant::now();
    let before = source.scrape(begin.elapsed())?;
    thread::sleep(INTERVAL.saturating_sub(begin.elapsed()));
    let now = source.scrape(begin.elapsed())?;
    Ok(View::new(&now, &before, &Scrape::default()).text())
}

/// Shows the server until `q` is pressed.
pub fn live(source: Source) -> Result<(), Error> {
    // Errors of the first answer are those of the command.
    let begin = Instant::now();
    let first = source.scrape(begin.elapsed())?;
    let url = source.server.url.clone();
    let (sender, scrapes) = sync_channel(1);
    thread::spawn(move || {
        loop {
            thread::sleep(INTERVAL);
            if sender.send(source.scrape(begin.elapsed())).is_err() {
                return;
            }
        }
    });
    let mut terminal = ratatui::try_init_with_options(TerminalOptions::default()).map_err(Error::Terminal)?;
    let shown = show(&mut terminal, &url, first, &scrapes);
    ratatui::restore();
    shown
}

fn show(
    terminal: &mut DefaultTerminal,
    url: &str,
    first: Scrape,
    scrapes: &Receiver<Result<Scrape, Error>>,
) -> Result<(), Error> {
    let colours = style::has_colours(&std::io::stdout());
    let (mut past, mut speeds, mut problem) = (VecDeque::from([first]), Vec::new(), None);
    let mut is_changed = true;
    loop {
        while let Ok(scrape) = scrapes.try_recv() {
            is_changed = true;
            match scrape {
                Ok(scrape) => {
                    problem = scrape.not_ready.clone();
                    let speed = past.back().and_then(|before| view::output_rate(&scrape, before));
                    speeds.push(speed.unwrap_or(0.0) as u64);
                    past.push_back(scrape);
                }
                Err(error) => problem = Some(error.to_string()),
            }
        }
        past.drain(..past.len().saturating_sub(WINDOW + 1));
        speeds.drain(..speeds.len().saturating_sub(MAX_SPEEDS));
        if let (true, Some(now), Some(older)) = (is_changed, past.back(), past.front()) {
            let recent = &past[past.len().saturating_sub(RATE_WINDOW + 1)];
            let view = View::new(now, recent, older);
            let heading = Heading { url, problem: problem.as_deref(), speeds: &speeds, colours };
            terminal.draw(|frame| screen::draw(frame, &view, &heading)).map_err(Error::Terminal)?;
        }
        is_changed = false;
        if !event::poll(TICK).map_err(Error::Terminal)? {
            continue;
        }
        let event = event::read().map_err(Error::Terminal)?;
        is_changed = matches!(event, Event::Resize(..));
        if let Event::Key(key) = event {
            let leaves = match key.code {
                KeyCode::Char('q') | KeyCode::Esc => true,
                KeyCode::Char('c' | 'd') => key.modifiers.contains(KeyModifiers::CONTROL),
                _ => false,
            };
            if leaves {
                return Ok(());
            }
        }
    }
}
