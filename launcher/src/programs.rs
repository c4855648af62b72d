//! Where the other programs are, and the command lines that start them (docs/architecture.md).

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::args;
use crate::args::choice::AsFlag;
use crate::args::high::{ModelRef, ServeConfig};
use crate::error::LauncherError;
use crate::listen::Address;

const SERVER_MODULE: &str = "trunkline_server";
/// Keeps `python -m` from importing out of the folder in which the user happens to stand.
const SAFE_PATH: (&str, &str) = ("PYTHONSAFEPATH", "1");

/// Hold keys, which are the router's business alone.
const KEYS: [&str; 2] = ["TRUNKLINE_API_KEY", "TRUNKLINE_WATERMARK_KEY"];

/// One program that stands beside the launcher.
struct Program {
    names: &'static [&'static str],
    variable: &'static str,
}

const ROUTER: Program = Program { names: &["trunkline-router"], variable: "TRUNKLINE_ROUTER" };
const PYTHON: Program = Program { names: &["python", "python3"], variable: "TRUNKLINE_PYTHON" };

/// The interpreter that has the server package: `TRUNKLINE_PYTHON`, or `python` beside the launcher.
pub fn python() -> Result<PathBuf, LauncherError> {
    PYTHON.find()
}

/// The router binary: `TRUNKLINE_ROUTER`, or `trunkline-router` beside the launcher.
pub fn router() -> Result<PathBuf, LauncherError> {
    ROUTER.find()
}

impl Program {
    fn find(&self) -> Result<PathBuf, LauncherError> {
        if let Some(path) = env::var_os(self.variable).filter(|path| !path.is_empty()) {
            return Ok(path.into());
        }
        let own = env::current_exe()
            .map_err(|source| LauncherError::System { what: "find its own executable", source })?;
        let folder = own.parent().unwrap_or(Path::new("/"));
        self.names
            .iter()
            .map(|name| folder.join(name))
            .find(|path| fs::metadata(path).is_ok_and(|metadata| metadata.is_file()))
            .ok_or(LauncherError::ProgramMissing {
                name: self.names[0],
                beside: own,
                variable: self.variable,
            })
    }
}

/// `python -m trunkline_server resolve [MODEL] [--revision R]`
pub fn resolver_command(python: &Path, model: &ModelRef) -> Command {
    let mut command = server_command(python, "resolve");
    command.args(&model.name);
    push(&mut command, "--revision", model.revision.as_deref());
    command
}

/// `python -m trunkline_server serve --model PATH --socket PATH [...] --lifeline`
pub fn shard_command(python: &Path, config: &ServeConfig, model: &Path, socket: &Path) -> Command {
    let mut command = server_command(python, "serve");
    command.arg("--model").arg(model).arg("--socket").arg(socket);
    push(&mut command, "--backend", Some(config.backend.as_flag()));
    push(&mut command, "--numerics", Some(config.numerics.as_flag()));
    push(&mut command, "--kv-cache-dtype", Some(config.cache.dtype.as_flag()));
    push(&mut command, "--kv-windows", Some(config.cache.windows.as_flag()));
    push(&mut command, "--threads", config.threads);
    push(&mut command, "--pin-threads", Some(config.pin_threads.as_flag()));
    push(&mut command, "--max-batch-total-tokens", config.limits.max_batch_total_tokens);
    push(&mut command, "--max-step-tokens", config.limits.max_step_tokens);
    push(&mut command, "--max-step-sequences", config.limits.max_step_sequences);
    if let Some(weights_cache) = &config.weights_cache {
        command.arg("--weights-cache").arg(weights_cache);
    }
    if let Some(disk) = &config.cache.disk {
        command.arg("--kv-disk-path").arg(&disk.path);
        push(&mut command, "--kv-disk-size", Some(disk.num_bytes));
    }
    push(&mut command, "--kv-host-size", config.cache.host_bytes);
    push_common(&mut command, config);
    command
}

