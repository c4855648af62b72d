//! Polls the shard's health, independently of the Step stream.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;

use super::client::{Client, client, connect, failed};
use super::proto::{HealthRequest, HealthResponse};
use super::{ShardError, ShardStatus};
use crate::limits::{HEALTH_INTERVAL, HEALTH_TIMEOUT};

/// The result of the last health check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Health {
    /// The shard did not answer the last check, or there was none yet.
    #[default]
    Silent,
    Answered {
        /// The time since the running step began; 0 if no step is running.
        step_running: Duration,
        last_step_id: u64,
    },
}

impl Health {
    /// Returns true if the shard answers and no step has been running longer than `limit`.
    pub fn is_well(self, limit: Duration) -> bool {
        matches!(self, Self::Answered { step_running, .. } if step_running <= limit)
    }
}

/// Checks the health every `HEALTH_INTERVAL`, and whenever the shard's status changes, until no receiver is left.
pub async fn watch_health(
    socket: PathBuf,
    mut shard: watch::Receiver<ShardStatus>,
    health: watch::Sender<Health>,
) {
    let mut known: Option<Client> = None;
    let mut ticks = tokio::time::interval(HEALTH_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !health.is_closed() {
        tokio::select! {
            _ = ticks.tick() => {}
            changed = shard.changed() => if changed.is_err() { return },
        }
        let now = match tokio::time::timeout(HEALTH_TIMEOUT, ask(&socket, &mut known)).await {
            Ok(Ok(answer)) => Health::Answered {
                step_running: Duration::from_millis(if answer.step_running {
                    answer.step_running_ms
                } else {
                    0
                }),
                last_step_id: answer.last_step_id,
            },
            Ok(Err(error)) => {
                tracing::debug!(%error, "health check failed");
                known = None;
                Health::Silent
            }
            Err(_) => {
                known = None;
                Health::Silent
            }
        };
        health.send_replace(now);
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
