//! The marks of reasoning in a vocabulary. Reasoning is free text up to its closing mark.
//!
//! In the harmony format a reply is several messages. Each begins with a header that says whether it is reasoning.

use std::sync::Arc;

use llguidance::toktrie::{SimpleVob, TokEnv};
use trunkline_reply::ReasoningMarks;
use trunkline_text::{DecodeSpecial, EncodeSpecial, TextStart, Tokenizer};

use crate::mask::TokenMask;
use crate::mask_cache::CachedMask;

/// The reasoning that an output may begin with.
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
    pub(crate) marks: ReasoningMarks,
    /// The tokens allowed in reasoning: text without end tokens and without tokens that continue with more than white
    /// space after the closing mark.
    free: SimpleVob,
    /// The headers that may precede reasoning or content.
    pub(crate) headers: Arc<[Header]>,
    /// The number of tokens of every header that the prompt ends with.
    pub(crate) num_prompted: usize,
    /// True if the content has a header. If not, the grammar also begins where there is none.
    pub(crate) has_content_header: bool,
    /// The tokens that write the closing mark. There are none if the vocabulary cannot write it.
    pub(crate) close: Vec<u32>,
    /// The marks that are control tokens, whose bytes the trie lacks.
    control: Vec<(u32, &'static str)>,
    /// The tokens allowed in reasoning where no closing mark has begun.
    free_mask: TokenMask,
    /// The tokens of the whole vocabulary.
    pub(crate) any: Arc<CachedMask>,
    /// The control token after which a channel is named, and the tokens that do not begin to name that of reasoning.
    pub(crate) channel: Option<(u32, Arc<CachedMask>)>,
}

/// The tokens that precede a message. No header begins another.
#[derive(Debug, Clone)]
pub(crate) struct Header {
    pub(crate) token_ids: Vec<u32>,
    pub(crate) opens_reasoning: bool,
    /// The first tokens of the grammar, which the header stands for.
    pub(crate) stands_for: Vec<u32>,
}

