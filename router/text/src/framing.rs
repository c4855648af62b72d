//! The control tokens that a model puts around texts whose vectors are asked for.

use crate::error::TextError;
use crate::model_files::ModelText;
use crate::tokenizer::EncodeSpecial;

/// The ids around a single text, and around and between two texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Framing {
    pub before: Vec<u32>,
    pub after: Vec<u32>,
    pub pair: PairFraming,
}

/// Token ids in a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Framed {
    pub token_ids: Vec<u32>,
    /// The position at which the second of two texts begins, for models that tell them apart; 0 otherwise.
    pub second_text: u32,
}

/// The ids before, between and behind two texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PairFraming {
    pub before: Vec<u32>,
    pub between: Vec<u32>,
    /// The ids of `between` that the model counts to the first text; `None` if it does not tell texts apart.
    pub num_of_first: Option<usize>,
    pub after: Vec<u32>,
}

impl Framing {
    /// A frame of ids before and behind a text. Two texts follow each other in it.
    pub fn around(before: Vec<u32>, after: Vec<u32>) -> Self {
        let pair = PairFraming {
            before: before.clone(),
            between: Vec::new(),
            num_of_first: None,
            after: after.clone(),
        };
        Self { before, after, pair }
    }

    /// Reads the frame from ids of a text, with and without the frame, and of the same text twice in a frame, where
    /// `types` are 1 for ids of the second text.
    pub(crate) fn of_samples(plain: &[u32], whole: &[u32], pair: &[u32], types: &[u32]) -> Self {
        let find = |ids: &[u32]| ids.windows(plain.len().max(1)).position(|window| window == plain);
        let split = |ids: &[u32], at: usize| (ids[..at].to_vec(), ids[at + plain.len()..].to_vec());
        let Some(at) = find(whole) else { return Self::default() };
        let (before, after) = split(whole, at);
        let Some(at) = find(pair) else { return Self::around(before, after) };
        let (pair_before, rest) = split(pair, at);
        let Some(at) = find(&rest) else { return Self::around(before, after) };
        let (between, pair_after) = split(&rest, at);
        let begin = types.iter().position(|&id| id == 1);
        let num_of_first =
            begin.map(|at| at.saturating_sub(pair_before.len() + plain.len()).min(between.len()));
        Self {
            before,
            after,
            pair: PairFraming { before: pair_before, between, num_of_first, after: pair_after },
        }
    }
}

impl ModelText {
    /// Encodes a text, or two, in the model's frame. Control tokens in the texts are recognised.
    ///
    /// With `max_tokens`, a longer result is cut: the ends of the texts are dropped, those of the longer one first.
    pub fn encode_framed(
        &self,
        text: &str,
        second: Option<&str>,
        max_tokens: Option<usize>,
    ) -> Result<Framed, TextError> {
        let mut first = self.tokenizer.encode(text, EncodeSpecial::Allow)?;
        let Some(second) = second else {
            let Framing { before, after, .. } = &self.framing;
            if let Some(most) = max_tokens {
                first.truncate(most.saturating_sub(before.len() + after.len()));
            }
            let token_ids = [before, &first, after].map(Vec::as_slice).concat();
            return Ok(Framed { token_ids, second_text: 0 });
        };
        let mut second = self.tokenizer.encode(second, EncodeSpecial::Allow)?;
        let PairFraming { before, between, num_of_first, after } = &self.framing.pair;
        if let Some(most) = max_tokens {
            let room = most.saturating_sub(before.len() + between.len() + after.len());
            // Both get half of the room, and what one leaves goes to the other.
            let least = (room / 2).min(second.len());
            first.truncate(room - least);
            second.truncate(room - first.len());
        }
        let second_text = num_of_first.map_or(0, |count| (before.len() + first.len() + count) as u32);
        let token_ids = [before, &first, between, &second, after].map(Vec::as_slice).concat();
        Ok(Framed { token_ids, second_text })
    }
}
