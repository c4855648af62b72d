//! Routes that read a vector of each text: embeddings, scores of pairs, and classes.
//!
//! OpenAI, Cohere, Jina, vLLM and Text Embeddings Inference (TEI) have them. They share the way to the vectors, which
//! is here; the routes differ in the forms of requests and answers.

pub mod classify;
pub mod embeddings;
pub mod ollama;
pub mod rerank;
mod scoring;

use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use trunkline_scheduler::{PooledPrompt, Pooling};
use trunkline_text::{EncodeSpecial, Framed, Framing, ModelText, TextError};
use utoipa::ToSchema;

use super::app::App;
use super::openai::{Prompt, Prompts};
use super::pipeline::Scope;
use trunkline_base::error::ApiError;
use trunkline_base::limits::{MAX_QUESTION_BYTES, MAX_VECTOR_INPUTS};
use trunkline_base::tenants::Caller;
use trunkline_engine::shard::{ShardInfo, Vectors as VectorInfo};
use trunkline_generation::adapters::{Chosen, Named};
use trunkline_generation::admission::Admitted;
use trunkline_generation::answer_memory::AnswerMemory;
use trunkline_generation::models::{KeepAlive, ModelId};
use trunkline_generation::place::Place;
use trunkline_generation::request::checked::CheckedParams;
use trunkline_generation::request::raw::{FieldNames, RawParams};
use trunkline_generation::request::ready;
use trunkline_generation::vectors::Vectors;
use trunkline_http::{IgnoredFields, OtherFields, Refused, parse_noting};

/// Fields of all these routes that are refused, because ignoring them would change the answer.
const REFUSED: &[Refused] = &[
    Refused { field: "add_special_tokens", neutral: &["true"], hint: "send token ids for full control" },
    Refused {
        field: "truncation_direction",
        neutral: &["\"right\"", "\"Right\""],
        hint: "texts are cut at their end",
    },
    Refused { field: "prompt_name", neutral: &[], hint: "put the prompt into the text" },
    Refused { field: "messages", neutral: &[], hint: "send the text of the messages" },
    Refused { field: "softmax", neutral: &["true"], hint: "use `raw_scores` of `/predict` or `/rerank`" },
    Refused { field: "activation", neutral: &["true"], hint: "use `raw_scores` of `/predict` or `/rerank`" },
    Refused {
        field: "use_activation",
        neutral: &["true"],
        hint: "use `raw_scores` of `/predict` or `/rerank`",
    },
];

/// Fields of all these routes that change no answer.
const HARMLESS: &[&str] = &["user", "priority"];

/// The most memory of an element of a vector in an answer: its number, and its JSON text, whose buffer is briefly in
/// memory twice.
const ELEMENT_BYTES: usize = 32;
/// The same for a class, without its name.
const CLASS_BYTES: usize = 96;
const INPUT_BYTES: usize = 256;
/// The most memory of a byte of a text that the answer repeats.
const REPEATED_BYTES: usize = 3;

/// The texts of a request, and those whose vectors are asked for.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    texts: Vec<Prompt>,
    asked: Vec<Input>,
    /// True if the answer repeats the texts.
    shows_texts: bool,
}

/// A text or a pair of texts whose vector is asked for. The numbers are indices of texts, so a text in thousands of
/// pairs is in memory once.
#[derive(Debug, Clone, Copy)]
enum Input {
    One(usize),
    Pair(usize, usize),
    /// Token ids that need no frame.
    Whole(usize),
}

impl Inputs {
    fn each(prompts: Prompts) -> Self {
        let input = |(index, prompt): (usize, &Prompt)| match prompt {
            Prompt::Text(_) => Input::One(index),
            Prompt::TokenIds(_) => Input::Whole(index),
        };
        let asked = prompts.0.iter().enumerate().map(input).collect();
        Self { texts: prompts.0, asked, shows_texts: false }
    }

    /// Asks for the pairs of the first text, or of the text with the same index, and a second one.
    fn pairs(first: Vec<String>, second: Vec<String>) -> Self {
        let num_first = first.len();
        let pair = |index| Input::Pair(if num_first == 1 { 0 } else { index }, num_first + index);
        let asked = (0..second.len()).map(pair).collect();
        let texts = first.into_iter().chain(second).map(Prompt::Text).collect();
        Self { texts, asked, shows_texts: false }
    }

    fn push(&mut self, text: String) {
        self.asked.push(Input::One(self.texts.len()));
        self.texts.push(Prompt::Text(text));
    }

    fn push_pair(&mut self, first: String, second: String) {
        self.asked.push(Input::Pair(self.texts.len(), self.texts.len() + 1));
        self.texts.extend([first, second].map(Prompt::Text));
    }

