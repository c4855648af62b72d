//! The measured workloads, each of which becomes a row of the table.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::client::{Api, Load, Outcome, Streams};
use crate::mock::{MockShard, ShardPlan, write_model};
use crate::report::{Percentiles, Row};
use crate::server::{Server, all_cpu_time, own_cpu_time};
use crate::stamps::Stamps;

/// The number of tokens in a response. Prompt and response fit the mock's context.
const ANSWER_TOKENS: u32 = 4_000;
/// The expected tokens per second of an unpaced workload, which determine the number of requests per stream.
const EXPECTED_TOKENS_PER_S: f64 = 400_000.0;
/// The number of KV blocks: enough for all streams and for earlier responses, which the KV index keeps.
const NUM_BLOCKS: u32 = 1 << 16;
/// The block size of the CPU shard.
const BLOCK_SIZE: u32 = 16;

/// The server that answers the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answerer {
    /// The router with the mock shard.
    Router,
    /// A bare axum loop with the same events.
    Bare,
}

/// One row of the table.
pub struct Workload {
    pub name: &'static str,
    answerer: Answerer,
    api: Api,
    streams: usize,
    /// The time of a step; zero if the shard answers at once.
    pace: Duration,
    /// True if the shard computes nothing at first, to measure the memory of an idle stream.
    idle_first: bool,
}

const STEP: Duration = Duration::from_millis(10);

pub const ALL: &[Workload] = &[
    Workload {
        name: "bare axum loop",
        answerer: Answerer::Bare,
        api: Api::Chat,
        streams: 64,
        pace: Duration::ZERO,
        idle_first: false,
    },
    Workload {
        name: "router, unpaced",
        answerer: Answerer::Router,
        api: Api::Chat,
        streams: 64,
        pace: Duration::ZERO,
        idle_first: false,
    },
    Workload {
        name: "router, unpaced, Anthropic's events",
        answerer: Answerer::Router,
        api: Api::Messages,
        streams: 64,
        pace: Duration::ZERO,
        idle_first: false,
    },
    Workload {
        name: "router, unpaced, events of responses",
        answerer: Answerer::Router,
        api: Api::Responses,
        streams: 64,
        pace: Duration::ZERO,
        idle_first: false,
    },
    Workload {
        name: "router, unpaced, one stream",
        answerer: Answerer::Router,
        api: Api::Chat,
        streams: 1,
        pace: Duration::ZERO,
        idle_first: false,
    },
    Workload {
        name: "router, steps of 10 ms, one stream",
        answerer: Answerer::Router,
        api: Api::Chat,
        streams: 1,
        pace: STEP,
        idle_first: false,
    },
    Workload {
        name: "router, steps of 10 ms",
        answerer: Answerer::Router,
        api: Api::Chat,
        streams: 64,
        pace: STEP,
        idle_first: false,
    },
    Workload {
        name: "router, steps of 10 ms, many",
        answerer: Answerer::Router,
        api: Api::Chat,
        streams: 1_000,
        pace: STEP,
        idle_first: true,
    },
];

impl Workload {
    /// Runs the workload for about `seconds`. `router` is the path of the program.
    pub fn run(&self, seconds: Duration, router: &Path) -> anyhow::Result<Row> {
        match self.answerer {
            Answerer::Bare => self.run_bare(seconds),
            Answerer::Router => self.run_router(seconds, router),
        }
    }

    /// Returns the requests of each stream, chosen so that the workload takes about `seconds`.
    fn load(&self, seconds: Duration) -> Load {
        if self.pace.is_zero() {
            let of_stream = EXPECTED_TOKENS_PER_S / self.streams as f64 * seconds.as_secs_f64();
            let answers = if self.streams == 1 { 12.0 } else { of_stream / f64::from(ANSWER_TOKENS) };
            return Load { api: self.api, answers: answers.ceil() as u32, answer_tokens: ANSWER_TOKENS };
        }
        let tokens = seconds.as_secs_f64() / self.pace.as_secs_f64();
        Load { api: self.api, answers: 1, answer_tokens: (tokens as u32).clamp(1, ANSWER_TOKENS) }
    }

