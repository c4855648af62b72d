//! What the arguments ask for, checked.

use std::env;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::args::RunArgs;
use crate::arrivals::{Limit, Load};
use crate::client::Client;
use crate::client::address::Address;
use crate::client::tls::Trust;
use crate::compose::Endpoint;
use crate::error::BenchError;
use crate::metrics::Bounds;
use crate::workload::{self, Content, Length, Made, Prefixes, TraceForm, Workload};

/// Time of a load unless the user gives another length.
const DEFAULT_DURATION: Duration = Duration::from_secs(30);
const DEFAULT_CLIENTS: usize = 8;
/// Most clients of a load: each takes a connection and a task.
const MAX_CLIENTS: usize = 100_000;
const MIN_SWEEP: usize = 3;
/// Variables with an API key, the first one that is set.
const KEY_VARIABLES: [&str; 2] = ["TRUNKLINE_API_KEY", "OPENAI_API_KEY"];

/// `openchat_sharegpt4` in Sarathi-Serve (OSDI 2024), table 2: median and 90th percentile of prompts and outputs, and
/// the most tokens of both together.
const SHAREGPT_INPUT: Length = Length::LogNormal { median: 1730.0, p90: 5696.0 };
const SHAREGPT_OUTPUT: Length = Length::LogNormal { median: 415.0, p90: 834.0 };
const SHAREGPT_MAX_TOTAL: u32 = 8192;

/// The loads that are measured in turn.
#[derive(Clone, Debug, PartialEq)]
pub enum Loads {
    Given(Vec<Load>),
    /// One client, then `max_clients`, then rates between: `count` in all.
    Sweep {
        count: usize,
        max_clients: usize,
        burstiness: f64,
    },
}

/// The measurement that the arguments describe.
#[derive(Clone, Debug)]
pub struct Plan {
    pub workload: Workload,
    /// The workload in words.
    pub workload_title: String,
    pub loads: Loads,
    pub limit: Limit,
    pub warmup: u64,
    pub seed: u64,
    pub bounds: Bounds,
    pub endpoint: Endpoint,
    pub model: Option<String>,
    pub stop_early: bool,
    /// True if the text of each answer and the times of its events are kept.
    pub is_detailed: bool,
    pub extra: Map<String, Value>,
    trust: Trust,
    key: Option<String>,
    timeout: Duration,
}

impl Plan {
    pub fn new(args: &RunArgs) -> Result<Self, BenchError> {
        check(args)?;
        let (workload, workload_title) = workload(args)?;
        let endpoint = endpoint(args, &workload)?;
        let loads = loads(args)?;
        let turns = workload.turns();
        let limit = match (args.requests, args.duration, &workload) {
            (Some(requests), ..) => Limit::Sessions(requests.div_ceil(turns)),
            (None, Some(duration), _) => Limit::Time(duration),
            (None, None, Workload::Trace(trace)) => Limit::Sessions(trace.num_sessions()),
            (None, None, _) => Limit::Time(DEFAULT_DURATION),
        };
        Ok(Self {
            workload,
            workload_title,
            loads,
            limit,
            warmup: args.warmup,
            seed: args.seed,
            bounds: bounds(&args.goodput)?,
            endpoint,
            model: args.model.clone(),
            stop_early: args.stop_early,
            is_detailed: args.detailed,
            extra: extra(args.extra_body.as_deref())?,
            trust: Trust::of(args.cacert.as_deref(), args.insecure),
            key: key(args.api_key_env.as_deref())?,
            timeout: args.timeout,
        })
    }

    pub fn client(&self, url: &str) -> Result<Client, BenchError> {
        Ok(Client::new(Address::parse(url)?, &self.trust, self.key.as_deref(), self.timeout)?)
    }
}