    fn text(&self, index: usize) -> &str {
        match &self.texts[index] {
            Prompt::Text(text) => text,
            Prompt::TokenIds(_) => "",
        }
    }

    /// Returns the number of bytes of all texts.
    fn num_bytes(&self) -> usize {
        self.texts.iter().map(Prompt::num_bytes).sum()
    }

    /// Returns the number of bytes of the texts in all pairs. A text counts in each of its pairs.
    fn num_bytes_of_pairs(&self) -> usize {
        let bytes = |input: &Input| match input {
            Input::Pair(first, second) => self.text(*first).len() + self.text(*second).len(),
            Input::One(_) | Input::Whole(_) => 0,
        };
        self.asked.iter().map(bytes).fold(0, usize::saturating_add)
    }
}

/// The way in which inputs become prompts.
struct Encoding {
    /// True if pairs are put into a question to a language model.
    asks_about_pairs: bool,
    max_tokens: Option<usize>,
    params: CheckedParams,
    memory: AnswerMemory,
    /// The memory of the answer, without that of the prompts.
    num_bytes: usize,
}

/// The ids of texts, from which each prompt is put together when it is computed.
struct Encoded {
    ids: Vec<Vec<u32>>,
    asked: Vec<Input>,
    max_tokens: Option<usize>,
    /// The number of tokens of all prompts.
    num_tokens: u64,
    /// The texts, if the answer repeats them.
    texts: Vec<Prompt>,
}

impl Encoding {
    /// Encodes each text once, checks the length of each prompt, and returns the memory of the answer.
    ///
    /// Questions are encoded one by one, because their texts have no tokens of their own.
    fn encode(mut self, model: &ModelText, inputs: Inputs) -> Result<(Encoded, AnswerMemory), ApiError> {
        let (mut ids, mut asked) = (Vec::new(), inputs.asked.clone());
        if self.asks_about_pairs {
            let question = model.question()?;
            for input in &mut asked {
                let at = ids.len();
                let (of_input, encoded) = match *input {
                    Input::Pair(first, second) => {
                        let (first, second) = (inputs.text(first), inputs.text(second));
                        let prompt = question.encode(first, second, self.max_tokens)?;
                        self.params.check_length(prompt.len())?;
                        (prompt, Input::Whole(at))
                    }
                    Input::One(index) => (self.ids_of(&inputs.texts[index], model)?, Input::One(at)),
                    Input::Whole(index) => (self.ids_of(&inputs.texts[index], model)?, Input::Whole(at)),
                };
                self.keep(&mut ids, of_input)?;
                *input = encoded;
            }
        } else {
            for prompt in &inputs.texts {
                let of_text = self.ids_of(prompt, model)?;
                self.keep(&mut ids, of_text)?;
            }
        }
        let texts = if inputs.shows_texts { inputs.texts } else { Vec::new() };
        let mut encoded = Encoded { ids, asked, max_tokens: self.max_tokens, num_tokens: 0, texts };
        for input in &encoded.asked {
            let num_tokens = encoded.framed(&model.framing, *input).num_tokens();
            self.params.check_length(num_tokens)?;
            if let Input::Whole(index) = input {
                self.params.check_ids(&encoded.ids[*index])?;
            }
            encoded.num_tokens += num_tokens as u64;
        }
        Ok((encoded, self.memory))
    }

    /// Encodes a prompt by itself, without a frame.
    fn ids_of(&self, prompt: &Prompt, model: &ModelText) -> Result<Vec<u32>, TextError> {
        match prompt {
            Prompt::Text(text) => model.tokenizer.encode(text, EncodeSpecial::Allow),
            Prompt::TokenIds(ids) => Ok(ids[..ids.len().min(self.max_tokens.unwrap_or(usize::MAX))].to_vec()),
        }
    }

    /// Keeps the ids of a text, and takes their memory.
    fn keep(&mut self, all: &mut Vec<Vec<u32>>, ids: Vec<u32>) -> Result<(), ApiError> {
        self.num_bytes += size_of_val(&ids[..]);
        self.memory.grow_to(self.num_bytes)?;
        all.push(ids);
        Ok(())
    }
}

impl Encoded {
    fn framed<'a>(&'a self, framing: &'a Framing, input: Input) -> Framed<'a> {
        match input {
            Input::One(index) => framing.frame(&self.ids[index], None, self.max_tokens),
            Input::Pair(first, second) => {
                framing.frame(&self.ids[first], Some(&self.ids[second]), self.max_tokens)
            }
            Input::Whole(index) => Framed::whole(&self.ids[index]),
        }
    }
}

