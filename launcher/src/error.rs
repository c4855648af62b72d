//! Everything that ends the launcher early, and the exit code it ends with.

use std::io;
use std::path::PathBuf;

use crate::process::{Exit, Role};

/// The exit code of a user's mistake, the launcher's and its children's alike (docs/architecture.md).
pub const EXIT_USER_MISTAKE: i32 = 2;
/// The exit code of any other failure.
pub const EXIT_FAILURE: i32 = 1;
/// Added to a signal's number when that signal cut a stop short, as shells do.
pub const EXIT_SIGNAL_BASE: i32 = 128;

/// Why the launcher ends without having been asked to.
#[derive(Debug, thiserror::Error)]
pub enum LauncherError {
    /// A flag, variable or configuration value that cannot be meant.
    #[error("{message}")]
    Usage {
        /// One line in the wording of the error page, with the flag in backticks.
        message: String,
    },
    /// The configuration file cannot be read.
    #[error("cannot read the configuration file `{}`: {source}", path.display())]
    ConfigUnreadable {
        /// As given by `--config`.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// A command on the KV cache failed.
    #[error(transparent)]
    Cache(#[from] crate::cache::CacheError),
    /// Another process listens where the router would.
    #[error(
        "port {port} of `{hostname}` is in use; hint: stop what listens there or choose another `--port`"
    )]
    PortInUse {
        /// `--hostname`.
        hostname: String,
        /// `--port`.
        port: u16,
    },
    /// The address cannot be bound for another reason.
    #[error(
        "cannot listen on port {port} of `{hostname}`: {source}; hint: choose another `--hostname` or `--port`"
    )]
    CannotListen {
        /// `--hostname`.
        hostname: String,
        /// `--port`.
        port: u16,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// The router binary or the Python interpreter is not where it belongs.
    #[error("no `{name}` beside `{}`; hint: install the whole package or set `{variable}`", beside.display())]
    ProgramMissing {
        /// File name looked for.
        name: &'static str,
        /// The launcher's own executable.
        beside: PathBuf,
        /// The environment variable that overrides the place.
        variable: &'static str,
    },
    /// A program cannot be started.
    #[error("cannot start the {role} (`{}`): {source}", program.display())]
    Spawn {
        /// What was to be started.
        role: Role,
        /// Its executable.
        program: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// A child found out what the user did wrong. Its own line is printed in place of this one.
    #[error("the {role} refused to start without saying why")]
    ChildRefused {
        /// Which child.
        role: Role,
        /// Its line `error: ...`, newline included; absent if it went to stderr directly or was never written.
        verdict: Option<Vec<u8>>,
    },
    /// A child ended before the server was ready.
    #[error("the {role} ended with {exit} before it was ready{}{}", said(last_line), hint(exit))]
    EndedBeforeReady {
        /// Which child.
        role: Role,
        /// How it ended.
        exit: Exit,
        /// The last line it wrote, if any.
        last_line: Option<String>,
    },
    /// A child crashed too often.
    #[error(
        "the {role} ended {ends} times within {window_s} s, the last time with {exit}{}{}",
        said(last_line),
        hint(exit)
    )]
    CrashLoop {
        /// Which child.
        role: Role,
        /// Ends counted within the window.
        ends: usize,
        /// The window, in seconds.
        window_s: u64,
        /// How it ended last.
        exit: Exit,
        /// The last line it wrote, if any.
        last_line: Option<String>,
    },
    /// `resolve` ended well but did not print what the contract says.
    #[error("the resolver printed no model: {reason}; hint: is the server package as new as the launcher?")]
    ResolverOutput {
        /// What is wrong with it.
        reason: String,
    },
    /// No private folder can be made for the sockets.
    #[error(
        "no folder for the sockets: {reasons}; hint: set `XDG_RUNTIME_DIR` or `TMPDIR` to a short writable path"
    )]
    RuntimeDir {
        /// Every place that was tried, and why it failed.
        reasons: String,
    },
    /// A signal ended the launcher before the model was resolved, or a second one cut the drain short.
    #[error("stopped by signal {signal}")]
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
    /// The operating system refused something that it always grants.
    #[error("cannot {what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
}

impl LauncherError {
    /// A user's mistake in one line.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::Usage { message: message.into() }
    }

    /// What the launcher's process ends with.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Usage { .. }
            | Self::ConfigUnreadable { .. }
            | Self::PortInUse { .. }
            | Self::CannotListen { .. }
            | Self::ChildRefused { .. } => EXIT_USER_MISTAKE,
            Self::Cache(error) if error.is_users_mistake() => EXIT_USER_MISTAKE,
            Self::Cache(_) => EXIT_FAILURE,
            Self::Interrupted { signal } => EXIT_SIGNAL_BASE + signal,
            Self::ProgramMissing { .. }
            | Self::Spawn { .. }
            | Self::EndedBeforeReady { .. }
            | Self::CrashLoop { .. }
            | Self::ResolverOutput { .. }
            | Self::RuntimeDir { .. }
            | Self::System { .. } => EXIT_FAILURE,
        }
    }

    /// The one line that says so on stderr; none if that is done already or known to whoever sent the signal.
    pub fn line(&self) -> Option<Vec<u8>> {
        match self {
            Self::Interrupted { .. } | Self::ChildRefused { role: Role::Resolver, .. } => None,
            Self::ChildRefused { verdict: Some(verdict), .. } => Some(verdict.clone()),
            error => Some(format!("error: {error}\n").into_bytes()),
        }
    }
}

fn said(last_line: &Option<String>) -> String {
    last_line.as_ref().map(|line| format!("; it said last: {}", line.trim_end())).unwrap_or_default()
}

/// A SIGKILL that the launcher did not send is nearly always the kernel's answer to memory running out.
fn hint(exit: &Exit) -> &'static str {
    match exit {
        Exit::Signal(signal) if *signal == rustix::process::Signal::KILL.as_raw() => {
            "; hint: the kernel kills the largest process when memory runs out; lower `--max-batch-total-tokens`"
        }
        _ => "",
    }
}
