//! The ways in which children end, for errors and logs.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;

/// The exit code after a requested stop that cut requests, in the launcher and the router.
pub(crate) const EXIT_CUT: i32 = trunkline_settings::EXIT_CUT as i32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// The launcher killed the process because it had hung for this long.
    Hung(Duration),
}

impl Exit {
    /// Returns true if the process stopped as asked, even if it cut requests.
    pub(crate) fn is_success(self) -> bool {
        matches!(self, Self::Code(0 | EXIT_CUT))
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, signal) => Self::Signal(signal.unwrap_or_default()),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Hung(time) => write!(f, "signal 9 (SIGKILL) after hanging for {} s", time.as_secs()),
            Self::Signal(signal) => match Signal::from_named_raw(*signal) {
                Some(Signal::KILL) => f.write_str("signal 9 (SIGKILL)"),
                Some(Signal::SEGV) => f.write_str("signal 11 (SIGSEGV)"),
                Some(Signal::ABORT) => f.write_str("signal 6 (SIGABRT)"),
                Some(Signal::ILL) => f.write_str("signal 4 (SIGILL)"),
                Some(Signal::BUS) => f.write_str("signal 7 (SIGBUS)"),
                Some(Signal::TERM) => f.write_str("signal 15 (SIGTERM)"),
                _ => write!(f, "signal {signal}"),
            },
        }
    }
}