/// The token counts of a request for vectors, in OpenAI's form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct VectorUsage {
    /// The number of tokens of all inputs.
    pub prompt_tokens: u32,
    /// The same number, because nothing is generated.
    pub total_tokens: u32,
}

impl VectorUsage {
    fn of(vectors: &Vectors) -> Self {
        Self { prompt_tokens: vectors.prompt_tokens, total_tokens: vectors.prompt_tokens }
    }
}

/// The way in which texts are cut that are too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// They are refused as too long.
    Never,
    /// They are cut to what the model takes.
    ToContext,
    /// They are cut to so many tokens.
    To(i64),
}

impl Cut {
    /// Reads vLLM's field. -1 is the model's limit.
    fn of_field(truncate_prompt_tokens: Option<i64>) -> Self {
        match truncate_prompt_tokens {
            None => Self::Never,
            Some(-1) => Self::ToContext,
            Some(most) => Self::To(most),
        }
    }

    /// Reads TEI's field.
    fn of_flag(truncate: Option<bool>) -> Self {
        if truncate == Some(true) { Self::ToContext } else { Self::Never }
    }

    fn max_tokens(self, limit: u32) -> Result<Option<usize>, ApiError> {
        match self {
            Self::Never => Ok(None),
            Self::ToContext => Ok(Some(limit as usize)),
            Self::To(most) if (1..=i64::from(limit)).contains(&most) => Ok(Some(most as usize)),
            Self::To(most) => {
                let problem = format!("is {most}, must be from 1 to {limit}, or -1 for {limit}");
                Err(ApiError::value("truncate_prompt_tokens", problem))
            }
        }
    }
}

/// Checks the number of texts in a field. Routes check it before they convert the texts, which takes time for each.
pub(crate) fn check_count(field: &str, num_inputs: usize) -> Result<(), ApiError> {
    if num_inputs <= MAX_VECTOR_INPUTS {
        return Ok(());
    }
    let problem =
        format!("has {num_inputs} entries, the limit is {MAX_VECTOR_INPUTS}; hint: send several requests");
    Err(ApiError::value(field, problem))
}

/// An admitted request for vectors.
pub(crate) struct Call {
    scope: Scope,
    permit: Place,
    id: ModelId,
    info: VectorInfo,
    adapter: Option<Chosen>,
    path: String,
    ignored: IgnoredFields,
}

/// The way to answer a call: the memory of the answer, and the fields that the answer names as ignored.
pub(crate) struct Reply {
    app: Arc<App>,
    caller: Caller,
    memory: AnswerMemory,
    path: String,
    ignored: IgnoredFields,
}

impl Reply {
    /// Writes an answer whose memory is accounted for until it is sent. A large one is written on the blocking pool.
    async fn send(self, write: impl FnOnce() -> Response + Send + 'static) -> Result<Response, ApiError> {
        let Self { app, caller, memory, path, ignored } = self;
        let num_bytes = memory.num_bytes();
        // The thread goes on without its client, so it has the memory.
        let written = app.served.tokenize(&caller, num_bytes, move |_| Ok::<_, ApiError>((write(), memory)));
        let (response, memory) = written.await?;
        let mut response = memory.hold(response).await?;
        ignored.report(&path, &mut response);
        Ok(response)
    }
}

/// The vectors of a call.
pub(crate) struct Answered {
    vectors: Vectors,
    reply: Reply,
    /// The texts of the inputs, if the answer repeats them.
    texts: Vec<Prompt>,
}

impl Call {
    /// Admits a request and returns it with its body. Refuses models that make no vectors.
    async fn admit(app: &Arc<App>, request: axum::extract::Request) -> Result<(Self, Bytes), ApiError> {
        let path = request.uri().path().to_owned();
        let (app, Admitted { permit, model, shard, arrival }, body) = app.admit(request).await?;
        let info = shard.vectors.clone().ok_or(ApiError::NoVectors)?;
        let mut scope = Scope::new(&app, arrival, shard);
        let most = match info.pooling {
            Pooling::Whole => scope.shard.max_step_tokens,
            _ => u32::MAX,
        };
        scope.validator.allow_whole_context(most);
        Ok((
            Self { scope, permit, id: model, info, adapter: None, path, ignored: IgnoredFields::default() },
            body,
        ))
    }

