//! Traces in the format of the Mooncake project (FAST 2025): a JSON object a line with the time of arrival in
//! milliseconds, the lengths of input and output in tokens, and an id for each block of the input. Equal ids stand for
//! equal blocks.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Map;

use super::{Content, Piece, Session, Turn, WorkloadError, read};
use crate::random::mix;

const HINT: &str =
    "a line is {\"timestamp\": MS, \"input_length\": N, \"output_length\": N, \"hash_ids\": [ID, ...]}";

#[derive(Clone, Debug, Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

/// How lengths are read.
#[derive(Clone, Copy, Debug)]
pub struct TraceForm {
    /// Tokens for which an id stands.
    pub block_tokens: u32,
    /// The divisor of all lengths.
    pub shrink: u32,
    /// Longer inputs are cut to this.
    pub max_input_tokens: u32,
}

#[derive(Clone, Debug)]
pub struct Trace {
    seed: u64,
    form: TraceForm,
    lines: Vec<Line>,
}

pub fn trace(file: &str, seed: u64, form: TraceForm) -> Result<Trace, WorkloadError> {
    let mut lines = Vec::new();
    for (number, line) in read(file)?.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let problem = |problem: String| WorkloadError::Line {
            file: file.to_owned(),
            line: number + 1,
            problem,
            hint: HINT,
        };
        let line: Line = serde_json::from_str(line)
            .map_err(|error| problem(format!("is no line of a trace ({error})")))?;
        if !line.timestamp.is_finite() || line.timestamp < 0.0 {
            return Err(problem(format!("has the timestamp {}", line.timestamp)));
        }
        lines.push(line);
    }
    if lines.is_empty() {
        return Err(WorkloadError::File {
            file: file.to_owned(),
            problem: "has no line".to_owned(),
            hint: HINT,
        });
    }
    lines.sort_by(|a, b| a.timestamp.total_cmp(&b.timestamp));
    Ok(Trace { seed, form, lines })
}

impl Trace {
    pub fn num_sessions(&self) -> u64 {
        self.lines.len() as u64
    }

    /// Returns the time of each request after the first one.
    pub fn times(&self) -> impl Iterator<Item = Duration> + '_ {
        let first = self.lines[0].timestamp;
        self.lines.iter().map(move |line| Duration::from_secs_f64((line.timestamp - first) / 1000.0))
    }

    pub fn session(&self, number: u64) -> Session {
        let line = &self.lines[(number % self.num_sessions()) as usize];
        let TraceForm { block_tokens, shrink, max_input_tokens } = self.form;
        let block_tokens = (block_tokens / shrink).max(1);
        let mut left = (line.input_length / shrink).min(max_input_tokens).max(1);
        let mut pieces = Vec::with_capacity(line.hash_ids.len());
        for id in &line.hash_ids {
            let tokens = left.min(block_tokens);
            if tokens == 0 {
                break;
            }
            pieces.push(Piece { seed: mix(self.seed ^ mix(*id)), tokens });
            left -= tokens;
        }
        if left > 0 {
            // Tokens without an id are this request's own.
            pieces.push(Piece { seed: mix(self.seed.wrapping_add(mix(!number))), tokens: left });
        }
        let output_tokens = (line.output_length / shrink).max(1);
        Session {
            turns: vec![Turn {
                pause: Duration::ZERO,
                content: Content::Pieces(pieces),
                output_tokens,
                extra: Map::new(),
            }],
        }
    }
}