/// `trunkline-router --shard-socket PATH --model-path PATH [...] --lifeline`
pub fn router_command(
    router: &Path,
    config: &ServeConfig,
    address: &Address,
    (model, served_model_name): (&Path, &str),
    socket: &Path,
) -> Command {
    let mut command = Command::new(router);
    forget_own_variables(&mut command);
    command.arg("--shard-socket").arg(socket).arg("--model-path").arg(model);
    command.args(["--served-model-name", served_model_name, "--hostname", &address.hostname]);
    push(&mut command, "--port", Some(address.port));
    if let Some(api_keys) = &config.api_keys {
        command.arg("--api-keys").arg(api_keys);
    }
    if let Some((cert, key)) = &config.tls {
        command.arg("--tls-cert").arg(cert).arg("--tls-key").arg(key);
    }
    if !config.cors_allow_origin.is_empty() {
        command.arg("--cors-allow-origin").arg(config.cors_allow_origin.join(","));
    }
    push(&mut command, "--tool-call-parser", Some(config.replies.tool_call_parser.as_flag()));
    push(&mut command, "--reasoning-parser", Some(config.replies.reasoning_parser.as_flag()));
    push(&mut command, "--watermark-gamma", Some(config.watermark.gamma));
    push(&mut command, "--watermark-delta", Some(config.watermark.delta));
    if let Some(key) = &config.watermark.key_file {
        command.arg("--watermark-key-file").arg(key);
    }
    let limits = &config.limits;
    push(&mut command, "--max-concurrent-requests", Some(limits.max_concurrent_requests));
    push(&mut command, "--max-queued-requests", limits.max_queued_requests);
    push(&mut command, "--max-input-tokens", limits.max_input_tokens);
    push(&mut command, "--max-total-tokens", limits.max_total_tokens);
    push(&mut command, "--max-best-of", Some(limits.max_best_of));
    push(&mut command, "--max-messages", Some(limits.max_messages));
    push(&mut command, "--max-message-parts", Some(limits.max_message_parts));
    push(&mut command, "--max-tools", Some(limits.max_tools));
    push(&mut command, "--max-response-store-bytes", Some(limits.max_response_store_bytes));
    push(&mut command, "--max-stop-sequences", Some(limits.max_stop_sequences));
    push(&mut command, "--max-schema-bytes", Some(limits.max_schema_bytes));
    push(&mut command, "--max-schema-depth", Some(limits.max_schema_depth));
    push(&mut command, "--max-schema-properties", Some(limits.max_schema_properties));
    push(&mut command, "--max-body-bytes", Some(limits.max_body_bytes));
    push(&mut command, "--max-header-bytes", Some(limits.max_header_bytes));
    push(&mut command, "--client-stall-timeout", Some(limits.client_stall_timeout_s));
    push(&mut command, "--max-pinned-share", Some(config.cache.max_pinned_percent));
    push(&mut command, "--eviction-policy", Some(config.cache.eviction.as_flag()));
    if let Some(url) = config.cache.disk.as_ref().and_then(|disk| disk.object_store.as_ref()) {
        command.arg("--kv-object-store").arg(url);
    }
    push(&mut command, "--kv-events-endpoint", config.cache.events_endpoint.as_ref());
    push(&mut command, "--request-timeout", Some(limits.request_timeout_s));
    push(&mut command, "--stuck-step-timeout", Some(limits.stuck_step_timeout_s));
    push(&mut command, "--graceful-termination-timeout", Some(config.graceful_termination_timeout.as_secs()));
    push_common(&mut command, config);
    command
}

fn server_command(python: &Path, subcommand: &str) -> Command {
    let mut command = Command::new(python);
    forget_own_variables(&mut command);
    for key in KEYS {
        command.env_remove(key);
    }
    command.env(SAFE_PATH.0, SAFE_PATH.1).args(["-m", SERVER_MODULE, subcommand]);
    command
}

/// What the launcher's variables say reaches a child as flags, checked; the variables themselves could only contradict.
fn forget_own_variables(command: &mut Command) {
    for name in args::serve_variables() {
        command.env_remove(name);
    }
}

fn push_common(command: &mut Command, config: &ServeConfig) {
    if config.log_format == crate::log::Format::Json {
        command.arg("--json-output");
    }
    push(command, "--log-level", Some(config.log_level.as_flag()));
    command.arg("--lifeline");
}

fn push(command: &mut Command, flag: &str, value: Option<impl ToString>) {
    if let Some(value) = value {
        command.arg(flag).arg(OsString::from(value.to_string()));
    }
}
