//! Reasoning before a grammar begins, which is free text up to the closing mark.
//!
//! In the harmony format a reply is several messages. Those of reasoning come first, and each begins with a header that
//! says what it is; the grammar begins after the header of the content.

use llguidance::toktrie::{SimpleVob, TokEnv};
use trunkline_reply::ReasoningMarks;
use trunkline_text::{DecodeSpecial, EncodeSpecial, TextStart, Tokenizer};

use crate::error::GrammarError;
use crate::grammar_state::GrammarState;
use crate::mask::TokenMask;

/// The reasoning that may precede an output's grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reasoning {
    /// The output reasons if it begins with the opening mark. Outside the harmony format, that must be one token.
    Possible,
    /// The prompt opened reasoning.
    Begun,
}

/// The tokens of a vocabulary that matter to reasoning.
pub(crate) struct ReasoningTokens {
    env: TokEnv,
    marks: ReasoningMarks,
    /// The tokens allowed in reasoning: text without end tokens and without tokens that continue with more than white
    /// space after the closing mark.
    free: SimpleVob,
    /// The headers that may precede reasoning or content.
    headers: Vec<Header>,
    /// The number of tokens of every header that the prompt ends with.
    num_prompted: usize,
    /// Set if the content has a header. If not, the grammar also begins where there is none.
    has_content_header: bool,
    /// The closing mark as a control token, whose bytes the trie lacks.
    close: Option<u32>,
}

/// The tokens that precede a message. No header begins another.
struct Header {
    token_ids: Vec<u32>,
    opens_reasoning: bool,
}

/// The effect of a token inside reasoning.
enum InReasoning {
    /// Reasoning continues. Holds the last bytes, which may begin the closing mark.
    Continues(Vec<u8>),
    /// The token completes the closing mark, with nothing but white space after it.
    Closes,
    /// The token has other text after the closing mark, so it is not allowed.
    ClosesWithText,
}

impl ReasoningTokens {
    /// Creates the tables. `text` holds all tokens that an output may contain.
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        env: TokEnv,
        marks: ReasoningMarks,
        text: &SimpleVob,
        end_token_ids: &[u32],
    ) -> Self {
        let mut free = text.clone();
        end_token_ids.iter().for_each(|&id| free.disallow_token(id));
        let close = tokenizer.token_id(marks.close()).filter(|&id| id < tokenizer.vocab_size());
        if let Some(id) = close {
            free.allow_token(id);
        }
        let mut tokens =
            Self { env, marks, free, headers: Vec::new(), num_prompted: 0, has_content_header: false, close };
        let disallowed: Vec<u32> = tokens.closing_with_text(&[]).collect();
        disallowed.into_iter().for_each(|id| tokens.free.disallow_token(id));
        tokens.find_headers(tokenizer, end_token_ids);
        tokens
    }

    /// Finds the headers. There are none if the vocabulary cannot write them, or if the output would end at one.
    fn find_headers(&mut self, tokenizer: &Tokenizer, end_token_ids: &[u32]) {
        let marks = self.marks;
        if marks.content().is_empty() {
            let open = tokenizer.token_id(marks.open()).filter(|&id| id < tokenizer.vocab_size());
            self.headers =
                open.map(|id| Header { token_ids: vec![id], opens_reasoning: true }).into_iter().collect();
            return;
        }
        let written = |text: &str| {
            let ids = tokenizer.encode(text, EncodeSpecial::Allow).ok()?;
            let is_exact = tokenizer.decode(&ids, DecodeSpecial::Keep, TextStart::Continuation) == text;
            (is_exact && !ids.iter().any(|id| end_token_ids.contains(id))).then_some(ids)
        };
        let ends = self.close.is_some_and(|id| end_token_ids.contains(&id));
        let (Some(message), Some(open), Some(content), false) =
            (written(marks.message()), written(marks.open()), written(marks.content()), ends)
        else {
            return;
        };
        let header =
            |mark: &[u32], opens_reasoning| Header { token_ids: [&message, mark].concat(), opens_reasoning };
        self.headers = vec![header(&open, true), header(&content, false)];
        self.num_prompted = message.len();
        self.has_content_header = true;
    }

    /// Returns the headers that begin with the tokens `read`.
    fn headers_after<'a>(&'a self, read: &'a [u32]) -> impl Iterator<Item = &'a Header> {
        self.headers.iter().filter(move |header| header.token_ids.starts_with(read))
    }

    /// Returns the tokens that may follow in a header after the tokens `read`.
    fn next_of_headers(&self, read: &[u32]) -> Vec<u32> {
        self.headers_after(read).filter_map(|header| header.token_ids.get(read.len()).copied()).collect()
    }

    pub(crate) fn vocab_size(&self) -> usize {
        self.free.len()
    }

    /// Returns the tokens that may follow in reasoning after the bytes `tail`.
    fn mask(&self, tail: &[u8]) -> TokenMask {
        let close = self.marks.close().as_bytes();
        let begins_mark = (1..=tail.len()).any(|len| close.starts_with(&tail[tail.len() - len..]));
        let mut free = self.free.clone();
        if begins_mark {
            self.closing_with_text(tail).for_each(|id| free.disallow_token(id));
        }
        TokenMask::new(&free, &free)
    }

    fn closing_with_text(&self, tail: &[u8]) -> impl Iterator<Item = u32> {
        self.ids().filter(|&id| matches!(self.effect(tail, id), InReasoning::ClosesWithText))
    }

    /// Returns the effect of a token in reasoning after the bytes `tail`.
    fn effect(&self, tail: &[u8], id: u32) -> InReasoning {
        let (text, close) = ([tail, self.bytes(id)].concat(), self.marks.close().as_bytes());
        let at = text.windows(close.len()).position(|window| window == close);
        match at.map(|at| &text[at + close.len()..]) {
            None => InReasoning::Continues(text[text.len() - text.len().min(close.len() - 1)..].to_vec()),
            Some(rest) if rest.iter().all(u8::is_ascii_whitespace) => InReasoning::Closes,
            Some(_) => InReasoning::ClosesWithText,
        }
    }

    fn ids(&self) -> impl Iterator<Item = u32> {
        (0..self.free.len() as u32).filter(|&id| self.free.is_allowed(id))
    }

    fn bytes(&self, id: u32) -> &[u8] {
        if self.close == Some(id) { self.marks.close().as_bytes() } else { self.env.tok_trie().token(id) }
    }
}

