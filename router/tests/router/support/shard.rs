//! A shard that samples from a script, on a runtime of its own so that it can be killed as a process would be.

use std::collections::HashMap;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures::Stream;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};
use trunkline_router::shard::proto::shard_service_server::{ShardService, ShardServiceServer};
use trunkline_router::shard::proto::{self, sequence_result::Outcome};

use super::model::{CONTEXT, END, VOCAB_SIZE, bytes};

type Script = dyn Fn(&[u32]) -> Vec<u32> + Send + Sync;

/// How a mock shard behaves.
#[derive(Clone)]
pub struct ShardPlan {
    /// From a prompt to the tokens that follow it; after them comes `END` for ever.
    pub script: Arc<Script>,
    /// One permit per step; take them away to hold the shard still.
    pub steps: Arc<Semaphore>,
    pub num_blocks: u32,
    pub max_step_tokens: u32,
    pub contract_version: u32,
    /// What `Health` says of the running step.
    pub step_running_ms: u64,
    /// What every result says it took.
    pub device_time_us: u64,
}

impl Default for ShardPlan {
    fn default() -> Self {
        Self::saying("Hello wörld 🙂!")
    }
}

impl ShardPlan {
    /// Answers everything with one text.
    pub fn saying(text: &str) -> Self {
        let reply = bytes(text);
        Self {
            script: Arc::new(move |_| reply.clone()),
            steps: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            num_blocks: 1024,
            max_step_tokens: 64,
            contract_version: trunkline_router::shard::CONTRACT_VERSION,
            step_running_ms: 0,
            device_time_us: 100,
        }
    }

    /// Answers everything with more tokens than any test takes.
    pub fn endless() -> Self {
        Self { script: Arc::new(|_| vec![u32::from(b'x'); 10_000]), ..Self::default() }
    }

    /// Computes nothing until the test adds permits to `steps`.
    pub fn held(mut self) -> Self {
        self.steps = Arc::new(Semaphore::new(0));
        self
    }
}

const BLOCK_SIZE: u32 = 8;

/// A running mock shard.
pub struct MockShard {
    runtime: Option<Runtime>,
    /// All plans it was given, for tests that look at what crossed the line.
    pub plans: Arc<Mutex<Vec<proto::StepPlan>>>,
}

impl MockShard {
    pub fn start(socket: &Path, plan: ShardPlan) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let plans = Arc::new(Mutex::new(Vec::new()));
        let service = Service { plan, plans: plans.clone() };
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(socket).unwrap()
        };
        runtime.spawn(
            tonic::transport::Server::builder()
                .add_service(ShardServiceServer::new(service))
                .serve_with_incoming(UnixListenerStream::new(listener)),
        );
        Self { runtime: Some(runtime), plans }
    }

    /// As SIGKILL: all its connections close in the middle of whatever they did.
    pub fn kill(mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }

    /// Sampling parameters of the last sequence that started.
    pub fn last_start(&self) -> proto::SequenceStart {
        let plans = self.plans.lock().unwrap();
        plans.iter().rev().find_map(|plan| plan.starts.last().cloned()).unwrap()
    }
}

impl Drop for MockShard {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

struct Service {
    plan: ShardPlan,
    plans: Arc<Mutex<Vec<proto::StepPlan>>>,
}

struct Sequence {
    prompt: Vec<u32>,
    known: Vec<u32>,
    blocks: usize,
    sampling: proto::SamplingParams,
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
            block_size: BLOCK_SIZE,
            bytes_per_block: 64,
            num_device_blocks: self.plan.num_blocks,
            max_step_tokens: self.plan.max_step_tokens,
            max_step_sequences: 16,
            numeric_fingerprint: "0123456789abcdef".into(),
            device: "mock".into(),
            kv_dtype: "none".into(),
            weight_bytes: 1,
        }))
    }

    type StepStream = Pin<Box<dyn Stream<Item = Result<proto::StepResponse, Status>> + Send>>;

    async fn step(
        &self,
        request: Request<Streaming<proto::StepRequest>>,
    ) -> Result<Response<Self::StepStream>, Status> {
        let mut requests = request.into_inner();
        let (results, stream) = mpsc::channel(4);
        let (plan, plans) = (self.plan.clone(), self.plans.clone());
        tokio::spawn(async move {
            let mut sequences = HashMap::new();
            let mut next_step = 1;
            while let Ok(Some(request)) = requests.message().await {
                plan.steps.acquire().await.unwrap().forget();
                let step = request.plan.unwrap();
                plans.lock().unwrap().push(step.clone());
                assert_eq!(step.step_id, next_step, "gap in step ids");
                next_step += 1;
                let result = run_step(&plan, &mut sequences, step);
                let response = proto::StepResponse { result: Some(result) };
                if results.send(Ok(response)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
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

fn run_step(
    plan: &ShardPlan,
    sequences: &mut HashMap<u64, Sequence>,
    step: proto::StepPlan,
) -> proto::StepResult {
    for id in step.ends {
        assert!(sequences.remove(&id).is_some(), "end of unknown sequence {id}");
    }
    for start in step.starts {
        let prompt = start.token_ids[..start.num_prompt_tokens as usize].to_vec();
        let sampling = start.sampling.unwrap();
        let sequence = Sequence { prompt, known: start.token_ids, blocks: 0, sampling };
        assert!(sequences.insert(start.sequence_id, sequence).is_none(), "sequence started twice");
    }
    assert!(step.chunks.iter().map(|chunk| chunk.num_tokens).sum::<u32>() <= plan.max_step_tokens);
    let mut results = Vec::new();
    for chunk in step.chunks {
        let sequence = sequences.get_mut(&chunk.sequence_id).expect("chunk of unknown sequence");
        sequence.blocks += chunk.new_block_ids.len();
        let end = (chunk.first_position + chunk.num_tokens) as usize;
        assert!(end <= sequence.known.len() && end <= sequence.blocks * BLOCK_SIZE as usize);
        if chunk.sample {
            assert_eq!(end, sequence.known.len());
            results.push(sample(plan, chunk.sequence_id, sequence));
        }
    }
    proto::StepResult { step_id: step.step_id, sequences: results, device_time_us: plan.device_time_us }
}

/// The script's next token. Logprobs are made up, but different for each: -1/8, -2/8, ...
fn sample(plan: &ShardPlan, sequence_id: u64, sequence: &mut Sequence) -> proto::SequenceResult {
    let output = sequence.known.len() - sequence.prompt.len();
    let token_id = (plan.script)(&sequence.prompt).get(output).copied().unwrap_or(END);
    sequence.known.push(token_id);
    let top = (0..sequence.sampling.num_top_logprobs).map(|rank| proto::TokenLogprob {
        token_id: (token_id + rank) % VOCAB_SIZE,
        logprob: -0.125 * (rank + 1) as f32,
    });
    let logprob = if sequence.sampling.logprobs { -0.125 } else { 0.0 };
    let token = proto::SampledToken { token_id, logprob, top_logprobs: top.collect() };
    proto::SequenceResult { sequence_id, outcome: Some(Outcome::Token(token)) }
}
