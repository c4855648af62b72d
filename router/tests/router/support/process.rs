//! A router process, started like the launcher starts it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};

use trunkline_settings::ServeSettings;

use super::{Connection, DEADLINE};

/// Path of the router's program.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_router-under-test");

/// Returns settings for the model and the shard's socket in `folder`, and any free port.
pub fn settings(folder: &Path) -> ServeSettings {
    let mut settings = ServeSettings::new(folder.join("shard.sock"), folder.into(), "m".into());
    settings.server.port = 0;
    settings
}

/// Starts routers with settings.
pub trait WithSettings {
    /// Writes `settings` into `folder` and adds them to the command.
    fn with_settings(&mut self, folder: &Path, settings: &ServeSettings) -> &mut Self;
}

impl WithSettings for Command {
    fn with_settings(&mut self, folder: &Path, settings: &ServeSettings) -> &mut Self {
        let path = folder.join("router.json");
        std::fs::write(&path, serde_json::to_vec(settings).unwrap()).unwrap();
        self.arg("--settings").arg(path)
    }
}

/// A running router process. Dropping it kills the process.
pub struct Process {
    child: Child,
    log: Arc<Log>,
    pub address: SocketAddr,
}

/// The process's output on stderr so far, and whether it is complete.
#[derive(Default)]
struct Log {
    text: Mutex<(String, bool)>,
    grown: Condvar,
}

impl Log {
    /// Waits until `find` returns a value for the log. Its second argument is true if the log is complete.
    fn wait<T>(&self, what: &str, find: impl Fn(&str, bool) -> Option<T>) -> T {
        let text = self.text.lock().unwrap();
        let is_missing = |(text, ended): &mut (String, bool)| find(text, *ended).is_none() && !*ended;
        let (text, _) = self.grown.wait_timeout_while(text, DEADLINE, is_missing).unwrap();
        find(&text.0, text.1)
            .unwrap_or_else(|| panic!("timed out waiting for {what} in the log:\n{}", text.0))
    }
}

impl Process {
    /// Starts a router with a lifeline and waits until it listens.
    pub fn start(command: &mut Command) -> Self {
        let mut child =
            command.arg("--lifeline").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let log = Arc::<Log>::default();
        let writer = log.clone();
        std::thread::spawn(move || {
            let mut line = String::new();
            while stderr.read_line(&mut line).is_ok_and(|num_bytes| num_bytes > 0) {
                writer.text.lock().unwrap().0.push_str(&line);
                writer.grown.notify_all();
                line.clear();
            }
            writer.text.lock().unwrap().1 = true;
            writer.grown.notify_all();
        });
        let address = log.wait("an address", |text, _| {
            let (_, address) = text.split_once("address=")?;
            let address = address.split_once('\n')?.0.split(' ').next()?.trim_matches('"');
            Some(address.strip_prefix("http://")?.parse().unwrap())
        });
        Self { child, log, address }
    }

    /// Waits until the process is ready. The log reports the shard as ready slightly earlier.
    pub async fn wait_until_ready(&self) {
        let is_ready =
            async || Connection::open(self.address).await.request("GET", "/readyz", b"").await.status == 200;
        let ready = async { while !is_ready().await {} };
        tokio::time::timeout(DEADLINE, ready).await.expect("the process is ready");
    }

    /// Waits until the log contains `wanted` this many times.
    pub fn wait_for_log(&self, wanted: &str, times: usize) {
        self.log.wait(wanted, |text, _| (text.matches(wanted).count() >= times).then_some(()));
    }

    pub fn hang_up(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    }

    /// Closes the lifeline, waits for the process and returns its exit status and complete log.
    pub fn end(mut self) -> (ExitStatus, String) {
        drop(self.child.stdin.take());
        let log = self.log.wait("its end", |text, has_ended| has_ended.then(|| text.to_owned()));
        (self.child.wait().unwrap(), log)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
