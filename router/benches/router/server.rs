//! Starts the measured process, waits until it is ready, reads its CPU time and memory, and ends it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use trunkline_settings::ServeSettings;

/// The longest wait until a server is ready.
const START_LIMIT: Duration = Duration::from_secs(20);
/// The pause between two readiness checks.
const START_PAUSE: Duration = Duration::from_millis(10);
/// The ticks per second of CPU times in `/proc/<pid>/stat`: `USER_HZ`, which is 100 on every Linux.
const TICKS_PER_S: f64 = 100.0;

/// A server in its own process, which is killed when this is dropped.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
}

impl Server {
    /// Starts the router with a model and a shard's socket.
    pub fn router(program: &Path, model: &Path, socket: &Path) -> anyhow::Result<Self> {
        let name = "HuggingFaceTB/SmolLM2-135M-Instruct".to_owned();
        let mut settings = ServeSettings::new(socket.into(), model.into(), name);
        settings.server.port = 0;
        settings.limits.max_concurrent_requests = Some(1100);
        let path = socket.with_file_name("router.json");
        std::fs::write(&path, serde_json::to_vec(&settings)?)?;
        let mut command = Command::new(program);
        command.arg("--settings").arg(path);
        let server = Self::start(command)?;
        let begin = Instant::now();
        while !server.is_ready()? {
            if begin.elapsed() > START_LIMIT {
                bail!("the router was not ready after {} s", START_LIMIT.as_secs());
            }
            std::thread::sleep(START_PAUSE);
        }
        Ok(server)
    }

    /// Starts this program as the bare loop.
    pub fn bare() -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--yardstick");
        Self::start(command)
    }

    /// Starts a server and reads its address. Both servers print `address=http://...` to standard error when they
    /// listen.
    fn start(mut command: Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let stderr = child.stderr.take().context("stderr is piped")?;
        let mut lines = BufReader::new(stderr).lines();
        let mut address = None;
        for line in lines.by_ref() {
            let line = line?;
            if let Some((_, rest)) = line.split_once("address=http://") {
                address = rest.split(' ').next().map(str::parse).transpose()?;
                break;
            }
            eprintln!("{line}");
        }
        // Later lines are printed, so that the pipe never fills.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("  {line}")));
        let address = address.context("the server ended before it listened")?;
        Ok(Self { child, address })
    }

    fn is_ready(&self) -> anyhow::Result<bool> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.starts_with("HTTP/1.1 200"))
    }

    /// Returns the user and system time of all threads so far, in steps of 10 ms.
    pub fn cpu_time(&self) -> anyhow::Result<Duration> {
        cpu_time(&self.child.id().to_string())
    }

    /// Returns the resident memory.
    pub fn memory_bytes(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
        let kib: u64 = line.split_whitespace().nth(1).context("VmRSS has no value")?.parse()?;
        Ok(kib * 1024)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Killing fails if the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the CPU time of this process, which runs the mock shard and the client.
pub fn own_cpu_time() -> anyhow::Result<Duration> {
    cpu_time("self")
}

/// Returns the CPU time of all processes, from the first line of `/proc/stat` (proc(5)).
pub fn all_cpu_time() -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().context("nothing in /proc/stat")?;
    let ticks = line.split_whitespace().skip(1).map(str::parse::<u64>).collect::<Result<Vec<_>, _>>()?;
    // user, nice, system; then idle and iowait; then irq, softirq.
    let busy = [0, 1, 2, 5, 6].iter().filter_map(|&at| ticks.get(at)).sum::<u64>();
    Ok(Duration::from_secs_f64(busy as f64 / TICKS_PER_S))
}

/// Returns the sum of fields 14 and 15 of `/proc/<pid>/stat` (proc(5)). The process's name precedes them; it may
/// contain any character and ends with `)`.
fn cpu_time(pid: &str) -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("no name in stat")?;
    let mut times = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    let user = times.next().context("no user time")??;
    let system = times.next().context("no system time")??;
    Ok(Duration::from_secs_f64((user + system) as f64 / TICKS_PER_S))
}
