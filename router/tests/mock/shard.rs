//! A mock shard that samples from a script. It runs on its own runtime, so that it can be killed like a process.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::Stream;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};
use trunkline_engine::shard::proto::shard_service_server::{ShardService, ShardServiceServer};
use trunkline_engine::shard::proto::{self, sequence_result::Outcome};
use trunkline_scheduler::{KEY_BYTES, SamplingParams};

use super::masks::KnownMasks;
use super::model::{CONTEXT, END, VOCAB_SIZE, bytes};
use super::store::{BLOCK_BYTES, FINGERPRINT, MockStore};

type Script = dyn Fn(&[u32]) -> Vec<u32> + Send + Sync;

/// Observes plans and results, for a benchmark.
pub trait Watch: Send + Sync {
    /// Called when a plan was read from the socket.
    fn plan_read(&self, step_id: u64);
    /// Called before a result is written, with the prompts of its sequences.
    fn result_ready(&self, step_id: u64, prompts: &mut dyn Iterator<Item = &[u32]>);
}

/// The behaviour of a mock shard.
#[derive(Clone)]
pub struct ShardPlan {
    /// Maps a prompt to its output tokens. `END` follows them for ever.
    pub script: Arc<Script>,
    /// If not empty, the output tokens by choice instead of `script`, starting again after the last.
    pub replies: Vec<Vec<u32>>,
    /// One permit for each step. Without permits the shard computes nothing.
    pub steps: Arc<Semaphore>,
    /// The least time from the end of one step to the end of the next.
    pub pace: Duration,
    pub block_size: u32,
    pub num_blocks: u32,
    pub max_step_tokens: u32,
    pub max_step_sequences: u32,
    /// The most drafts of a chunk.
    pub max_draft_tokens: u32,
    pub contract_version: u32,
    /// The time of the running step that `Health` reports.
    pub step_running_ms: u64,
    /// The device time that every result reports.
    pub device_time_us: u64,
    /// The shard ends the Step stream when it computes a chunk of a prompt that contains this token.
    pub poison: Option<u32>,
    /// If true, `MockShard::plans` records the plans.
    pub keep_plans: bool,
    /// The folder and the number of slots of its store on disk, if it has one.
    pub store: Option<(PathBuf, u32)>,
    /// If true, it reports that its store is in memory and lists no blocks.
    pub is_store_in_memory: bool,
    /// If true, it cannot list the blocks of its store.
    pub is_store_unreadable: bool,
    /// Reads from the store hang while this has no permits.
    pub reads: Arc<Semaphore>,
    pub watch: Option<Arc<dyn Watch>>,
    /// The vectors that it makes, if it makes any.
    pub vectors: Option<MockVectors>,
    /// The adapters that it can have loaded at once.
    pub num_adapter_slots: u32,
    /// The memory that it says it takes; 0 if it does not know.
    pub memory_bytes: u64,
    /// What it says about the adapter of a source; of others, that they are missing.
    pub adapters: MockAdapters,
}

/// The folder of what was downloaded.
const HUB: &str = "/hub/";

/// The files of adapters, and what a mock shard was asked of them.
#[derive(Clone)]
pub struct MockAdapters {
    /// The rank of each source's adapter, or the problem.
    pub sources: Arc<Mutex<HashMap<String, Result<u32, String>>>>,
    /// One permit for each answer.
    pub answers: Arc<Semaphore>,
    /// The sources in the order in which they were asked for.
    pub asked: Arc<Mutex<Vec<String>>>,
}

impl Default for MockAdapters {
    fn default() -> Self {
        let answers = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        Self { sources: Arc::default(), answers, asked: Arc::default() }
    }
}

impl MockAdapters {
    /// Puts adapters where they are found, with these ranks.
    pub fn of(sources: &[(&str, u32)]) -> Self {
        let adapters = Self::default();
        sources.iter().for_each(|(source, rank)| adapters.put(source, Ok(*rank)));
        adapters
    }

    pub fn put(&self, source: &str, found: Result<u32, &str>) {
        self.sources.lock().unwrap().insert(source.to_owned(), found.map_err(str::to_owned));
    }

    /// Loads an adapter at once, unless its files are gone or have changed.
    fn load(&self, load: &proto::AdapterLoad) -> proto::AdapterOutcome {
        let source = load.path.strip_prefix(HUB).unwrap_or(&load.path);
        let found = self.sources.lock().unwrap().get(source).cloned();
        let is_same = |rank: u32| Self::hash(source, rank)[..] == load.content_hash;
        let problem = match found {
            Some(Ok(rank)) if is_same(rank) => String::new(),
            _ => "its files have changed".to_owned(),
        };
        proto::AdapterOutcome { slot: load.slot, problem }
    }