fn check(args: &RunArgs) -> Result<(), BenchError> {
    let wrong = |flag: &str, value: &dyn std::fmt::Display, expected: &str| {
        Err(BenchError::usage(format!("`--{flag}` is {value}, but must be {expected}")))
    };
    if let Some(clients) = args.concurrency.iter().find(|clients| !(1..=MAX_CLIENTS).contains(clients)) {
        return wrong("concurrency", clients, "from 1 to 100000");
    }
    if !(1..=MAX_CLIENTS).contains(&args.max_concurrency) {
        return wrong("max-concurrency", &args.max_concurrency, "from 1 to 100000");
    }
    if let Some(rate) = args.rate.iter().find(|rate| !(rate.is_finite() && **rate > 0.0)) {
        return wrong("rate", rate, "a number above 0");
    }
    if let Some(burstiness) = args.burstiness.filter(|shape| shape.is_nan() || *shape <= 0.0) {
        return wrong("burstiness", &burstiness, "a number above 0, or `inf`");
    }
    if let Some(count) = args.sweep.filter(|count| *count < MIN_SWEEP) {
        return wrong("sweep", &count, "at least 3");
    }
    if !(0.0..1.0).contains(&args.spread) {
        return wrong("spread", &args.spread, "from 0 to less than 1");
    }
    if !(args.trace_speed.is_finite() && args.trace_speed > 0.0) {
        return wrong("trace-speed", &args.trace_speed, "a number above 0");
    }
    let least_one = [
        ("input-tokens", u64::from(args.input_tokens)),
        ("output-tokens", u64::from(args.output_tokens)),
        ("turns", u64::from(args.turns)),
        ("prefixes", args.prefixes),
        ("trace-block-tokens", u64::from(args.trace_block_tokens)),
        ("trace-shrink", u64::from(args.trace_shrink)),
        ("requests", args.requests.unwrap_or(1)),
        ("max-input-tokens", u64::from(args.max_input_tokens.unwrap_or(1))),
    ];
    match least_one.iter().find(|(_, value)| *value == 0) {
        Some((flag, value)) => wrong(flag, value, "at least 1"),
        None => Ok(()),
    }
}

fn loads(args: &RunArgs) -> Result<Loads, BenchError> {
    if let Some(count) = args.sweep {
        let burstiness = args.burstiness.unwrap_or(f64::INFINITY);
        return Ok(Loads::Sweep { count, max_clients: args.max_concurrency, burstiness });
    }
    if args.burstiness.is_some() && args.rate.is_empty() {
        return Err(BenchError::usage(
            "`--burstiness` is about `--rate` and `--sweep`; hint: give one of them",
        ));
    }
    let burstiness = args.burstiness.unwrap_or(1.0);
    let open = |rate_per_s: &f64| Load::Open { rate_per_s: *rate_per_s, burstiness };
    let closed = |clients: &usize| Load::Closed { clients: *clients };
    Ok(Loads::Given(match (&args.concurrency[..], &args.rate[..], &args.trace) {
        ([], [], Some(_)) => vec![Load::Trace { speed: args.trace_speed }],
        ([], [], None) => vec![Load::Closed { clients: DEFAULT_CLIENTS }],
        ([], rates, _) => rates.iter().map(open).collect(),
        (clients, ..) => clients.iter().map(closed).collect(),
    }))
}

fn workload(args: &RunArgs) -> Result<(Workload, String), BenchError> {
    let (input, output) = match args.lengths {
        Some(_) => (SHAREGPT_INPUT, SHAREGPT_OUTPUT),
        None => (
            Length::Uniform { tokens: args.input_tokens, spread: args.spread },
            Length::Uniform { tokens: args.output_tokens, spread: args.spread },
        ),
    };
    if let Some(file) = &args.trace {
        let form = TraceForm {
            block_tokens: args.trace_block_tokens,
            shrink: args.trace_shrink,
            max_input_tokens: args.max_input_tokens.unwrap_or(u32::MAX),
        };
        let trace = workload::trace(file, args.seed, form)?;
        let title = format!("trace {file}, {} requests", trace.num_sessions());
        return Ok((Workload::Trace(trace), title));
    }
    if let Some(file) = &args.sharegpt {
        let listed = workload::sharegpt(file, args.seed)?;
        let title = format!("ShareGPT {file}, {} conversations", listed.num_sessions());
        return Ok((Workload::Listed(listed), title));
    }
    if let Some(file) = &args.prompts {
        let listed = workload::prompts(file, output, args.seed)?;
        let title = format!("prompts of {file}, {}", listed.num_sessions());
        return Ok((Workload::Listed(listed), title));
    }
    let prefixes =
        (args.prefix_tokens > 0).then_some(Prefixes { count: args.prefixes, tokens: args.prefix_tokens });
    let max_total = args.lengths.as_ref().map(|_| SHAREGPT_MAX_TOTAL);
    let made =
        Made { seed: args.seed, input, output, max_total, prefixes, turns: args.turns, pause: args.pause };
    Ok((Workload::Made(made), title(args)))
}

