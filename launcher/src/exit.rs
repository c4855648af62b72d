//! The purposes of the launcher's children and the ways in which they end, for events, errors and logs.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::Signal;

/// The purpose of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `python -m trunkline_server resolve`
    Resolver,
    /// `python -m trunkline_server serve`
    Shard,
    /// `trunkline-router`
    Router,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolver => "resolver",
            Self::Shard => "shard",
            Self::Router => "router",
        })
    }
}

/// The exit status of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The process exited with this code.
    Code(i32),
    /// This signal killed the process.
    Signal(i32),
}

impl Exit {
    /// Returns whether the process exited with code 0.
    pub fn is_success(self) -> bool {
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
