//! Requests of a recorded trace.

/// Tokens for which a line of a trace has one id.
const BLOCK_TOKENS: u32 = 512;
pub const VOCAB_SIZE: u32 = 1 << 17;

/// A request. Equal block ids mean an equal prefix up to there.
#[derive(Clone, Debug)]
pub struct Traced {
    pub at_ms: u64,
    pub num_prompt_tokens: u32,
    pub num_output_tokens: u32,
    pub blocks: Vec<u32>,
    /// Tokens for which there is one id.
    pub block_tokens: u32,
}

impl Traced {
    /// Parses a line such as `{"timestamp": 0, "input_length": 6, "output_length": 5, "hash_ids": [0, 1]}`. Prompts and
    /// blocks are `shrink` times as short as in the trace.
    pub fn parse(line: &str, shrink: u32) -> Option<Self> {
        let after = |name: &str| Some(line.split_once(name)?.1.trim_start_matches(['"', ':', ' ']));
        let number = |name: &str| {
            let text = after(name)?;
            text[..text.find(|c: char| !c.is_ascii_digit())?].parse::<u64>().ok()
        };
        let list = after("hash_ids")?.trim_start_matches('[');
        let ids = list[..list.find(']')?].split(',').map(|id| id.trim().parse::<u32>());
        Some(Self {
            at_ms: number("timestamp")?,
            num_prompt_tokens: (u32::try_from(number("input_length")?).ok()? / shrink).max(1),
            num_output_tokens: u32::try_from(number("output_length")?).ok()?.max(1),
            blocks: ids.collect::<Result<_, _>>().ok()?,
            block_tokens: BLOCK_TOKENS / shrink,
        })
    }

    /// Returns tokens that are those of other requests as far as the block ids are.
    pub fn prompt(&self) -> Vec<u32> {
        // Hashes of the positions in all blocks, so that two blocks are not equal.
        let token =
            |place: u64| ((place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % u64::from(VOCAB_SIZE)) as u32;
        let tokens = self.blocks.iter().flat_map(|&block| {
            let first = u64::from(block) * u64::from(self.block_tokens);
            (first..first + u64::from(self.block_tokens)).map(token)
        });
        tokens.take(self.num_prompt_tokens as usize).collect()
    }
}
