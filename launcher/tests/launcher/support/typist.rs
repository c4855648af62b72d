//! A person at a terminal: types, and reads what is shown.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use super::{Bench, wait_for};

/// Runs the rest of its arguments in a new terminal, with 24 rows and 80 columns.
const TERMINAL: &str = "
import fcntl, os, pty, struct, sys, termios
pid, master = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 80, 0, 0))
    os.execv(sys.argv[1], sys.argv[1:])
print(pid, flush=True)
pty._copy(master)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) % 256)
";

pub struct Typist {
    child: Child,
    keys: ChildStdin,
    shown: Arc<Mutex<String>>,
}

impl Typist {
    pub fn new(bench: &Bench, args: &[&str]) -> Self {
        let command = bench.command(args);
        let mut terminal = Command::new("python3");
        terminal.args(["-c", TERMINAL]).arg(command.get_program()).args(command.get_args()).env_clear();
        terminal.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        terminal.env("TERM", "xterm").env("HOME", bench.folder.path());
        let mut child =
            terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let (keys, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let shown = Arc::new(Mutex::new(String::new()));
        let all = Arc::clone(&shown);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                all.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        });
        Self { child, keys, shown }
    }

    /// The process id of the command in the terminal.
    pub fn pid(&self) -> u32 {
        wait_for("the process id", || self.shown().split_once('\n')?.0.trim().parse().ok())
    }

    pub fn shown(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    /// Waits until this text is shown, after everything that an earlier call waited for.
    pub fn sees(&mut self, text: &str) -> &mut Self {
        wait_for(&format!("`{text}` in {:?}", self.shown()), || {
            let mut shown = self.shown.lock().unwrap();
            let place = shown.find(text)?;
            // The line of the process id stays at the beginning.
            let first = shown.find('\n')? + 1;
            shown.drain(first..place + text.len());
            Some(())
        });
        self
    }

    /// Presses keys once the prompt waits for them.
    pub fn types(&mut self, keys: &str) -> &mut Self {
        self.sees("> ").presses(keys)
    }

    pub fn presses(&mut self, keys: &str) -> &mut Self {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
        self
    }

    /// Waits for the end and returns the exit code.
    pub fn ends(&mut self) -> i32 {
        let status =
            wait_for(&format!("the end after {:?}", self.shown()), || self.child.try_wait().unwrap());
        assert_eq!(status.signal(), None);
        status.code().unwrap()
    }
}

impl Drop for Typist {
    fn drop(&mut self) {
        // The terminal ends with it, and what runs in it gets SIGHUP.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
