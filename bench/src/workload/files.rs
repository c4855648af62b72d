//! Prompts from files: a line of JSON each, or the ShareGPT data set.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Content, Length, Session, Turn, WorkloadError, read};
use crate::random::Random;

const PROMPTS_HINT: &str = "a line is {\"prompt\": \"...\"} or {\"messages\": [...]}, with \"output_tokens\", \"pause_s\" and \"extra_body\" if you like";
const SHAREGPT_HINT: &str =
    "it is a JSON array of {\"conversations\": [{\"from\": \"human\", \"value\": \"...\"}, ...]}";
/// Bytes of English text that make a token on average; there is no tokenizer here.
const BYTES_PER_TOKEN: usize = 4;
/// The bounds of vLLM's `sharegpt`, in tokens.
const MIN_TOKENS: usize = 4;
const MAX_PROMPT_TOKENS: usize = 1024;
const MAX_TOTAL_TOKENS: usize = 2048;

/// Prompts of a file, each a session of one turn.
#[derive(Clone, Debug)]
pub struct Listed {
    turns: Vec<Turn>,
}

impl Listed {
    pub fn num_sessions(&self) -> u64 {
        self.turns.len() as u64
    }

    pub fn turns(&self) -> impl Iterator<Item = &Turn> {
        self.turns.iter()
    }

    pub fn session(&self, number: u64) -> Session {
        Session { turns: vec![self.turns[(number % self.num_sessions()) as usize].clone()] }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Prompt {
        prompt: String,
        #[serde(flatten)]
        rest: Rest,
    },
    Messages {
        messages: Vec<Value>,
        #[serde(flatten)]
        rest: Rest,
    },
    Text(String),
}

#[derive(Default, Deserialize)]
struct Rest {
    output_tokens: Option<u32>,
    /// Time before the request.
    #[serde(default)]
    pause_s: f64,
    #[serde(default)]
    extra_body: Map<String, Value>,
}

/// Reads prompts, a JSON object each line. Those that do not say how long their output is have it from `output`.
pub fn prompts(file: &str, output: Length, seed: u64) -> Result<Listed, WorkloadError> {
    let mut turns = Vec::new();
    for (number, line) in read(file)?.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |problem: &str| WorkloadError::Line {
            file: file.to_owned(),
            line: number + 1,
            problem: problem.to_owned(),
            hint: PROMPTS_HINT,
        };
        let line = serde_json::from_str(line).map_err(|_| wrong("is no prompt"))?;
        let (content, rest) = match line {
            Line::Prompt { prompt, rest } => (Content::Text(prompt), rest),
            Line::Messages { messages, rest } => (Content::Messages(messages), rest),
            Line::Text(text) => (Content::Text(text), Rest::default()),
        };
        let drawn = output.draw(&mut Random::of_item(seed, number as u64));
        let output_tokens = rest.output_tokens.unwrap_or(drawn).max(1);
        let pause = Duration::try_from_secs_f64(rest.pause_s)
            .map_err(|_| wrong("has a `pause_s` that is no time in seconds"))?;
        turns.push(Turn { pause, content, output_tokens, extra: rest.extra_body });
    }
    not_empty(file, turns, "has no prompt", PROMPTS_HINT)
}

#[derive(Deserialize)]
struct Conversation {
    #[serde(default)]
    conversations: Vec<Message>,
}

#[derive(Deserialize)]
struct Message {
    value: String,
}

/// Reads the ShareGPT data set as vLLM does: the first two messages of each conversation are prompt and output, short
/// and long ones are left out, and the order comes from the seed. Lengths are estimated from bytes.
pub fn sharegpt(file: &str, seed: u64) -> Result<Listed, WorkloadError> {
    let conversations: Vec<Conversation> =
        serde_json::from_str(&read(file)?).map_err(|error| WorkloadError::File {
            file: file.to_owned(),
            problem: format!("is not that data set ({error})"),
            hint: SHAREGPT_HINT,
        })?;
    let mut turns = Vec::new();
    for conversation in conversations {
        let mut messages = conversation.conversations.into_iter().map(|message| message.value);
        let (Some(prompt), Some(answer)) = (messages.next(), messages.next()) else { continue };
        let (input, output) = (prompt.len() / BYTES_PER_TOKEN, answer.len() / BYTES_PER_TOKEN);
        if input.min(output) >= MIN_TOKENS && input <= MAX_PROMPT_TOKENS && input + output <= MAX_TOTAL_TOKENS
        {
            turns.push(Turn {
                pause: Duration::ZERO,
                content: Content::Text(prompt),
                output_tokens: output as u32,
                extra: Map::new(),
            });
        }
    }
    let mut random = Random::new(seed);
    for last in (1..turns.len()).rev() {
        turns.swap(last, random.range(0, last as u64) as usize);
    }
    not_empty(file, turns, "has no conversation of a fitting length", SHAREGPT_HINT)
}

fn not_empty(
    file: &str,
    turns: Vec<Turn>,
    problem: &str,
    hint: &'static str,
) -> Result<Listed, WorkloadError> {
    if turns.is_empty() {
        return Err(WorkloadError::File { file: file.to_owned(), problem: problem.to_owned(), hint });
    }
    Ok(Listed { turns })
}
