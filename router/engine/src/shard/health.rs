//! Polls the shard's health, independently of the Step stream, and tells when the shard hangs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use trunkline_scheduler::{LaneId, LaneStats};

use super::client::{Client, client, connect, failed};
use super::proto::{HealthRequest, HealthResponse};
use super::{ShardError, ShardStatus};
use trunkline_base::limits::{ServerLimits, Timeouts};

/// The limit for the shard's first step, in ordinary limits: it may compile kernels or read weights from a cold disk.
const FIRST_STEP_FACTOR: u32 = 10;
/// A step may run for this many times as long as the longest recent one, however short `stuck_step_timeout` is, because
/// steps that read weights from a slow disk all take long.
const LONGEST_STEP_FACTOR: u32 = 4;
/// A shard that misses fewer checks than this in a row does not hang, however short the limits are.
const MIN_MISSED_CHECKS: u32 = 3;

/// The result of a health check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Check {
    /// No shard listens: it is loading or has ended. Also before the first check.
    #[default]
    Away,
    /// A shard listens, but did not answer in time.
    Silent,
    Answered {
        /// The time since the running step began; 0 if no step is running.
        step_running: Duration,
        /// The id of the last finished step; 0 if none has finished.
        last_step_id: u64,
    },
}

impl Check {
    /// Returns true if the shard answers and no step has been running longer than `limit`.
    pub fn is_well(self, limit: Duration) -> bool {
        matches!(self, Self::Answered { step_running, .. } if step_running <= limit)
    }
}

/// The outcome of all health checks so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Health {
    pub last: Check,
    /// The time for which all checks up to the last one found the shard unwell.
    pub unwell: Duration,
    /// The number of these checks.
    pub num_unwell: u32,
    /// The number of hangs, of this shard and of those before it, since a shard was last well for long.
    pub hangs: u32,
    /// The time that a step may run because earlier ones took long, if it is more than `stuck_step_timeout`.
    pub patience: Duration,
}

impl Health {
    /// Returns the time since the running step began, or the time for which the shard was unwell if that is longer.
    pub fn hung_for(self) -> Duration {
        match self.last {
            Check::Answered { step_running, .. } => step_running.max(self.unwell),
            Check::Away | Check::Silent => self.unwell,
        }
    }
}

/// Decides whether the shard hangs.
///
/// A check counts for the time since the one before, but for no more than a check takes. So a machine that was
/// suspended, or a router that was stopped, does not make a shard hang that answers the next check.
#[derive(Debug, Clone)]
pub struct HangWatch {
    timeouts: Timeouts,
    stuck_step_timeout: Duration,
    /// The time after which an unwell shard hangs; `None` is never.
    limit: Option<Duration>,
    in_first_step: bool,
    /// The last finished step when a step was last seen running, and the time for which that one had run.
    running: Option<(u64, Duration)>,
    well: Duration,
    health: Health,
    /// Losses so far for which requests are to blame.
    num_excused: u64,
}

impl HangWatch {
    /// A shard hangs that was unwell for `hung_shard_factor` times `stuck_step_timeout`; with a factor of 0, none does.
    pub fn new(limits: &ServerLimits) -> Self {
        let (timeouts, factor) = (limits.timeouts, limits.hung_shard_factor);
        let limit = (limits.stuck_step_timeout * factor).max(timeouts.health * MIN_MISSED_CHECKS);
        Self {
            timeouts,
            stuck_step_timeout: limits.stuck_step_timeout,
            limit: (factor > 0).then_some(limit),
            in_first_step: false,
            running: None,
            well: Duration::ZERO,
            health: Health::default(),
            num_excused: 0,
        }
    }

    /// Takes the result of a check and the time since the one before. `hangs` grows when the shard begins to hang, and
    /// again each time that it has been unwell for as long once more.
    pub fn note(&mut self, check: Check, since_last: Duration) -> Health {
        let time = since_last.min(self.timeouts.health_interval + self.timeouts.health);
        self.health.last = check;
        match check {
            Check::Away => {
                self.in_first_step = false;
                (self.running, self.health.patience) = (None, Duration::ZERO);
                (self.health.unwell, self.health.num_unwell) = (Duration::ZERO, 0);
            }
            Check::Silent => self.add_unwell(time),
            Check::Answered { step_running, last_step_id } => {
                self.in_first_step = !step_running.is_zero() && last_step_id == 0;
                self.learn(step_running, last_step_id);
                if check.is_well(self.stuck_step_timeout.max(self.health.patience)) {
                    self.add_well(time);
                } else {
                    self.add_unwell(time);
                }
            }
        }
        self.health
    }