    /// Parses the body. `refused` are fields of the route besides those of all routes.
    async fn parse<T: DeserializeOwned + Send + 'static>(
        &mut self,
        body: Bytes,
        refused: &'static [Refused],
    ) -> Result<T, ApiError> {
        let parse = move |body: &[u8]| {
            let refused = &[REFUSED, refused].concat();
            let mut ignored = IgnoredFields::default();
            let parsed = parse_noting(body, OtherFields { refused, harmless: HARMLESS }, "", &mut ignored)?;
            Ok((parsed, ignored))
        };
        let (parsed, ignored) = self.scope.app.served.parse(&self.scope.arrival.caller, body, parse).await?;
        self.ignored = ignored;
        Ok(parsed)
    }

    /// Refuses a model with classes, whose vectors mean something else.
    fn expect_embeddings(&self) -> Result<(), ApiError> {
        if self.info.labels.is_empty() { Ok(()) } else { Err(ApiError::NoEmbeddings) }
    }

    /// Returns the names of the model's classes. Refuses a model without any.
    fn labels(&self) -> Result<&[String], ApiError> {
        if self.info.labels.is_empty() { Err(ApiError::NoClasses) } else { Ok(&self.info.labels) }
    }

    /// Takes the name of the model or of an adapter.
    fn choose(&mut self, model: Option<&str>) -> Result<(), ApiError> {
        self.adapter = self.scope.app.served.choose(&self.scope.arrival.caller, Named::model(model))?;
        Ok(())
    }

    /// Sets the time for which the model stays in memory after this call, if the call says so.
    fn keep(&self, keep_alive: Option<KeepAlive>) {
        self.scope.app.keep(self.id, keep_alive);
    }

    /// Returns the name of the model in the answer.
    fn model(&self) -> &str {
        let own = &self.scope.app.served.model.served_name;
        self.adapter.as_ref().map_or(own, |adapter| &adapter.shown)
    }

    fn shard(&self) -> &ShardInfo {
        &self.scope.shard
    }

    /// Computes the vectors of inputs. `field` names them in errors.
    async fn vectors(self, inputs: Inputs, field: &'static str, cut: Cut) -> Result<Answered, ApiError> {
        let Self { scope, permit, info, adapter, path, ignored, .. } = self;
        let (app, caller) = (scope.app.clone(), scope.arrival.caller.clone());
        let num_inputs = inputs.asked.len();
        if num_inputs == 0 {
            return Err(ApiError::value(field, "is empty; hint: send at least one text"));
        }
        check_count(field, num_inputs)?;
        let num_bytes = if info.asks_about_pairs { inputs.num_bytes_of_pairs() } else { inputs.num_bytes() };
        if info.asks_about_pairs && num_bytes > MAX_QUESTION_BYTES {
            let problem = format!(
                "asks about {num_bytes} bytes of text, each pair counted, the limit is {MAX_QUESTION_BYTES}; hint: \
                 send several requests or shorten the text that all pairs share"
            );
            return Err(ApiError::value(field, problem));
        }
        let mut memory = app.admission.answer_memory(&caller);
        let element_bytes =
            info.labels.iter().map(String::len).max().map_or(ELEMENT_BYTES, |longest| CLASS_BYTES + longest);
        let shown_bytes = if inputs.shows_texts { inputs.num_bytes() * REPEATED_BYTES } else { 0 };
        let answer_bytes = num_inputs * (INPUT_BYTES + info.size as usize * element_bytes) + shown_bytes;
        memory.grow_to(answer_bytes)?;
        let names = FieldNames { prompt: field, ..FieldNames::default() };
        let raw = RawParams { names, ..RawParams::default() };
        let mut params = scope.validator.check(&scope.arrival, raw, None)?.with_adapter(adapter);
        params.open_adapter(&app.served.adapters).await?;
        let encoding = Encoding {
            asks_about_pairs: info.asks_about_pairs,
            max_tokens: cut.max_tokens(scope.validator.prompt.max_input_tokens)?,
            params: params.clone(),
            memory,
            num_bytes: answer_bytes,
        };
        let encode = move |model: &ModelText| encoding.encode(model, inputs);
        let (encoded, memory) = app.served.tokenize(&caller, num_bytes, encode).await?;
        let (pooling, framing) = (info.pooling, &app.served.model.text.framing);
        let request = |input: &Input| {
            let framed = encoded.framed(framing, *input);
            let pooling = Some(PooledPrompt { pooling, second_text: framed.second_text });
            let token_ids = framed.token_ids();
            params.with_prompt(ready::Prompt { token_ids, pooling, ..ready::Prompt::default() })
        };
        let requests = encoded.asked.iter().map(request);
        let vectors =
            app.admission.vectors(&app.served, &scope.arrival, encoded.num_tokens, requests, permit);
        let vectors = vectors.await?;
        if vectors.vectors.iter().any(|vector| vector.len() != info.size as usize) {
            return Err(ApiError::SequenceFailed { detail: "router and shard disagree".to_owned() });
        }
        let texts = encoded.texts;
        Ok(Answered { vectors, reply: Reply { app, caller, memory, path, ignored }, texts })
    }
}