    /// The hash of an adapter's files.
    pub fn hash(source: &str, rank: u32) -> [u8; 32] {
        let mut hash = [0; 32];
        let text = format!("{rank} {source}");
        hash.iter_mut().zip(text.bytes()).for_each(|(place, byte)| *place = byte);
        hash
    }
}

/// The vectors of a mock shard: element `i` of a prompt's vector is the mean of its tokens, plus `i`.
#[derive(Debug, Clone)]
pub struct MockVectors {
    pub pooling: proto::Pooling,
    pub size: u32,
    pub labels: Vec<String>,
    pub whole_prompts: bool,
    pub only_pools: bool,
    pub asks_about_pairs: bool,
}

/// The longest wait for the tasks of a shard that ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
impl Default for ShardPlan {
    fn default() -> Self {
        Self::saying("Hello wörld 🙂!")
    }
}

impl ShardPlan {
    /// Answers every prompt with the same text.
    pub fn saying(text: &str) -> Self {
        let reply = bytes(text);
        Self {
            script: Arc::new(move |_| reply.clone()),
            replies: Vec::new(),
            steps: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            reads: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            pace: Duration::ZERO,
            block_size: 8,
            num_blocks: 1024,
            max_step_tokens: 64,
            max_step_sequences: 16,
            max_draft_tokens: 8,
            contract_version: trunkline_engine::shard::CONTRACT_VERSION,
            step_running_ms: 0,
            device_time_us: 100,
            poison: None,
            keep_plans: true,
            store: None,
            is_store_in_memory: false,
            is_store_unreadable: false,
            watch: None,
            vectors: None,
            num_adapter_slots: 0,
            memory_bytes: 0,
            adapters: MockAdapters::default(),
        }
    }

    /// Answers every prompt with more tokens than any test reads.
    pub fn endless() -> Self {
        Self { script: Arc::new(|_| vec![u32::from(b'x'); 10_000]), ..Self::default() }
    }

    /// Computes nothing until the test adds permits to `steps`.
    pub fn held(mut self) -> Self {
        self.steps = Arc::new(Semaphore::new(0));
        self
    }
}

/// A running mock shard.
pub struct MockShard {
    runtime: Option<Runtime>,
    /// All plans that the shard received, for tests that inspect them.
    pub plans: Arc<Mutex<Vec<proto::StepPlan>>>,
    /// The permits for steps, as in its plan.
    pub steps: Arc<Semaphore>,
}

impl MockShard {
    pub fn start(socket: &Path, plan: ShardPlan) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let plans = Arc::new(Mutex::new(Vec::new()));
        let store =
            plan.store.as_ref().map(|(folder, slots)| MockStore::open(folder, plan.block_size, *slots));
        let steps = plan.steps.clone();
        let service = Service { plan, plans: plans.clone(), store: store.map(Arc::new) };
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(socket).unwrap()
        };
        runtime.spawn(
            tonic::transport::Server::builder()
                .add_service(ShardServiceServer::new(service))
                .serve_with_incoming(UnixListenerStream::new(listener)),
        );
        Self { runtime: Some(runtime), plans, steps }
    }

    /// Ends the shard like SIGKILL. All its connections are closed at once.
    pub fn kill(self) {
        drop(self);
    }

    /// Returns the start of the last sequence.
    pub fn last_start(&self) -> proto::SequenceStart {
        let plans = self.plans.lock().unwrap();
        plans.iter().rev().find_map(|plan| plan.starts.last().cloned()).unwrap()
    }
}

impl Drop for MockShard {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Returns when the tasks are gone, and with them the lock of the store. A task may not wait for a runtime,
            // but a thread may.
            std::thread::spawn(|| runtime.shutdown_timeout(SHUTDOWN_TIMEOUT)).join().unwrap();
        }
    }
}

struct Service {
    plan: ShardPlan,
    plans: Arc<Mutex<Vec<proto::StepPlan>>>,
    store: Option<Arc<MockStore>>,
}

