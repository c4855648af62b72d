//! The origin of a request, which is known before its body is read.

use std::time::Duration;

use tokio::time::Instant;

use super::deadline::Deadline;
use trunkline_base::error::ApiError;
use trunkline_base::request_id::RequestId;
use trunkline_base::tenants::Caller;

/// The sender of a request, its time of arrival and its time limits.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// Names the request in the log and in internal errors.
    pub id: RequestId,
    /// The tenant that sent it, where keys are configured.
    pub caller: Caller,
    /// When it arrived, for its deadline and the time to its first token.
    pub at: Instant,
    pub header_timeout: Option<Duration>,
    /// The time that `--request-timeout` allows.
    pub flag_timeout: Option<Duration>,
}

impl Arrival {
    /// Returns the request's deadline, if its header, its body's `timeout` in seconds or the flag sets one.
    pub fn deadline(&self, timeout: Option<f64>) -> Result<Option<Deadline>, ApiError> {
        Deadline::new(self.at, self.header_timeout, timeout, self.flag_timeout)
    }
}
