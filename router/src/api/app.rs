//! What all handlers share: the model's text side, the driver, limits.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::registry::Registry;
use tokio::sync::{Semaphore, watch};
use trunkline_reply::ToolFormat;
use trunkline_scheduler::Stats;
use trunkline_text::{ModelText, TextError};

use crate::api::chat::reply::{Choice, ReplyStyle};
use crate::api::responses::ResponseStore;
use crate::engine::driver::DriverHandle;
use crate::engine::object::ObjectTier;
use crate::engine::shard::{Health, ShardInfo, ShardStatus};
use crate::error::ApiError;
use crate::generation::admission::Place;
use crate::generation::generate::{Generation, Surroundings};
use crate::grammars::{Grammars, RequestGrammar};
use crate::kv_events::KvEvents;
use crate::limits::{INLINE_TOKENIZE_BYTES, Limits};
use crate::metrics::Metrics;
use crate::request::ready::GenerationRequest;
use crate::request::validate::{RawParams, Validator};
use crate::shutdown::Phase;
use crate::tenants::{Access, Caller, SharedPlaces};

/// Names that stand for "the model that is served": what clients of other servers send.
const MODEL_ALIASES: [&str; 3] = ["", "tgi", "dummy"];

/// The model as the router knows it.
pub struct Model {
    /// Tokenizer, templates, special tokens.
    pub text: ModelText,
    /// The name that clients use.
    pub served_name: String,
    /// What its replies hold beside text.
    pub reply: ReplyStyle,
    /// When this process began to serve it, in seconds since 1970.
    pub created_unix_s: u64,
}

impl Model {
    /// Reads the model's text files.
    pub fn load(path: &Path, served_name: String) -> Result<Self, TextError> {
        Self::load_with(path, served_name, Choice::Auto, Choice::Auto)
    }

    /// Reads the model's text files. `tools`, `reasoning`: how its replies are read.
    pub fn load_with(
        path: &Path,
        served_name: String,
        tools: Choice<ToolFormat>,
        reasoning: Choice<()>,
    ) -> Result<Self, TextError> {
        let text = ModelText::load(path)?;
        if let Some(problem) = &text.chat_template_problem {
            tracing::warn!(problem, "the model's chat template cannot be used; chats will be refused");
        }
        let reply = ReplyStyle::of_model(&text, tools, reasoning);
        Ok(Self { text, served_name, reply, created_unix_s: unix_s() })
    }

    /// Checks the `model` field of a request.
    pub fn check_name(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            Some(name) if name != self.served_name && !MODEL_ALIASES.contains(&name) => {
                // Cut: a name may be as long as a body.
                let model = name.chars().take(128).collect();
                Err(ApiError::UnknownModel { model, served: self.served_name.clone() })
            }
            _ => Ok(()),
        }
    }
}

/// Seconds since 1970.
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// What all handlers share.
pub struct App {
    /// The model.
    pub model: Arc<Model>,
    /// Who may come in.
    pub access: Access,
    /// Limits from the flags.
    pub limits: Arc<Limits>,
    /// Submits sequences.
    pub driver: DriverHandle,
    /// What happens in the KV cache.
    pub kv_events: Arc<KvEvents>,
    /// What the shard is now.
    pub shard: watch::Receiver<ShardStatus>,
    /// What it said of its health last.
    pub health: watch::Receiver<Health>,
    /// The scheduler's numbers.
    pub stats: watch::Receiver<Stats>,
    /// Serving, draining, terminating.
    pub phase: watch::Receiver<Phase>,
    /// Measures.
    pub metrics: Arc<Metrics>,
    /// All metrics for `/metrics`.
    pub registry: Registry,
    /// Answers that requests may go on from.
    pub responses: Arc<ResponseStore>,
    /// The object tier, if there is one.
    pub objects: Option<Arc<ObjectTier>>,
    /// Grammars of structured output.
    pub grammars: Arc<Grammars>,
    /// One permit per open request.
    pub open: Arc<Semaphore>,
    /// Which of them each tenant has, where there are several.
    pub places: Arc<SharedPlaces>,
    /// What bodies that are being read hold together, a permit for each KiB.
    pub reading: Arc<Semaphore>,
    /// One permit per text being tokenized on the blocking pool.
    pub tokenizing: Arc<Semaphore>,
    /// How many permits that are.
    pub num_tokenizing: usize,
}

impl App {
    /// The shard, if one is there.
    pub fn shard_info(&self) -> Result<Arc<ShardInfo>, ApiError> {
        match &*self.shard.borrow() {
            ShardStatus::Ready(info) => Ok(info.clone()),
            ShardStatus::Loading => Err(ApiError::ModelLoading),
            ShardStatus::Lost => Err(ApiError::ShardAway),
        }
    }

    /// Whether requests would be served now: not draining, shard there, step loop moving.
    pub fn readiness(&self) -> Result<(), ApiError> {
        if *self.phase.borrow() != Phase::Serving {
            return Err(ApiError::Draining);
        }
        self.shard_info()?;
        match *self.health.borrow() {
            health if health.is_well(self.limits.stuck_step_timeout) => Ok(()),
            Health::Silent => Err(ApiError::ShardSilent),
            Health::Answered { step_running, .. } => Err(ApiError::ShardStuck {
                running_s: step_running.as_secs(),
                limit_s: self.limits.stuck_step_timeout.as_secs(),
            }),
        }
    }

    /// The limits that hold for requests to this shard.
    pub fn validator(&self, shard: &ShardInfo) -> Validator {
        let context =
            self.model.text.max_context_tokens.unwrap_or(u32::MAX).min(shard.max_position_embeddings);
        Validator::new(
            &self.limits,
            context,
            shard.pool_tokens(),
            shard.vocab_size,
            self.model.text.end_token_ids.clone(),
        )
    }

    /// Runs `work` on `bytes` of text: short ones at once, long ones on the blocking pool, a few at a time, so that
    /// other requests are answered meanwhile.
    pub async fn tokenize<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&ModelText) -> Result<T, TextError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if bytes <= INLINE_TOKENIZE_BYTES {
            return Ok(work(&self.model.text)?);
        }
        let closed = |_| ApiError::Bug { request_id: crate::random::id() };
        let permit = self.tokenizing.clone().acquire_owned().await.map_err(closed)?;
        let model = self.model.clone();
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&model.text)
        });
        match done.await {
            Ok(result) => Ok(result?),
            // A panic in the tokenizer is a defect of ours, as one in a handler.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Compiles the grammar that a request asks for, if it does. To be called once the request was checked.
    pub async fn compile(&self, raw: &mut RawParams, caller: &Caller) -> Result<(), ApiError> {
        if let Some(RequestGrammar::Asked { field, grammar }) = raw.grammar.take() {
            let compiled = self.grammars.get(caller, field, grammar).await?;
            raw.grammar = Some(RequestGrammar::Compiled(compiled));
        }
        Ok(())
    }

    /// Starts one output of a validated request.
    pub(crate) async fn start(
        &self,
        request: GenerationRequest,
        permit: Place,
    ) -> Result<Generation, ApiError> {
        let around = Surroundings {
            driver: self.driver.clone(),
            tokenizer: self.model.text.tokenizer.clone(),
            phase: self.phase.clone(),
            limits: self.limits.clone(),
            objects: self.objects.clone(),
        };
        tracing::debug!(
            prompt_tokens = request.prompt_token_ids.len(),
            max_new_tokens = request.max_new_tokens,
            seed = request.sampling.seed,
            temperature = request.sampling.temperature,
            "request admitted"
        );
        Generation::start(request, around, permit).await
    }
}