#[tonic::async_trait]
impl ShardService for Service {
    async fn describe(
        &self,
        _: Request<proto::DescribeRequest>,
    ) -> Result<Response<proto::DescribeResponse>, Status> {
        Ok(Response::new(proto::DescribeResponse {
            contract_version: self.plan.contract_version,
            architecture: "mock".into(),
            vocab_size: VOCAB_SIZE,
            num_layers: 1,
            num_heads: 1,
            num_kv_heads: 1,
            head_size: 8,
            max_position_embeddings: CONTEXT,
            block_size: self.plan.block_size,
            bytes_per_block: BLOCK_BYTES,
            num_device_blocks: self.plan.num_blocks,
            max_step_tokens: self.plan.max_step_tokens,
            max_step_sequences: self.plan.max_step_sequences,
            numeric_fingerprint: FINGERPRINT.into(),
            device: "mock".into(),
            kv_dtype: "none".into(),
            weight_bytes: 1,
            num_store_slots: self.plan.store.as_ref().map_or(0, |(_, slots)| *slots),
            reads_other_stores: false,
            store_folder: self
                .plan
                .store
                .as_ref()
                .filter(|_| !self.plan.is_store_in_memory)
                .map_or_else(String::new, |(folder, _)| folder.display().to_string()),
            num_window_parts: 0,
            bytes_per_window_part: 0,
            window_size: 0,
            max_draft_tokens: self.plan.max_draft_tokens,
            max_own_drafts: 0,
            num_adapter_slots: self.plan.num_adapter_slots,
            adapter_bytes: u64::MAX,
            memory_bytes: self.plan.memory_bytes,
            pooling: self.plan.vectors.as_ref().map_or(0, |vectors| vectors.pooling.into()),
            vector_size: self.plan.vectors.as_ref().map_or(0, |vectors| vectors.size),
            labels: self.plan.vectors.as_ref().map(|vectors| vectors.labels.clone()).unwrap_or_default(),
            whole_prompts: self.plan.vectors.as_ref().is_some_and(|vectors| vectors.whole_prompts),
            only_pools: self.plan.vectors.as_ref().is_some_and(|vectors| vectors.only_pools),
            recurrent: false,
            asks_about_pairs: self.plan.vectors.as_ref().is_some_and(|vectors| vectors.asks_about_pairs),
        }))
    }

    type StoreContentsStream =
        Pin<Box<dyn Stream<Item = Result<proto::StoreContentsResponse, Status>> + Send>>;

    async fn store_contents(
        &self,
        _: Request<proto::StoreContentsRequest>,
    ) -> Result<Response<Self::StoreContentsStream>, Status> {
        if self.plan.is_store_unreadable {
            return Err(Status::data_loss("the disk is on fire"));
        }
        let store = self.store.as_deref().filter(|_| !self.plan.is_store_in_memory);
        let pieces = store.map_or_else(Vec::new, MockStore::contents);
        Ok(Response::new(Box::pin(tokio_stream::iter(pieces.into_iter().map(Ok)))))
    }

    type StepStream = Pin<Box<dyn Stream<Item = Result<proto::StepResponse, Status>> + Send>>;