/// The position of an output whose grammar has not begun.
#[derive(Debug, Clone)]
pub(crate) enum BeforeGrammar {
    /// In a header, with the tokens of it. Without a header of the content, the grammar may begin instead.
    Header(Vec<u32>),
    /// In reasoning, with the last bytes of it.
    Reasoning(Vec<u8>),
}

/// The tokens that may follow before the grammar.
pub(crate) enum TokensBefore {
    /// The only token that may follow.
    One(u32),
    Some(TokenMask),
}

/// The effect of a token before the grammar.
pub(crate) enum TokenEffect {
    /// The grammar still has not begun.
    StaysBefore(BeforeGrammar),
    /// The grammar begins after the token.
    GrammarFollows,
    /// The token is the first of the grammar.
    BeginsGrammar,
}

impl BeforeGrammar {
    /// Returns `None` if the output begins with its grammar.
    pub(crate) fn new(tokens: &ReasoningTokens, reasoning: Reasoning) -> Option<Self> {
        match reasoning {
            Reasoning::Possible => {
                let prompted =
                    |header: &Header| Self::Header(header.token_ids[..tokens.num_prompted].to_vec());
                tokens.headers.first().map(prompted)
            }
            Reasoning::Begun => Some(Self::Reasoning(Vec::new())),
        }
    }

    /// Returns the tokens that may follow. `state` is the beginning of the grammar.
    pub(crate) fn next(
        &self,
        tokens: &ReasoningTokens,
        state: &mut GrammarState,
    ) -> Result<TokensBefore, GrammarError> {
        let read = match self {
            Self::Header(read) => read,
            Self::Reasoning(tail) => return Ok(TokensBefore::Some(tokens.mask(tail))),
        };
        let next: Vec<u32> = tokens.next_of_headers(read);
        Ok(match (tokens.has_content_header, &next[..]) {
            (true, &[first, ref others @ ..]) if others.iter().all(|&id| id == first) => {
                TokensBefore::One(first)
            }
            (true, _) => TokensBefore::Some(TokenMask::of(next, tokens.vocab_size())),
            (false, _) => TokensBefore::Some(state.mask()?.mask.clone().with(next)),
        })
    }

    /// Advances by one of the last tokens that might follow.
    pub(crate) fn accept(self, tokens: &ReasoningTokens, id: u32) -> TokenEffect {
        match self {
            Self::Header(mut read) => {
                read.push(id);
                let header = tokens.headers_after(&read).next();
                match header.map(|header| (header.token_ids.len() == read.len(), header.opens_reasoning)) {
                    None => TokenEffect::BeginsGrammar,
                    Some((false, _)) => TokenEffect::StaysBefore(Self::Header(read)),
                    Some((true, true)) => TokenEffect::StaysBefore(Self::Reasoning(Vec::new())),
                    Some((true, false)) => TokenEffect::GrammarFollows,
                }
            }
            Self::Reasoning(tail) => match tokens.effect(&tail, id) {
                InReasoning::Continues(tail) => TokenEffect::StaysBefore(Self::Reasoning(tail)),
                InReasoning::Closes | InReasoning::ClosesWithText if tokens.has_content_header => {
                    TokenEffect::StaysBefore(Self::Header(Vec::new()))
                }
                InReasoning::Closes | InReasoning::ClosesWithText => TokenEffect::GrammarFollows,
            },
        }
    }
}
