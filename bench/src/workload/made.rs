//! Workloads that are drawn from a seed: lengths, shared prefixes, and conversations with pauses.

use std::time::Duration;

use serde_json::Map;

use super::{Content, Length, Piece, Session, Turn};
use crate::random::{Random, mix};

/// Pauses are exponential, and at most this many times their mean.
const MAX_PAUSE: f64 = 3.0;
/// Numbers of items that prefixes are drawn from, beyond those of sessions.
const PREFIXES: u64 = 1 << 62;
/// Draws until the lengths of a request are within its limit.
const MAX_DRAWS: usize = 100;

/// Beginnings that prompts share, as `prefix_repetition` of vLLM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    pub count: u64,
    pub tokens: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct Made {
    pub seed: u64,
    pub input: Length,
    pub output: Length,
    /// Most tokens of the input and the output of a turn together; longer ones are drawn again.
    pub max_total: Option<u32>,
    pub prefixes: Option<Prefixes>,
    /// Requests of a session.
    pub turns: u32,
    /// Mean pause before each turn but the first.
    pub pause: Duration,
}

impl Made {
    pub fn session(&self, number: u64) -> Session {
        let mut random = Random::of_item(self.seed, number);
        let turns = (0..self.turns).map(|turn| self.turn(turn, &mut random)).collect();
        Session { turns }
    }

    fn turn(&self, turn: u32, random: &mut Random) -> Turn {
        let (input, output) = self.lengths(random);
        let mut pieces = Vec::with_capacity(2);
        let prefix = self.prefixes.map(|prefixes| (prefixes.tokens, random.range(0, prefixes.count - 1)));
        if let (0, Some((tokens, prefix))) = (turn, prefix) {
            pieces.push(Piece { seed: mix(self.seed ^ mix(PREFIXES + prefix)), tokens });
        }
        pieces.push(Piece { seed: random.bits(), tokens: input });
        let pause =
            if turn == 0 { Duration::ZERO } else { self.pause.mul_f64(random.exponential().min(MAX_PAUSE)) };
        Turn { pause, content: Content::Pieces(pieces), output_tokens: output, extra: Map::new() }
    }

    fn lengths(&self, random: &mut Random) -> (u32, u32) {
        let limit = self.max_total.unwrap_or(u32::MAX);
        for _ in 0..MAX_DRAWS {
            let (input, output) = (self.input.draw(random), self.output.draw(random));
            if input.saturating_add(output) <= limit {
                return (input, output);
            }
        }
        (limit / 2, (limit / 2).max(1))
    }
}