fn title(args: &RunArgs) -> String {
    let spread = if args.spread > 0.0 { format!(" ± {:.0} %", args.spread * 100.0) } else { String::new() };
    let mut title = match &args.lengths {
        Some(name) => format!("lengths of {name}"),
        None => format!("{} input and {} output tokens{spread}", args.input_tokens, args.output_tokens),
    };
    match (args.prefix_tokens, args.prefixes) {
        (0, _) => {}
        (tokens, 1) => title += &format!(", one prefix of {tokens}"),
        (tokens, count) => title += &format!(", {count} prefixes of {tokens}"),
    }
    if args.turns > 1 {
        title += &format!(", {} turns", args.turns);
        if !args.pause.is_zero() {
            title += &format!(" with pauses of {} s", args.pause.as_secs_f64());
        }
    }
    title
}

fn endpoint(args: &RunArgs, workload: &Workload) -> Result<Endpoint, BenchError> {
    let has_messages = match workload {
        Workload::Listed(listed) => listed.turns().any(|turn| matches!(turn.content, Content::Messages(_))),
        _ => false,
    };
    match args.endpoint {
        Some(Endpoint::Completions) if has_messages => Err(BenchError::usage(
            "`--endpoint` is `completions`, but there are prompts with `messages`; hint: leave it out",
        )),
        Some(endpoint) => Ok(endpoint),
        None if has_messages => Ok(Endpoint::Chat),
        None => Ok(Endpoint::Completions),
    }
}

fn bounds(given: &[String]) -> Result<Bounds, BenchError> {
    let mut bounds = Bounds::default();
    for pair in given.iter().flat_map(|text| text.split([' ', ','])).filter(|pair| !pair.is_empty()) {
        let wrong = || {
            BenchError::usage(format!(
                "`--goodput` has `{pair}`; expected `ttft:MS`, `tpot:MS` or `e2el:MS` with milliseconds above 0"
            ))
        };
        let (name, value) = pair.split_once(':').ok_or_else(wrong)?;
        let value: f64 = value.parse().ok().filter(|value| *value > 0.0).ok_or_else(wrong)?;
        match name {
            "ttft" => bounds.ttft = Some(value),
            "tpot" => bounds.tpot = Some(value),
            "e2el" => bounds.e2el = Some(value),
            _ => return Err(wrong()),
        }
    }
    Ok(bounds)
}

fn extra(text: Option<&str>) -> Result<Map<String, Value>, BenchError> {
    let Some(text) = text else { return Ok(Map::new()) };
    serde_json::from_str(text).map_err(|error| {
        BenchError::usage(format!(
            "`--extra-body` is no JSON object ({error}); hint: put it into single quotes"
        ))
    })
}

fn key(variable: Option<&str>) -> Result<Option<String>, BenchError> {
    let Some(variable) = variable else {
        return Ok(KEY_VARIABLES.iter().find_map(|name| env::var(name).ok().filter(|key| !key.is_empty())));
    };
    let wrong = |problem| BenchError::Key { variable: variable.to_owned(), problem };
    match env::var(variable) {
        Ok(key) if key.is_empty() => Err(wrong("is empty")),
        Ok(key) => Ok(Some(key)),
        Err(env::VarError::NotPresent) => Err(wrong("is not set")),
        Err(env::VarError::NotUnicode(_)) => Err(wrong("is no text")),
    }
}