/// The effect of a token inside reasoning.
pub(crate) enum InReasoning {
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
        let id_of = |mark: &str| tokenizer.token_id(mark).filter(|&id| id < tokenizer.vocab_size());
        let control: Vec<(u32, &str)> =
            marks.shown().iter().filter_map(|mark| Some((id_of(mark)?, *mark))).collect();
        let close = id_of(marks.close());
        if let Some(id) = close {
            free.allow_token(id);
        }
        let mut tokens = Self {
            env,
            marks,
            headers: Arc::default(),
            num_prompted: 0,
            has_content_header: false,
            close: Vec::new(),
            control,
            any: Arc::new(CachedMask::unforced(TokenMask::new(&all(&free), &all(&free)))),
            channel: None,
            free_mask: TokenMask::new(&free, &free),
            free,
        };
        let disallowed: Vec<u32> = tokens.closing_with_text(&[]).collect();
        disallowed.into_iter().for_each(|id| tokens.free.disallow_token(id));
        tokens.free_mask = TokenMask::new(&tokens.free, &tokens.free);
        // The output does not end at a mark.
        let is_text = |ids: &Vec<u32>| !ids.iter().any(|id| end_token_ids.contains(id));
        let written = |text: &str| tokens.written(tokenizer, text).filter(is_text);
        let [message, open, content] = [marks.message(), marks.open(), marks.content()].map(written);
        let close = close.map_or_else(|| written(marks.close()), |id| Some(vec![id]).filter(is_text));
        tokens.close = close.unwrap_or_default();
        if marks.content().is_empty() {
            let header = |id| Header { token_ids: vec![id], opens_reasoning: true, stands_for: Vec::new() };
            tokens.headers = id_of(marks.open()).map(header).into_iter().collect();
        } else if let (Some(message), Some(open), Some(content), 1..) =
            (message, open, content, tokens.close.len())
        {
            let header = |mark: &[u32], opens_reasoning| Header {
                token_ids: [&message, mark].concat(),
                opens_reasoning,
                stands_for: Vec::new(),
            };
            tokens.headers = [header(&open, true), header(&content, false)].into();
            tokens.num_prompted = message.len();
            tokens.has_content_header = true;
            tokens.channel = tokens.channel_of(open[0]);
        }
        tokens
    }

    /// Returns the tokens that write a text, if the vocabulary can.
    fn written(&self, tokenizer: &Tokenizer, text: &str) -> Option<Vec<u32>> {
        let is_exact =
            |ids: &Vec<u32>| tokenizer.decode(ids, DecodeSpecial::Keep, TextStart::Continuation) == text;
        let usual = tokenizer.encode(text, EncodeSpecial::Allow).ok().filter(is_exact);
        // Some vocabularies write a space before a text's first word.
        usual.or_else(|| Some(self.env.tok_trie().greedy_tokenize(text.as_bytes())).filter(is_exact))
    }

    /// Returns the headers of an output that calls one of these functions, if the vocabulary can write them. Each
    /// stands for the beginning of a grammar that [`Self::call_start`] spells.
    pub(crate) fn call_headers<'a>(
        &self,
        tokenizer: &Tokenizer,
        names: impl Iterator<Item = &'a str>,
    ) -> Option<Arc<[Header]>> {
        let reasoning = self.headers.iter().find(|header| header.opens_reasoning)?;
        let message = &reasoning.token_ids[..self.num_prompted];
        let call = |name| {
            let mark = self.written(tokenizer, &self.marks.call(name)?)?;
            let stands_for = self.env.tok_trie().greedy_tokenize(Self::call_start(name).as_bytes());
            Some(Header { token_ids: [message, &mark].concat(), opens_reasoning: false, stands_for })
        };
        [Some(reasoning.clone())].into_iter().chain(names.map(call)).collect()
    }

    /// Returns the headers of an output that may begin with one of the marks of calls, if those begin with control
    /// tokens, or if each message has a header. A header stands for the text of its mark.
    pub(crate) fn mark_headers<'a>(
        &self,
        tokenizer: &Tokenizer,
        marks: impl Iterator<Item = &'a str>,
    ) -> Option<Arc<[Header]>> {
        let reasoning = self.headers.iter().find(|header| header.opens_reasoning);
        let message = reasoning.map_or(&[][..], |header| &header.token_ids[..self.num_prompted]);
        let call = |mark: &str| {
            let begins = |ids: &Vec<u32>| {
                self.has_content_header || ids.first().is_some_and(|id| tokenizer.is_special(*id))
            };
            let token_ids = self.written(tokenizer, mark).filter(begins)?;
            let stands_for = self.env.tok_trie().greedy_tokenize(mark.as_bytes());
            Some(Header { token_ids: [message, &token_ids].concat(), opens_reasoning: false, stands_for })
        };
        let calls: Vec<Header> = marks.filter_map(call).collect();
        (!calls.is_empty()).then(|| self.headers.iter().cloned().chain(calls).collect())
    }

    /// Returns the text that stands before the arguments of a call in the grammar. None begins another.
    pub(crate) fn call_start(name: &str) -> String {
        format!("{name}\n")
    }

    fn channel_of(&self, first: u32) -> Option<(u32, Arc<CachedMask>)> {
        let (_, name) = self.control.iter().find(|(id, _)| *id == first)?;
        let named = self.marks.open().strip_prefix(name)?.as_bytes();
        let mut others = all(&self.free);
        let begins = |id: &u32| !self.bytes(*id).is_empty() && named.starts_with(self.bytes(*id));
        (0..self.free.len() as u32).filter(begins).for_each(|id| others.disallow_token(id));
        Some((first, Arc::new(CachedMask::unforced(TokenMask::new(&others, &others)))))
    }

    pub(crate) fn vocab_size(&self) -> usize {
        self.free.len()
    }

    /// Returns the tokens that may follow in reasoning after the bytes `tail`.
    pub(crate) fn mask(&self, tail: &[u8]) -> TokenMask {
        let close = self.marks.close().as_bytes();
        let begins_mark = (1..=tail.len()).any(|len| close.starts_with(&tail[tail.len() - len..]));
        if !begins_mark {
            return self.free_mask.clone();
        }
        let mut free = self.free.clone();
        self.closing_with_text(tail).for_each(|id| free.disallow_token(id));
        TokenMask::new(&free, &free)
    }

    fn closing_with_text(&self, tail: &[u8]) -> impl Iterator<Item = u32> {
        self.ids().filter(|&id| matches!(self.effect(tail, id), InReasoning::ClosesWithText))
    }

    /// Returns the effect of a token in reasoning after the bytes `tail`.
    pub(crate) fn effect(&self, tail: &[u8], id: u32) -> InReasoning {
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

    /// Returns the text of a token, as far as it has any.
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let control = self.control.iter().find(|(control, _)| *control == id);
        control.map_or_else(|| self.env.tok_trie().token(id), |(_, mark)| mark.as_bytes())
    }
}

/// Returns all tokens of the vocabulary of `some`.
fn all(some: &SimpleVob) -> SimpleVob {
    let mut all = some.clone();
    (0..some.len() as u32).for_each(|id| all.allow_token(id));
    all
}
