//! Runs the supervisor in the test's own process, so that the test can shorten time limits.

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use rustix::process::Signal;
use trunkline_launcher::args::resolved::{Request, ServerConfig};
use trunkline_launcher::args::{SERVE, parse};
use trunkline_launcher::error::LauncherError;
use trunkline_launcher::listen::Listener;
use trunkline_launcher::pace::Pace;
use trunkline_launcher::plan::{Base, Plan};
use trunkline_launcher::process::{Event, MAX_PENDING_EVENTS};
use trunkline_launcher::resolve::ResolvedModel;
use trunkline_launcher::runtime_dir::RuntimeDir;
use trunkline_launcher::supervise::Supervisor;

use super::{Bench, DEADLINE, ROUTER, SHARD, is_alive, pid, wait_for};

/// A running supervisor with a bench's fakes. The resolver is not started.
pub struct InProcess {
    pub bench: Bench,
    sender: SyncSender<Event>,
    ready: Receiver<()>,
    thread: JoinHandle<Result<i32, LauncherError>>,
}

impl Bench {
    /// Runs `trunkline serve --port 0 ARGS` without the command itself.
    pub fn supervise(self, args: &[&str], pace: Pace) -> InProcess {
        let (sender, events) = sync_channel(MAX_PENDING_EVENTS);
        let (is_ready, ready) = sync_channel(1);
        let config = config(args);
        let (python, router) = (self.path(SHARD), self.path(ROUTER));
        let (model, folder) = (self.path("model.gguf"), self.path("run"));
        let supervisor_sender = sender.clone();
        let thread = thread::spawn(move || {
            let base = Arc::new(Base {
                listener: Listener::open(&config.first.server.hostname, config.first.server.port)?,
                metrics_listener: Listener::open_for_metrics(&config.first.server)?,
                runtime_dir: RuntimeDir::create(&[folder], &config.first.log())?,
                pace,
            });
            let model =
                ResolvedModel { path: model, model_id: "fake/model".into(), ..ResolvedModel::default() };
            let models = config.models().map(|_| model.clone()).collect();
            let plan = Plan::new(*config, models, (python, router), 0, base);
            let reread = Box::new(|| unreachable!("no test of this kind reloads"));
            Supervisor::start(plan, reread, &events, supervisor_sender)?.run(|_| {
                is_ready.send(()).unwrap();
                Ok(())
            })
        });
        InProcess { bench: self, sender, ready, thread }
    }
}

/// Parses the arguments, with a log level that keeps the log out of the test's stderr.
fn config(args: &[&str]) -> Box<ServerConfig> {
    let own = ["trunkline", SERVE, "--port", "0", "--log-level", "error"];
    let argv: Vec<OsString> = own.iter().chain(args).map(Into::into).collect();
    match parse(&argv) {
        Ok(Request::Serve(config)) => config,
        other => panic!("{args:?}: {other:?}"),
    }
}

impl InProcess {
    pub fn wait_ready(&self) {
        self.ready.recv_timeout(DEADLINE).unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        self.sender.send(Event::Signal(signal.as_raw())).unwrap();
    }

    /// Waits for the end and checks that no child is left.
    pub fn wait(self) -> (Bench, Result<i32, LauncherError>) {
        wait_for("the supervisor to end", || self.thread.is_finished().then_some(()));
        let outcome = self.thread.join().unwrap();
        for entry in self.bench.journal() {
            assert!(!is_alive(pid(&entry)), "left behind: {entry}");
        }
        assert!(self.bench.runtime_folders().is_empty());
        (self.bench, outcome)
    }
}
