//! A reload under way: the model is resolved again, then a new pair starts and takes over lane by lane.

use std::path::PathBuf;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use crate::args::resolved::ServerConfig;
use crate::caller::Caller;
use crate::error::LauncherError;
use crate::pair::Pair;
use crate::plan::Plan;
use crate::process::Event;
use crate::{prepare, programs, resolve};

#[derive(Debug)]
pub(crate) struct Reload {
    pub(crate) stage: Stage,
    /// `None` if a signal asked.
    pub(crate) caller: Option<Caller>,
    /// The moment at which it fails, unless another shard is ready before.
    pub(crate) deadline: Instant,
    /// `--reload-timeout`
    pub(crate) timeout: Duration,
    /// Process ids of serving shards that were told to give their store up.
    pub(crate) gave_store: Vec<u32>,
    /// Lanes of the serving pair that were drained for the new one.
    pub(crate) drained: Vec<u32>,
}

#[derive(Debug)]
pub(crate) enum Stage {
    Resolving(Resolving),
    Starting(Box<Pair>),
}

/// The new configuration, whose models a thread resolves.
#[derive(Debug)]
pub(crate) struct Resolving {
    pub(crate) python: PathBuf,
    pub(crate) router: PathBuf,
    pub(crate) generation: u32,
    _resolver: resolve::Background,
}

/// Why a server goes on as before.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReloadError {
    #[error("the server is not ready yet; hint: try again later")]
    NotReady,
    #[error("a model is being looked for; hint: try again later")]
    Searching,
    #[error("another reload is under way; hint: try again later")]
    UnderWay,
    #[error(
        "`{flag}` is now `{new}`, but the server listens on `{old}`; hint: restart the server to change it"
    )]
    Moved { flag: &'static str, new: String, old: String },
    #[error(
        "`--shard-socket` still names `{}`, but a shard serves one router at a time; hint: name other shards, or restart \
         the server",
        path.display()
    )]
    SharedShard { path: PathBuf },
    #[error(
        "the model was not found or downloaded within {limit_s} s; hint: download it with `trunkline download`, or raise \
         `--reload-timeout`"
    )]
    ModelLate { limit_s: u64 },
    #[error(
        "no new shard was ready within {limit_s} s; hint: see the log of the shard, or raise \
         `--reload-timeout`"
    )]
    PairLate { limit_s: u64 },
    #[error("{}", reason(.0))]
    Failed(LauncherError),
}

/// Returns what the launcher would print, on one line and without its prefix.
pub(crate) fn reason(error: &LauncherError) -> String {
    match error {
        LauncherError::ChildRefused { verdict: Some(verdict), .. } => {
            let verdict = String::from_utf8_lossy(verdict);
            verdict.trim_start_matches("error: ").trim_end().to_owned()
        }
        error => error.to_string().replace('\n', " "),
    }
}

impl ReloadError {
    /// Fails if the server would have to listen elsewhere.
    pub(crate) fn check_listeners(config: &ServerConfig, old: &Plan) -> Result<(), Self> {
        let (now, then) = (&config.first.server, &old.config().server);
        for (flag, new, old) in [
            ("--hostname", now.hostname.clone(), then.hostname.clone()),
            ("--port", now.port.to_string(), then.port.to_string()),
            ("--metrics-hostname", now.metrics_hostname.clone(), then.metrics_hostname.clone()),
            ("--metrics-port", now.metrics_port.to_string(), then.metrics_port.to_string()),
        ] {
            if new != old {
                return Err(Self::Moved { flag, new, old });
            }
        }
        Ok(())
    }
}

impl Reload {
    /// Begins to resolve the models of a new configuration. [`Event::Resolved`] follows.
    pub(crate) fn begin(
        mut config: Box<ServerConfig>,
        old: &Plan,
        generation: u32,
        events: &SyncSender<Event>,
    ) -> Result<Self, ReloadError> {
        if let Some(limit) = old.config().residency.models_memory {
            // The default is a part of the memory that was available before any model was loaded.
            config.first.residency.models_memory.get_or_insert(limit);
        }
        let (now, then) = (&config.first.foreign_shards, &old.config().foreign_shards);
        if let Some(path) = now.iter().find(|path| then.contains(path)) {
            return Err(ReloadError::SharedShard { path: path.clone() });
        }
        let python = programs::python().map_err(ReloadError::Failed)?;
        let router = programs::router().map_err(ReloadError::Failed)?;
        let timeout = config.first.server.reload_timeout;
        let (program, resolved) = (python.clone(), events.clone());
        let resolver = resolve::Background::run(move |events, sender| {
            let prepared = prepare::prepare(config, &program, events, sender);
            // If this fails, the supervisor has ended.
            let _ = resolved.send(Event::Resolved { generation, prepared });
        });
        let stage = Stage::Resolving(Resolving { python, router, generation, _resolver: resolver });
        let deadline = Instant::now() + timeout;
        Ok(Self { stage, caller: None, deadline, timeout, gave_store: Vec::new(), drained: Vec::new() })
    }

    /// Returns the new pair once it starts.
    pub(crate) fn pair(&self) -> Option<&Pair> {
        match &self.stage {
            Stage::Starting(pair) => Some(pair),
            Stage::Resolving(_) => None,
        }
    }

    /// Returns the error of a reload that has reached its deadline.
    pub(crate) fn late(&self) -> ReloadError {
        let limit_s = self.timeout.as_secs();
        match self.stage {
            Stage::Resolving(_) => ReloadError::ModelLate { limit_s },
            Stage::Starting(_) => ReloadError::PairLate { limit_s },
        }
    }
}
