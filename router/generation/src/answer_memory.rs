//! The memory of whole answers and of stored conversations that requests continue, which all requests share.
//!
//! A streamed answer needs little memory, because it is sent while it is generated. A whole answer is collected first,
//! and its text waits in memory until the client has read it. Its first [`UNCOUNTED_ANSWER_BYTES`] are free, so short
//! answers are served even while clients that read slowly hold all the rest. A stored conversation is charged in the
//! same way to each request that continues it.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, to_bytes};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use super::generate::OutputToken;
use crate::request::ready::GenerationRequest;
use trunkline_base::error::ApiError;
use trunkline_base::limits::{MAX_WRITE_BYTES, UNCOUNTED_ANSWER_BYTES};
use trunkline_base::tenants::{HeldMemory, NoMemory};

/// The memory of a token while its answer is written: the token, its entry in the answer, and its JSON text, whose
/// buffer is briefly in memory twice.
const TOKEN_BYTES: usize = 400;
/// The same for each of its likeliest tokens.
const TOP_LOGPROB_BYTES: usize = 288;
/// The bytes of memory for a byte of text, which is collected, read as a reply, and written as JSON.
pub const BYTES_OF_TEXT_BYTE: usize = 4;
/// The memory of a token where an answer repeats the logprobs of a prompt: its JSON text, whose buffer is briefly in
/// memory twice.
const REPEATED_TOKEN_BYTES: usize = 160;
/// The same for each of its likeliest tokens.
const REPEATED_TOP_LOGPROB_BYTES: usize = 80;
/// The bytes of memory for a byte of text that an answer repeats, which is written as JSON.
const BYTES_OF_REPEATED_BYTE: usize = 2;
/// The same for the id of a token.
const REPEATED_TOKEN_ID_BYTES: usize = 16;
/// The memory that is taken together, so that most tokens take none.
const BYTES_AT_ONCE: usize = 64 << 10;

/// Returns the memory for answering with a token or a prompt's logprob.
fn token_bytes(num_top: usize) -> usize {
    TOKEN_BYTES + num_top * TOP_LOGPROB_BYTES
}

/// Returns the least memory for answering `num_choices` outputs of each request, as far as it is known before they are
/// computed.
pub fn least_bytes(requests: &[GenerationRequest], num_choices: usize, keeps_tokens: bool) -> usize {
    let of_request = |request: &GenerationRequest| {
        let sequence = &request.sequence;
        let sampling = &sequence.sampling;
        let prompt = sampling
            .prompt_logprobs
            .map_or(0, |num_top| scores_bytes(sequence.token_ids.len(), num_top as usize));
        let has_end = !sequence.ignore_eos || !request.delivery.stops.is_empty();
        let num_tokens = if has_end { sampling.min_tokens } else { sequence.max_new_tokens };
        let per_token = if keeps_tokens { token_bytes(sampling.num_top_logprobs as usize) } else { 0 };
        prompt.saturating_add((num_tokens as usize).saturating_mul(per_token).saturating_mul(num_choices))
    };
    requests.iter().map(of_request).fold(0, usize::saturating_add)
}

/// Returns the memory for answering with the logprobs of a prompt.
pub fn scores_bytes(num_tokens: usize, num_top: usize) -> usize {
    num_tokens.saturating_mul(token_bytes(num_top))
}

/// Returns the memory for answering `num_times` more with the logprobs of a prompt.
pub fn repeated_scores_bytes(num_tokens: usize, num_top: usize, num_times: usize) -> usize {
    let of_token = REPEATED_TOKEN_BYTES + num_top * REPEATED_TOP_LOGPROB_BYTES;
    num_tokens.saturating_mul(of_token).saturating_mul(num_times)
}

/// Returns the memory for answering `num_times` with a text that the request has.
pub fn repeated_text_bytes(text: &str, num_times: usize) -> usize {
    text.len().saturating_mul(num_times.saturating_mul(BYTES_OF_REPEATED_BYTE).saturating_add(1))
}

