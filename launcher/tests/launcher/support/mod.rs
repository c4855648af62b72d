//! Runs the real launcher over a fake shard and a fake router (Python, standard library only), each test in its own
//! folder. Every wait has a deadline; every process is ended by its id.

mod fake_api;
mod in_process;
mod typist;

pub use fake_api::{FakeApi, KEY};
pub use in_process::InProcess;
pub use typist::Typist;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value};
use tempfile::TempDir;

/// File names of the fakes.
pub const SHARD: &str = "fake-python";
pub const ROUTER: &str = "fake-router";
const DEADLINE: Duration = Duration::from_secs(30);

/// Polls until `condition` holds a value; fails with `what` after the deadline.
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(begin.elapsed() < DEADLINE, "waited {DEADLINE:?} for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn is_alive(pid: u32) -> bool {
    // A zombie counts as ended.
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with(['Z', 'X']))
    })
}

pub fn kill(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let _ = kill_process(pid, signal);
}

pub fn wait_until_gone(pid: u32) {
    wait_for(&format!("process {pid} to end"), || (!is_alive(pid)).then_some(()));
}

/// Returns the folder of the fakes, which are written once, before any process is started: a process forked in between
/// would inherit the open file, and running it would fail with ETXTBSY until that process calls exec.
pub fn fakes() -> &'static Path {
    static FAKES: OnceLock<TempDir> = OnceLock::new();
    let folder = FAKES.get_or_init(|| {
        // Use the interpreter itself: a shim would be another process between the launcher and the fake.
        let script = "import sys; print(sys.executable)";
        let output = Command::new("python3").args(["-c", script]).output().unwrap();
        let python = String::from_utf8(output.stdout).unwrap();
        let folder = tempfile::tempdir().unwrap();
        for (name, source) in
            [(SHARD, include_str!("fake_shard.py")), (ROUTER, include_str!("fake_router.py"))]
        {
            let path = folder.path().join(name);
            fs::write(&path, format!("#!{} -SE\n{source}", python.trim())).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        folder
    });
    folder.path()
}

/// A folder with the fakes, and the environment that selects them.
pub struct Bench {
    pub folder: TempDir,
    variables: Vec<(String, String)>,
}

impl Bench {
    pub fn new() -> Self {
        let fakes = fakes();
        let bench = Self { folder: tempfile::tempdir().unwrap(), variables: Vec::new() };
        for name in [SHARD, ROUTER] {
            std::os::unix::fs::symlink(fakes.join(name), bench.path(name)).unwrap();
        }
        fs::create_dir(bench.path("run")).unwrap();
        fs::write(bench.path("journal"), "").unwrap();
        let [journal, model] = [bench.path("journal"), bench.path("model.gguf")];
        let [release, exit, hung, excused, models] =
            ["release", "exit", "hung", "excused", "models"].map(|name| bench.path(name));
        bench
            .with("FAKE_JOURNAL", journal)
            .with("FAKE_MODEL", model)
            .with("FAKE_RELEASE", release)
            .with("FAKE_EXIT", exit)
            .with("FAKE_HUNG", hung)
            .with("FAKE_EXCUSED", excused)
            .with("FAKE_MODELS", models)
    }

