//! The control tokens that a model puts around texts whose vectors are asked for.

/// The ids around a single text, and around and between two texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Framing {
    pub before: Vec<u32>,
    pub after: Vec<u32>,
    pub pair: PairFraming,
}

/// One or two texts in a frame. The ids are borrowed, so one text may be framed with thousands of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Framed<'a> {
    parts: [&'a [u32]; 5],
    /// The position at which the second of two texts begins, for models that tell them apart; 0 otherwise.
    pub second_text: u32,
}

impl<'a> Framed<'a> {
    /// Returns ids that have their frame already.
    pub fn whole(token_ids: &'a [u32]) -> Self {
        Self { parts: [token_ids, &[], &[], &[], &[]], second_text: 0 }
    }

    /// Returns the number of ids, with those of the frame.
    pub fn num_tokens(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }

    pub fn token_ids(&self) -> Vec<u32> {
        self.parts.concat()
    }
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

    /// Puts the frame around the ids of one or two texts, which were encoded on their own.
    ///
    /// With `max_tokens`, a longer result is cut: the ends of the texts are dropped, those of the longer one first.
    pub fn frame<'a>(
        &'a self,
        mut first: &'a [u32],
        second: Option<&'a [u32]>,
        max_tokens: Option<usize>,
    ) -> Framed<'a> {
        let Some(mut second) = second else {
            let Self { before, after, .. } = self;
            if let Some(most) = max_tokens {
                first = cut(first, most.saturating_sub(before.len() + after.len()));
            }
            return Framed { parts: [before, first, after, &[], &[]], second_text: 0 };
        };
        let PairFraming { before, between, num_of_first, after } = &self.pair;
        if let Some(most) = max_tokens {
            let room = most.saturating_sub(before.len() + between.len() + after.len());
            // Both get half of the room, and what one leaves goes to the other.
            let least = (room / 2).min(second.len());
            first = cut(first, room - least);
            second = cut(second, room - first.len());
        }
        let second_text = num_of_first.map_or(0, |count| (before.len() + first.len() + count) as u32);
        Framed { parts: [before, first, between, second, after], second_text }
    }
}

/// Returns at most `most` of the first ids.
fn cut(token_ids: &[u32], most: usize) -> &[u32] {
    &token_ids[..most.min(token_ids.len())]
}