/// Returns the memory for answering `num_times` with the ids of a prompt.
pub fn repeated_ids_bytes(num_tokens: usize, num_times: usize) -> usize {
    num_tokens
        .saturating_mul(num_times.saturating_mul(REPEATED_TOKEN_ID_BYTES).saturating_add(size_of::<u32>()))
}

/// Returns the memory for answering with a piece of an output and its token, if that is kept.
pub fn output_bytes(text: &str, token: Option<&OutputToken>) -> usize {
    BYTES_OF_TEXT_BYTE * text.len() + token.map_or(0, |token| token_bytes(token.top_logprobs.len()))
}

/// The memory that one whole answer holds. Dropping it returns the memory.
#[derive(Debug)]
pub struct AnswerMemory {
    held: HeldMemory,
    /// The memory for what the answer repeats of its prompts, in addition to that of its outputs.
    prompt_bytes: usize,
}

impl AnswerMemory {
    pub fn new(held: HeldMemory) -> Self {
        Self { held, prompt_bytes: 0 }
    }

    /// Returns the memory that the answer has, without its first part.
    pub fn num_bytes(&self) -> usize {
        self.held.num_bytes()
    }

    /// Takes memory for what the answer repeats of its prompts. Later sizes are those of the outputs only.
    pub fn repeat_prompts(&mut self, num_bytes: usize) -> Result<(), ApiError> {
        self.prompt_bytes = num_bytes;
        self.grow_to(0)
    }

    /// Takes memory until the answer has at least `num_bytes` for its outputs. Fails if an answer may not be so large,
    /// or if other answers hold too much.
    pub fn grow_to(&mut self, num_bytes: usize) -> Result<(), ApiError> {
        let num_counted = num_bytes.saturating_add(self.prompt_bytes).saturating_sub(UNCOUNTED_ANSWER_BYTES);
        if num_counted <= self.held.num_bytes() {
            return Ok(());
        }
        self.held.grow_to(num_counted.next_multiple_of(BYTES_AT_ONCE)).map_err(|error| match error {
            NoMemory::InUse => ApiError::TooManyAnswers,
            NoMemory::TooMuch { limit_bytes } => ApiError::AnswerTooLarge { limit: limit_bytes },
        })
    }

    /// Gives back memory that an answer of `num_bytes` does not need.
    pub fn shrink_to(&mut self, num_bytes: usize) {
        self.held.shrink_to(num_bytes.saturating_sub(UNCOUNTED_ANSWER_BYTES));
    }

    /// Holds the memory of a complete answer until it is written or its connection is gone.
    pub async fn hold(mut self, response: Response) -> Result<Response, ApiError> {
        let (parts, body) = response.into_parts();
        // The body is in memory already, in one piece, so nothing is awaited.
        let bytes = to_bytes(body, usize::MAX).await.map_err(|_| ApiError::BodyBroken)?;
        self.prompt_bytes = 0;
        self.grow_to(bytes.len())?;
        self.shrink_to(bytes.len());
        if self.num_bytes() == 0 {
            return Ok(Response::from_parts(parts, Body::from(bytes)));
        }
        let bytes = if bytes.is_unique() { shrunk(bytes) } else { bytes };
        let rest = Bytes::from_owner(HeldBytes { bytes, _memory: self });
        Ok(Response::from_parts(parts, Body::new(HeldBody { rest })))
    }
}

/// Returns the same bytes in a buffer that is not larger. The buffer in which they were written may be twice as large.
fn shrunk(bytes: Bytes) -> Bytes {
    let mut bytes = Vec::from(bytes);
    bytes.shrink_to_fit();
    bytes.into()
}

/// The bytes of an answer. Whoever writes them holds a reference, so the memory is returned after the last write.
struct HeldBytes {
    bytes: Bytes,
    _memory: AnswerMemory,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A body that hands out its bytes in pieces, because the HTTP library may copy each piece.
struct HeldBody {
    rest: Bytes,
}

impl hyper::body::Body for HeldBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let num_bytes = self.rest.len().min(MAX_WRITE_BYTES);
        if num_bytes == 0 {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(num_bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
