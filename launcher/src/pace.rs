//! Time limits for the children. Tests shorten them.

use std::time::Duration;

/// Pause before the second restart within the window; it doubles with each further restart.
const BASE_PAUSE: Duration = Duration::from_millis(100);
/// Time that the shard has to refuse a model after the router has refused it. Including the time to stop the shard, the
/// launcher exits within a second.
const SECOND_VERDICT_TIMEOUT: Duration = Duration::from_millis(600);
/// Time that the router has beyond `--graceful-termination-timeout` to close its streams and exit.
const ROUTER_GRACE: Duration = Duration::from_secs(2);
/// Time that the shard has to finish the running step.
const SHARD_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that streams on a lane that drains have to finish before they go on with another one.
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);
/// Time that a child has to exit after another child failed; the launcher then exits within a second.
const ABANDON_TIMEOUT: Duration = Duration::from_millis(350);
/// Time after a model is ready until a process for the next shard makes its imports, so that they do not delay the
/// answer that the model was loaded for.
const SPARE_DELAY: Duration = Duration::from_secs(2);
/// Time between two looks at the folder of `--models-folder`.
const FOLDER_PAUSE: Duration = Duration::from_secs(1);

/// The time limits; the command uses [`Pace::default`].
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub base_pause: Duration,
    pub second_verdict_timeout: Duration,
    pub router_grace: Duration,
    pub shard_timeout: Duration,
    pub drain_patience: Duration,
    pub abandon_timeout: Duration,
    pub spare_delay: Duration,
    pub folder_pause: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            base_pause: BASE_PAUSE,
            second_verdict_timeout: SECOND_VERDICT_TIMEOUT,
            router_grace: ROUTER_GRACE,
            shard_timeout: SHARD_TIMEOUT,
            drain_patience: DRAIN_PATIENCE,
            abandon_timeout: ABANDON_TIMEOUT,
            spare_delay: SPARE_DELAY,
            folder_pause: FOLDER_PAUSE,
        }
    }
}