    async fn step(
        &self,
        request: Request<Streaming<proto::StepRequest>>,
    ) -> Result<Response<Self::StepStream>, Status> {
        let requests = request.into_inner();
        let (results, stream) = mpsc::channel(4);
        let (plan, plans) = (self.plan.clone(), self.plans.clone());
        tokio::spawn(serve_steps(plan, plans, self.store.clone(), requests, results));
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn open_adapter(
        &self,
        request: Request<proto::OpenAdapterRequest>,
    ) -> Result<Response<proto::OpenAdapterResponse>, Status> {
        let (source, adapters) = (request.into_inner().source, &self.plan.adapters);
        adapters.asked.lock().unwrap().push(source.clone());
        adapters.answers.acquire().await.unwrap().forget();
        let found = adapters.sources.lock().unwrap().get(&source).cloned();
        let rank = found
            .unwrap_or_else(|| Err(format!("`{source}` does not exist")))
            .map_err(Status::failed_precondition)?;
        Ok(Response::new(proto::OpenAdapterResponse {
            content_hash: MockAdapters::hash(&source, rank).to_vec(),
            path: if source.starts_with('/') { source } else { format!("{HUB}{source}") },
            num_bytes: 1000 * u64::from(rank),
            rank,
        }))
    }

    async fn health(
        &self,
        _: Request<proto::HealthRequest>,
    ) -> Result<Response<proto::HealthResponse>, Status> {
        let step_running_ms = self.plan.step_running_ms;
        let step_running = step_running_ms > 0;
        Ok(Response::new(proto::HealthResponse { step_running, step_running_ms, ..Default::default() }))
    }
}

/// Reads plans from the socket and runs them on the "device". The next plan is read while one is computed.
async fn serve_steps(
    plan: ShardPlan,
    plans: Arc<Mutex<Vec<proto::StepPlan>>>,
    store: Option<Arc<MockStore>>,
    mut requests: Streaming<proto::StepRequest>,
    results: mpsc::Sender<Result<proto::StepResponse, Status>>,
) {
    let (queue, mut queued) = mpsc::channel::<(proto::StepPlan, Option<proto::StepPlan>)>(4);
    let (watch, keep_plans) = (plan.watch.clone(), plan.keep_plans);
    let (masks, mut late_masks) = mpsc::unbounded_channel::<proto::LateMask>();
    tokio::spawn(async move {
        let mut known = KnownMasks::default();
        while let Ok(Some(mut request)) = requests.message().await {
            let sent = request.plan.clone().filter(|_| keep_plans);
            known.resolve(&mut request).expect("a mask is sent before its number is used");
            for late in request.late_masks {
                // The receiver may be gone.
                let _ = masks.send(late);
            }
            let Some(step) = request.plan else { continue };
            if let Some(watch) = &watch {
                watch.plan_read(step.step_id);
            }
            if queue.send((step, sent)).await.is_err() {
                return;
            }
        }
    });
    let mut sequences = HashMap::new();
    let mut next_step = 1;
    let mut done = Instant::now();
    while let Some((mut step, sent)) = queued.recv().await {
        plan.steps.acquire().await.unwrap().forget();
        if !plan.pace.is_zero() {
            tokio::time::sleep_until(done + plan.pace).await;
            done = Instant::now();
        }
        plans.lock().unwrap().extend(sent);
        while let Some(chunk) = step.chunks.iter_mut().find(|chunk| chunk.awaits_mask) {
            assert!(chunk.sample && chunk.allowed_tokens.is_empty(), "a chunk gets one mask");
            let Some(late) = late_masks.recv().await else { return };
            take_late_mask(&mut step, late);
        }
        assert_eq!(step.step_id, next_step, "gap in step ids");
        next_step += 1;
        let mut at_once = step.clone();
        if plan.reads.available_permits() == 0
            && let Some(store) = &store
        {
            let hung = std::mem::take(&mut at_once.restores);
            tokio::spawn(restore_late(plan.reads.clone(), store.clone(), hung, results.clone()));
        }
        let restores = store.as_ref().map(|store| store.restore(&at_once));
        let adapters: Vec<_> = step
            .adapter_loads
            .iter()
            .filter(|load| !load.path.is_empty())
            .map(|load| plan.adapters.load(load))
            .collect();
        let chunks = step.chunks.iter().map(|chunk| chunk.sequence_id).collect::<Vec<_>>();
        let (result, stores) = run_step(&plan, store.as_deref(), &mut sequences, step);
        let is_poison = |id| plan.poison.is_some_and(|token| sequences[id].prompt().contains(&token));
        if chunks.iter().any(is_poison) {
            return;
        }
        let restores = restores.unwrap_or_default();
        let has_transfers = store.is_some() || !adapters.is_empty();
        let transfers = has_transfers.then_some(proto::Transfers { stores, restores, adapters });
        if let Some(watch) = &plan.watch {
            let mut prompts = result.sequences.iter().map(|result| sequences[&result.sequence_id].prompt());
            watch.result_ready(result.step_id, &mut prompts);
        }
        if results.send(Ok(proto::StepResponse { result: Some(result), transfers })).await.is_err() {
            return;
        }
    }
}

/// Passes a late mask to its chunk. Without a mask, the chunk samples nothing.
fn take_late_mask(step: &mut proto::StepPlan, late: proto::LateMask) {
    let is_it = |chunk: &&mut proto::Chunk| chunk.sequence_id == late.sequence_id && chunk.awaits_mask;
    let chunk = step.chunks.iter_mut().find(is_it).expect("a mask belongs to a chunk of the running step");
    chunk.awaits_mask = false;
    chunk.sample = !late.allowed_tokens.is_empty();
    chunk.allowed_tokens = late.allowed_tokens;
}

/// Restores blocks once the disk answers, and sends the outcome.
async fn restore_late(
    reads: Arc<Semaphore>,
    store: Arc<MockStore>,
    restores: Vec<proto::Restore>,
    results: mpsc::Sender<Result<proto::StepResponse, Status>>,
) {
    drop(reads.acquire().await);
    let step = proto::StepPlan { restores, ..Default::default() };
    let transfers =
        proto::Transfers { stores: Vec::new(), restores: store.restore(&step), adapters: Vec::new() };
    // It fails if the stream has ended.
    let _ = results.send(Ok(proto::StepResponse { result: None, transfers: Some(transfers) })).await;
}

struct Sequence {
    known: Vec<u32>,
    root: Vec<u8>,
    num_prompt_tokens: usize,
    /// The output tokens that the script gives for the prompt.
    reply: Vec<u32>,
    blocks: usize,
    sampling: proto::SamplingParams,
    pool: bool,
}

impl MockVectors {
    /// The vector of a prompt.
    pub fn of(&self, token_ids: &[u32]) -> Vec<f32> {
        let mean = token_ids.iter().map(|&id| id as f32).sum::<f32>() / token_ids.len() as f32;
        (0..self.size).map(|index| mean + index as f32).collect()
    }
}

impl Sequence {
    fn start(plan: &ShardPlan, start: proto::SequenceStart) -> Self {
        let num_prompt_tokens = start.num_prompt_tokens as usize;
        let sampling = start.sampling.unwrap();
        let reply = match plan.replies.len() {
            0 => (plan.script)(&start.token_ids[..num_prompt_tokens]),
            num_replies => plan.replies[sampling.choice as usize % num_replies].clone(),
        };
        Self {
            known: start.token_ids,
            root: start.root_key,
            num_prompt_tokens,
            reply,
            blocks: 0,
            sampling,
            pool: start.pooled.is_some(),
        }
    }