    /// Sets a variable of the fakes (if its name starts with `FAKE_`) or of the launcher.
    pub fn with(mut self, name: &str, value: impl AsRef<Path>) -> Self {
        self.variables.push((name.into(), value.as_ref().to_str().unwrap().into()));
        let fakes = self.variables.iter().filter(|(name, _)| name.starts_with("FAKE_"));
        let fakes: Map<String, Value> =
            fakes.map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect();
        fs::write(self.path("environment"), Value::from(fakes).to_string()).unwrap();
        self
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn command(&self, args: &[&str]) -> Command {
        self.command_of(Path::new(env!("CARGO_BIN_EXE_trunkline")), args)
    }

    fn command_of(&self, launcher: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(launcher);
        command
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("TMPDIR", self.path("run"))
            .env("TRUNKLINE_PYTHON", self.path(SHARD))
            .env("TRUNKLINE_ROUTER", self.path(ROUTER))
            .envs(self.variables.iter().filter(|(name, _)| !name.starts_with("FAKE_")).cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::from(
                fs::OpenOptions::new().create(true).append(true).open(self.path("stderr")).unwrap(),
            ));
        command
    }

    /// Starts `trunkline serve --port 0 ARGS`.
    pub fn serve(self, args: &[&str]) -> Running {
        let command = self.command(&[&["serve", "--port", "0"], args].concat());
        Running::new(self, command)
    }

    /// Starts `trunkline serve --port 0 ARGS` and waits until it is ready.
    pub fn ready(self, args: &[&str]) -> Running {
        let mut server = self.serve(args);
        server.wait_ready();
        server
    }

    /// Runs a command and returns exit code, stdout and stderr.
    pub fn run(&self, args: &[&str]) -> (i32, String, String) {
        self.outcome(&mut self.command(args))
    }

    fn outcome(&self, command: &mut Command) -> (i32, String, String) {
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        (output.status.code().unwrap_or(-1), stdout, self.stderr())
    }

    /// Runs a copy of the launcher that has no router beside it, unlike the built one.
    pub fn run_alone(&self, args: &[&str]) -> (i32, String, String) {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let launcher = folder.path().join("trunkline");
        fs::hard_link(env!("CARGO_BIN_EXE_trunkline"), &launcher).unwrap();
        self.outcome(&mut self.command_of(&launcher, args))
    }

    pub fn stderr(&self) -> String {
        // The file does not exist if the launcher is not a process of its own.
        fs::read_to_string(self.path("stderr")).unwrap_or_default()
    }

    /// Returns the events that the fakes recorded, in order.
    pub fn journal(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path("journal")).unwrap();
        text.split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    pub fn events(&self, role: &str, event: &str) -> Vec<Value> {
        self.journal().into_iter().filter(|entry| entry["role"] == role && entry["event"] == event).collect()
    }

    /// Waits until `role` has recorded `event` for the `nth` time (from 1) and returns it.
    pub fn nth(&self, role: &str, event: &str, nth: usize) -> Value {
        wait_for(
            &format!("{role} {event} number {nth} in {:?}; stderr: {}", self.journal(), self.stderr()),
            || self.events(role, event).get(nth - 1).cloned(),
        )
    }

    /// Makes the running router exit with `code`.
    pub fn end_router(&self, code: i32) {
        self.tell("exit", &code.to_string());
    }

    /// Makes the running router report that the shard with this socket has hung for `seconds`.
    pub fn report_hang(&self, socket: &str, seconds: u64) {
        self.tell("hung", &format!("{seconds} {socket}"));
    }

    /// Makes the running router report that requests are to blame for the last losses.
    pub fn report_excused(&self, num_losses: u64) {
        self.tell("excused", &num_losses.to_string());
    }

    /// Makes the running router report this.
    pub fn report_of_models(&self, report: Value) {
        self.report_in("models", &report);
    }

    /// Lets a router that was told to leave report something of its models.
    pub fn report_of_old_models(&self, report: Value) {
        self.report_in("models-left", &report);
    }

    fn report_in(&self, file: &str, report: &Value) {
        wait_for("the last report to be made", || (!self.path(file).exists()).then_some(()));
        self.tell(file, &report.to_string());
    }

    fn tell(&self, file: &str, text: &str) {
        fs::write(self.path("told"), text).unwrap();
        fs::rename(self.path("told"), self.path(file)).unwrap();
    }

    pub fn runtime_folders(&self) -> Vec<PathBuf> {
        fs::read_dir(self.path("run")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for entry in self.journal() {
            let pid = pid(&entry);
            // Another process may have this id by now.
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let ours = String::from_utf8_lossy(&command).contains(self.folder.path().to_str().unwrap());
            if ours {
                kill(pid, Signal::KILL);
            }
        }
    }
}

pub fn pid(entry: &Value) -> u32 {
    u32::try_from(entry["pid"].as_u64().unwrap()).unwrap()
}

#[track_caller]
pub fn assert_one_error(stderr: &str, wanted: &str) {
    let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error:")).collect();
    assert_eq!(errors.len(), 1, "{stderr}");
    assert!(errors[0].contains(wanted), "{stderr}");
}

/// A running launcher with its bench.
pub struct Running {
    pub bench: Bench,
    child: Child,
    status: Option<ExitStatus>,
}

impl Running {
    pub fn new(bench: Bench, mut command: Command) -> Self {
        let child = command.spawn().unwrap();
        Self { bench, child, status: None }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the two lines on stdout.
    pub fn wait_ready(&mut self) -> [String; 2] {
        let mut stdout = BufReader::new(self.child.stdout.as_mut().unwrap());
        let mut lines = [String::new(), String::new()];
        for line in &mut lines {
            stdout.read_line(line).unwrap();
        }
        assert!(!lines[1].is_empty(), "ended before it was ready; stderr: {}", self.bench.stderr());
        lines
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    /// Waits for the end and returns the exit code, or 128 plus the signal.
    pub fn wait(&mut self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        let child = &mut self.child;
        let status = wait_for("the launcher to end", || child.try_wait().unwrap());
        self.status = Some(status);
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
    }

    /// Waits for the end with this exit code, and checks that no process and no folder is left.
    #[track_caller]
    pub fn ends_with(&mut self, code: i32) {
        assert_eq!(self.wait(), code, "{}", self.bench.stderr());
        self.assert_nothing_left();
    }

    /// Stops the server as SIGTERM does, and checks that no process and no folder is left.
    #[track_caller]
    pub fn stop(&mut self) {
        self.signal(Signal::TERM);
        self.ends_with(0);
    }

    /// Waits for the end with this exit code and this error, and checks that nothing is left.
    #[track_caller]
    pub fn fails(&mut self, code: i32, error: &str) {
        self.ends_with(code);
        assert_one_error(&self.bench.stderr(), error);
    }

    pub fn rest_of_stdout(&mut self) -> String {
        let mut rest = String::new();
        self.child.stdout.as_mut().unwrap().read_to_string(&mut rest).unwrap();
        rest
    }

    /// Checks that no process and no folder is left.
    pub fn assert_nothing_left(&self) {
        for entry in self.bench.journal() {
            assert!(!is_alive(pid(&entry)), "left behind: {entry}");
        }
        assert_eq!(self.bench.runtime_folders(), Vec::<PathBuf>::new());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