    fn run_bare(&self, seconds: Duration) -> anyhow::Result<Row> {
        let server = Server::bare()?;
        let mut streams = Streams::open(server.address, self.streams, self.load(seconds))?;
        Ok(self.measure(&server, &mut streams)?.0)
    }

    fn run_router(&self, seconds: Duration, router: &Path) -> anyhow::Result<Row> {
        let folder = tempfile::tempdir()?;
        write_model(folder.path());
        let stamps = Arc::new(Stamps::new(self.streams));
        let steps = Arc::new(Semaphore::new(if self.idle_first { 0 } else { Semaphore::MAX_PERMITS }));
        let plan = ShardPlan {
            script: Arc::new(|_| vec![u32::from(b'x'); ANSWER_TOKENS as usize]),
            steps: steps.clone(),
            pace: self.pace,
            block_size: BLOCK_SIZE,
            num_blocks: NUM_BLOCKS,
            max_step_tokens: 2_048,
            max_step_sequences: 1_024,
            keep_plans: false,
            watch: (!self.pace.is_zero()).then(|| stamps.clone() as _),
            ..ShardPlan::default()
        };
        let socket = folder.path().join("shard.sock");
        let _shard = MockShard::start(&socket, plan);
        let server = Server::router(router, folder.path(), &socket)?;
        let router_bytes = server.memory_bytes()?;
        let mut streams = Streams::open(server.address, self.streams, self.load(seconds))?;
        let mut stream_bytes = None;
        if self.idle_first {
            streams.wait_for_first_events()?;
            let grown = server.memory_bytes()?.saturating_sub(router_bytes);
            stream_bytes = Some(grown / self.streams as u64);
            steps.add_permits(Semaphore::MAX_PERMITS);
        }
        let (mut row, outcome) = self.measure(&server, &mut streams)?;
        row.router_bytes = Some(router_bytes);
        row.idle_stream_bytes = stream_bytes;
        if !self.pace.is_zero() {
            let added = stamps.added(&outcome.arrivals)?;
            row.added_at_best = Percentiles::of_best_window(&added);
            row.added = Percentiles::of(added.into_iter().map(|(_, time)| time).collect());
            row.next_plan = Percentiles::of(stamps.until_next_plan());
        }
        Ok(row)
    }

    /// Reads all streams to their ends.
    fn measure(&self, server: &Server, streams: &mut Streams) -> anyhow::Result<(Row, Outcome)> {
        let (server_before, own_before, all_before) = (server.cpu_time()?, own_cpu_time()?, all_cpu_time()?);
        let outcome = streams.run()?;
        let cpu = server.cpu_time()?.saturating_sub(server_before);
        let own = own_cpu_time()?.saturating_sub(own_before);
        let foreign = all_cpu_time()?.saturating_sub(all_before).saturating_sub(cpu + own);
        let tokens = outcome.tokens as f64;
        let row = Row {
            name: self.name.to_owned(),
            streams: self.streams,
            tokens: outcome.tokens,
            tokens_per_s: tokens / outcome.took.as_secs_f64(),
            event_bytes: outcome.bytes as f64 / tokens,
            tokens_per_read: tokens / outcome.reads as f64,
            router_cpu_us_per_token: cpu.as_secs_f64() * 1e6 / tokens,
            other_cpu_us_per_token: own.as_secs_f64() * 1e6 / tokens,
            foreign_cores: foreign.as_secs_f64() / outcome.took.as_secs_f64(),
            added: None,
            added_at_best: None,
            next_plan: None,
            router_bytes: None,
            idle_stream_bytes: None,
        };
        Ok((row, outcome))
    }
}
