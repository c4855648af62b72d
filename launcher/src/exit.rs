//! The ways in which children end, for errors and logs.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::Signal;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

impl Exit {
    pub(crate) fn is_success(self) -> bool {
        self == Self::Code(0)
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