    /// Takes the number of losses so far for which requests are to blame. Those that were hangs do not count, so that a
    /// client cannot make the server look as if it had to be restarted.
    pub fn excuse(&mut self, num_excused: u64) {
        let num_new = u32::try_from(num_excused - self.num_excused).unwrap_or(u32::MAX);
        self.num_excused = num_excused;
        self.health.hangs = self.health.hangs.saturating_sub(num_new);
    }

    /// Learns from a step that has finished since the last check. If none was seen running, steps are short, and longer
    /// ones are forgotten.
    fn learn(&mut self, step_running: Duration, last_step_id: u64) {
        if let Some((_, ran)) = self.running.take_if(|(before, _)| *before != last_step_id) {
            self.health.patience = (self.health.patience / 2).max(ran * LONGEST_STEP_FACTOR);
        }
        if self.running.is_none() || !step_running.is_zero() {
            self.running = Some((last_step_id, step_running));
        }
    }

    fn add_well(&mut self, time: Duration) {
        (self.health.unwell, self.health.num_unwell) = (Duration::ZERO, 0);
        self.well += time;
        if self.limit.is_some_and(|limit| self.well >= limit) {
            self.health.hangs = 0;
        }
    }

    fn add_unwell(&mut self, time: Duration) {
        let before = self.health.unwell;
        self.well = Duration::ZERO;
        self.health.unwell += time;
        self.health.num_unwell += 1;
        if let Some(limit) = self.limit {
            let limit = if self.in_first_step { limit * FIRST_STEP_FACTOR } else { limit };
            let times = |unwell: Duration| unwell.as_millis() / limit.as_millis();
            self.health.hangs += u32::from(times(self.health.unwell) > times(before));
        }
    }
}

/// Checks the health of a lane's shard every `health_interval`, and whenever the status of a shard changes, until no
/// receiver is left. `health` has a place for each lane.
pub async fn watch_health(
    lane: LaneId,
    socket: PathBuf,
    mut watch: HangWatch,
    mut shards: watch::Receiver<Vec<ShardStatus>>,
    lanes: watch::Receiver<Vec<LaneStats>>,
    health: Arc<watch::Sender<Vec<Health>>>,
) {
    let place = lane.0 as usize;
    let mut known: Option<Client> = None;
    let mut ticks = tokio::time::interval(watch.timeouts.health_interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last_check = Instant::now();
    while !health.is_closed() {
        tokio::select! {
            _ = ticks.tick() => {}
            changed = shards.changed() => if changed.is_err() { return },
        }
        let check = match tokio::time::timeout(watch.timeouts.health, ask(&socket, &mut known)).await {
            Ok(Ok(answer)) => Check::Answered {
                step_running: Duration::from_millis(if answer.step_running {
                    answer.step_running_ms
                } else {
                    0
                }),
                last_step_id: answer.last_step_id,
            },
            Ok(Err(error)) => {
                tracing::debug!(lane = lane.0, %error, "health check failed");
                known = None;
                if matches!(error, ShardError::Unreachable { .. }) { Check::Away } else { Check::Silent }
            }
            Err(_) => {
                known = None;
                Check::Silent
            }
        };
        watch.excuse(lanes.borrow()[place].excused_losses);
        let hangs = health.borrow()[place].hangs;
        let now = watch.note(check, last_check.elapsed());
        last_check = Instant::now();
        if now.hangs > hangs {
            tracing::warn!(
                lane = lane.0,
                hung_s = now.hung_for().as_secs(),
                hangs = now.hangs,
                "the shard hangs"
            );
        }
        health.send_modify(|health| health[place] = now);
    }
}

async fn ask(socket: &std::path::Path, known: &mut Option<Client>) -> Result<HealthResponse, ShardError> {
    let mut asked = match known.take() {
        Some(client) => client,
        None => client(connect(socket).await?),
    };
    let answer = asked.health(HealthRequest {}).await.map_err(failed("Health"))?;
    *known = Some(asked);
    Ok(answer.into_inner())
}