    fn prompt(&self) -> &[u32] {
        &self.known[..self.num_prompt_tokens]
    }

    /// Returns made-up logprobs of prompt tokens. The token at position p has -p/8. The likeliest tokens are it and the
    /// next ones, each with an eighth less.
    fn scores(&self, first: usize, end: usize) -> Vec<proto::PromptTokenLogprob> {
        let score = |position: usize| {
            let logprob = -0.125 * position as f32;
            let top = (0..self.sampling.num_top_prompt_logprobs).map(|rank| proto::TokenLogprob {
                token_id: (self.known[position] + rank) % VOCAB_SIZE,
                logprob: logprob - 0.125 * rank as f32,
            });
            proto::PromptTokenLogprob { logprob, rank: 1, top_logprobs: top.collect() }
        };
        (first + 1..=end.min(self.num_prompt_tokens - 1)).map(score).collect()
    }

    /// Returns the script's next token, or the next higher token id that masks and bias (-100) allow. Logprobs are
    /// made up: -1/8, -2/8, ... for the likeliest tokens. The higher a choice, the likelier its tokens.
    fn sample(&mut self, mask: &[u8]) -> proto::SampledToken {
        let output = self.known.len() - self.num_prompt_tokens;
        let mut token_id = self.reply.get(output).copied().unwrap_or(END);
        let is_ruled_out = |token_id: u32| {
            let allowed = &self.sampling.allowed_tokens;
            let bias = &self.sampling.logit_bias;
            excludes(mask, token_id)
                || excludes(allowed, token_id)
                || penalty(mask, token_id) <= -1.0
                || bias.iter().any(|bias| bias.token_id == token_id && bias.bias == -100.0)
        };
        while is_ruled_out(token_id) {
            token_id = (token_id + 1) % VOCAB_SIZE;
        }
        self.known.push(token_id);
        let top = (0..self.sampling.num_top_logprobs).map(|rank| proto::TokenLogprob {
            token_id: (token_id + rank) % VOCAB_SIZE,
            logprob: -0.125 * (rank + 1) as f32,
        });
        let logprob = if self.sampling.logprobs { -0.125 / (self.sampling.choice + 1) as f32 } else { 0.0 };
        proto::SampledToken { token_id, logprob, top_logprobs: top.collect() }
    }
}

/// Returns true if a mask does not allow a token. An empty one allows all.
fn excludes(mask: &[u8], token_id: u32) -> bool {
    !mask.is_empty() && mask[token_id as usize / 8] >> (token_id % 8) & 1 == 0
}

/// Returns what a mask adds to the logit of a token.
fn penalty(mask: &[u8], token_id: u32) -> f32 {
    let pairs = mask.get(VOCAB_SIZE.div_ceil(8) as usize..).unwrap_or_default();
    let mut pairs = pairs.as_chunks::<4>().0.as_chunks::<2>().0.iter();
    let pair = pairs.find(|[id, _]| u32::from_le_bytes(*id) == token_id);
    pair.map_or(0.0, |[_, addend]| f32::from_le_bytes(*addend))
}

/// Panics if the keys of blocks or the sampling parameters of a plan break the contract.
fn check(step: &proto::StepPlan) {
    for start in &step.starts {
        assert!([0, KEY_BYTES].contains(&start.root_key.len()), "{start:?}");
        let sampling = start.sampling.clone().expect("a start has its parameters");
        let problem = SamplingParams::from(sampling).check().err();
        assert!(problem.is_none(), "{problem:?}");
    }
    let mut blocks = step.restores.iter().flat_map(|restore| &restore.blocks);
    assert!(blocks.all(|block| block.key.len() == KEY_BYTES));
}

fn run_step(
    plan: &ShardPlan,
    store: Option<&MockStore>,
    sequences: &mut HashMap<u64, Sequence>,
    step: proto::StepPlan,
) -> (proto::StepResult, Vec<proto::StoreOutcome>) {
    for id in &step.ends {
        assert!(sequences.remove(id).is_some(), "end of unknown sequence {id}");
    }
    // A real shard refuses what the contract excludes. The benchmark keeps no plans and skips the check.
    if plan.keep_plans {
        check(&step);
    }
    for start in step.starts {
        let sequence_id = start.sequence_id;
        let known = sequences.insert(sequence_id, Sequence::start(plan, start));
        assert!(known.is_none(), "sequence started twice");
    }
    assert!(step.chunks.len() <= plan.max_step_sequences as usize);
    let num_positions = |chunk: &proto::Chunk| chunk.num_tokens as usize + chunk.draft_token_ids.len();
    assert!(step.chunks.iter().map(num_positions).sum::<usize>() <= plan.max_step_tokens as usize);
    let (mut results, mut stores, mut num_rows) = (Vec::new(), Vec::new(), 0);
    for chunk in step.chunks {
        let sequence = sequences.get_mut(&chunk.sequence_id).expect("chunk of unknown sequence");
        sequence.blocks += chunk.new_block_ids.len();
        sequence.known.extend_from_slice(&chunk.appended_token_ids);
        let end = (chunk.first_position + chunk.num_tokens) as usize;
        let num_drafts = chunk.draft_token_ids.len();
        assert!(end <= sequence.known.len());
        assert!(end + num_drafts <= sequence.blocks * plan.block_size as usize);
        assert!(num_drafts == 0 || num_drafts <= plan.max_draft_tokens as usize && chunk.sample);
        for block in &chunk.stores {
            stores.push(store.unwrap().store(&sequence.root, &sequence.known, block));
        }
        let scores =
            if chunk.score { sequence.scores(chunk.first_position as usize, end) } else { Vec::new() };
        num_rows += scores.len() + usize::from(chunk.sample) + num_drafts;
        if chunk.sample {
            assert_eq!(end, sequence.known.len());
        }
        if sequence.pool {
            let vectors = plan.vectors.as_ref().expect("vectors are asked for only where there are some");
            assert!(!vectors.whole_prompts || chunk.first_position == 0 && chunk.sample);
            if chunk.sample {
                results.push(proto::SequenceResult {
                    sequence_id: chunk.sequence_id,
                    vector: vectors.of(&sequence.known),
                    ..proto::SequenceResult::default()
                });
            }
            continue;
        }
        assert!(plan.vectors.as_ref().is_none_or(|vectors| !vectors.only_pools));
        let first = chunk.sample.then(|| sequence.sample(&chunk.allowed_tokens));
        let mut more_tokens = Vec::new();
        assert_eq!(chunk.draft_masks.len(), if chunk.allowed_tokens.is_empty() { 0 } else { num_drafts });
        for (index, draft) in chunk.draft_token_ids.into_iter().enumerate() {
            if more_tokens.last().or(first.as_ref()).is_none_or(|token| token.token_id != draft) {
                break;
            }
            more_tokens.push(sequence.sample(chunk.draft_masks.get(index).map_or(&[][..], |mask| &mask[..])));
        }
        let outcome = first.map(Outcome::Token);
        if chunk.sample || chunk.score {
            results.push(proto::SequenceResult {
                sequence_id: chunk.sequence_id,
                outcome,
                scores,
                more_tokens,
                num_own_drafts: 0,
                vector: Vec::new(),
            });
        }
    }
    assert!(num_rows <= plan.max_step_sequences as usize);
    let result = proto::StepResult {
        step_id: step.step_id,
        sequences: results,
        device_time_us: plan.device_time_us,
        draft_time_us: 0,
    };
    (result, stores)
}
