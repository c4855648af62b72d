//! How long the launcher gives its children. Tests that wait for these times to pass shorten them.

use std::time::Duration;

/// Pause before the second restart within the window; doubles from there.
const BASE_PAUSE: Duration = Duration::from_millis(100);
/// How long the shard may take to refuse a model that the router has refused already; with the time to stop it, the
/// launcher ends within a second.
const SECOND_VERDICT_TIMEOUT: Duration = Duration::from_millis(600);
/// What the router gets beyond `--graceful-termination-timeout` to close its streams and end.
const ROUTER_GRACE: Duration = Duration::from_secs(2);
/// How long the shard may take to finish the running step.
const SHARD_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a child may take when another one has already failed: together with the rest under a second.
const ABANDON_TIMEOUT: Duration = Duration::from_millis(350);

/// The times; [`Pace::default`] is what the command uses.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Pause before the second restart within the window; doubles from there.
    pub base_pause: Duration,
    /// How long the shard may take to refuse what the router has refused.
    pub second_verdict_timeout: Duration,
    /// What the router gets beyond the graceful-termination timeout.
    pub router_grace: Duration,
    /// How long the shard may take to end when asked to.
    pub shard_timeout: Duration,
    /// How long a child may take to end when another one has failed.
    pub abandon_timeout: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            base_pause: BASE_PAUSE,
            second_verdict_timeout: SECOND_VERDICT_TIMEOUT,
            router_grace: ROUTER_GRACE,
            shard_timeout: SHARD_TIMEOUT,
            abandon_timeout: ABANDON_TIMEOUT,
        }
    }
}
