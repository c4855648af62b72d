//! The errors that end the launcher, and their exit codes.

use std::io;
use std::path::PathBuf;

use signal_hook::consts::SIGINT;

use crate::child::ChildId;
use crate::exit::Exit;

/// The exit code for a user's mistake, in the launcher and its children (docs/errors.md).
pub(crate) const EXIT_USER_MISTAKE: i32 = 2;
/// The exit code for any other failure.
pub const EXIT_FAILURE: i32 = 1;
/// Added to the number of the signal that stopped the launcher immediately, as shells do.
pub(crate) const EXIT_SIGNAL_BASE: i32 = 128;

/// An error that ends the launcher.
#[derive(Debug, thiserror::Error)]
pub enum LauncherError {
    #[error("{message}")]
    Usage { message: String },
    #[error("cannot read the configuration file `{}`: {source}", path.display())]
    ConfigUnreadable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Cache(#[from] crate::cache::CacheError),
    #[error(transparent)]
    Terminal(#[from] trunkline_terminal::error::Error),
    #[error(transparent)]
    Bench(#[from] trunkline_bench::BenchError),
    /// A running server was not found, or goes on as before.
    #[error("cannot {what}: {reason}")]
    Refused {
        /// What was asked for, to follow "cannot".
        what: String,
        reason: String,
    },
    #[error(
        "no server of this user{of} in {places}; hint: set `XDG_RUNTIME_DIR` and `TMPDIR` as the server has them"
    )]
    NoServer {
        /// The server that was asked for, to follow "user".
        of: String,
        places: String,
    },
    #[error(
        "port {port} of `{hostname}` is in use; hint: stop the process that listens there, or choose another `{flag_prefix}port`"
    )]
    PortInUse { flag_prefix: &'static str, hostname: String, port: u16 },
    /// An address cannot be bound for another reason.
    #[error(
        "cannot listen on port {port} of `{hostname}`: {source}; hint: choose another `{flag_prefix}hostname` or `{flag_prefix}port`"
    )]
    CannotListen {
        flag_prefix: &'static str,
        hostname: String,
        port: u16,
        #[source]
        source: io::Error,
    },
    #[error("`{name}` is not installed beside `{}`; hint: install the whole package, or set `{variable}` to its path", beside.display())]
    ProgramMissing { name: &'static str, beside: PathBuf, variable: &'static str },
    #[error("cannot start the {child} (`{}`): {source}", program.display())]
    Spawn {
        child: ChildId,
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A child ended because of a user's mistake. Its own error line is printed instead of this message.
    #[error("the {child} refused to start and gave no reason")]
    ChildRefused {
        child: ChildId,
        /// The child's `error: ...` line with its newline; `None` if it went directly to stderr or was never written.
        verdict: Option<Vec<u8>>,
    },
    #[error(
        "the {child} ended with {exit} before the server was ready{}{}",
        last_words(last_line),
        hint(exit)
    )]
    EndedBeforeReady { child: ChildId, exit: Exit, last_line: Option<String> },
    #[error(
        "the {child} crashed {ends} times within {window_s} s, most recently with {exit}{}{}",
        last_words(last_line),
        hint(exit)
    )]
    CrashLoop { child: ChildId, ends: usize, window_s: u64, exit: Exit, last_line: Option<String> },
    /// The resolver succeeded, but its output is not a model.
    #[error(
        "the resolver printed no valid model: {reason}; hint: check that launcher and server package have the same version"
    )]
    ResolverOutput { reason: String },
    #[error(
        "cannot create a folder for the sockets: {reasons}; hint: set `XDG_RUNTIME_DIR` or `TMPDIR` to a short writable path"
    )]
    RuntimeDir { reasons: String },
    /// A signal stopped the launcher before the model was resolved, or a second signal interrupted the drain.
    #[error("stopped by signal {signal}")]
    Interrupted { signal: i32 },
    /// A system call failed that normally succeeds.
    #[error("cannot {what}: {source}")]
    System {
        /// The failed action, to follow "cannot".
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

impl LauncherError {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage { message: message.into() }
    }

    pub(crate) fn no_server(of: &str, bases: &[PathBuf]) -> Self {
        let places: Vec<String> = bases.iter().map(|base| format!("`{}`", base.display())).collect();
        Self::NoServer { of: of.to_owned(), places: places.join(", ") }
    }

    /// Returns the launcher's exit code for this error.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Usage { .. }
            | Self::ConfigUnreadable { .. }
            | Self::PortInUse { .. }
            | Self::CannotListen { .. }
            | Self::ChildRefused { .. } => EXIT_USER_MISTAKE,
            Self::Cache(error) if error.is_users_mistake() => EXIT_USER_MISTAKE,
            Self::Terminal(error) => match error {
                error if error.is_users_mistake() => EXIT_USER_MISTAKE,
                trunkline_terminal::error::Error::Ended { code, .. } => *code,
                trunkline_terminal::error::Error::Stopped => EXIT_SIGNAL_BASE + SIGINT,
                _ => EXIT_FAILURE,
            },
            Self::Bench(error) if error.is_users_mistake() => EXIT_USER_MISTAKE,
            Self::Cache(_) | Self::Bench(_) => EXIT_FAILURE,
            Self::Interrupted { signal } => EXIT_SIGNAL_BASE + signal,
            Self::ProgramMissing { .. }
            | Self::Spawn { .. }
            | Self::EndedBeforeReady { .. }
            | Self::CrashLoop { .. }
            | Self::ResolverOutput { .. }
            | Self::RuntimeDir { .. }
            | Self::Refused { .. }
            | Self::NoServer { .. }
            | Self::System { .. } => EXIT_FAILURE,
        }
    }

    /// Returns the line to print on stderr; `None` if a child has printed it, or if a signal requested the stop.
    pub fn line(&self) -> Option<Vec<u8>> {
        match self {
            Self::Interrupted { .. } | Self::ChildRefused { child: ChildId::Resolver, .. } => None,
            Self::ChildRefused { verdict: Some(verdict), .. } => Some(verdict.clone()),
            error => Some(format!("error: {error}\n").into_bytes()),
        }
    }
}

fn last_words(last_line: &Option<String>) -> String {
    last_line.as_ref().map(|line| format!("; its last line was: {}", line.trim_end())).unwrap_or_default()
}

/// Explains a SIGKILL that the launcher did not send: nearly always the kernel's response to a lack of memory.
fn hint(exit: &Exit) -> &'static str {
    match exit {
        Exit::Signal(signal) if *signal == rustix::process::Signal::KILL.as_raw() => {
            "; hint: the system probably ran out of memory; lower `--max-batch-total-tokens`"
        }
        _ => "",
    }
}
