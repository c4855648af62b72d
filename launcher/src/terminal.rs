//! `trunkline chat`, `run` and `top`: finds the server that they talk to, or starts one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::json;
use trunkline_bench::client::tls::Trust;
use trunkline_terminal::chat::{self, Options};
use trunkline_terminal::client::Endpoint;
use trunkline_terminal::conversation::Conversation;
use trunkline_terminal::error::Error;
use trunkline_terminal::server::Server as OwnServer;
use trunkline_terminal::{guard, top};

use crate::args::SERVE;
use crate::args::talk::{ChatArgs, Connection, RunArgs, Sampling, TopArgs};
use crate::cache::server::{Server, ServerError};
use crate::cache::trust::{explain, tls_config};
use crate::caller::{Served, Status};
use crate::error::LauncherError;
use crate::{control, runtime_dir};

/// The flag with which `serve` ends when its standard input does.
pub(crate) const LIFELINE: &str = "lifeline";

/// Where replies come from.
struct Place {
    endpoint: Endpoint,
    /// The name of the model that was asked for, if the server has several.
    model: Option<String>,
    /// Ends when it is dropped.
    _own: Option<OwnServer>,
}

pub(crate) fn chat(args: ChatArgs) -> Result<(), LauncherError> {
    if !chat::is_interactive() {
        let never = AtomicBool::new(false);
        let place = place(args.target.as_deref(), &args.connection, &never)?;
        let conversation = conversation(args.sampling, &place);
        return Ok(chat::answer(&place.endpoint, conversation, None)?);
    }
    let stop = guard()?;
    let place = place(args.target.as_deref(), &args.connection, &stop)?;
    let history = if args.no_history { None } else { history() };
    let options = Options { history, stats: args.stats, load: args.load };
    let conversation = conversation(args.sampling, &place);
    Ok(chat::chat(&place.endpoint, conversation, options, stop)?)
}

pub(crate) fn run(args: RunArgs) -> Result<(), LauncherError> {
    let schema = args.json_schema.as_deref().map(read_schema).transpose()?;
    let never = AtomicBool::new(false);
    let place = place(Some(&args.target), &args.connection, &never)?;
    let mut conversation = conversation(args.sampling, &place);
    conversation.response_format = schema;
    Ok(chat::answer(&place.endpoint, conversation, args.prompt.as_deref())?)
}

/// Returns the text of `--once`.
pub(crate) fn top(args: TopArgs) -> Result<Option<String>, LauncherError> {
    let source = match args.target.as_deref() {
        Some(target) if target.parse::<i32>().is_err() => {
            let url = address(target).unwrap_or_else(|| target.to_owned());
            top::Source { server: endpoint(&remote(&url, &args.connection)?)?, metrics: None }
        }
        target => {
            let pid = target.and_then(|pid| pid.parse().ok());
            let status = control::status_for(pid, "show the server", "trunkline top ")?;
            let metrics =
                status.metrics_url.as_deref().map(|url| local(url, &args.connection)).transpose()?;
            top::Source { server: local(&status.url, &args.connection)?, metrics }
        }
    };
    if args.once {
        return Ok(Some(top::once(&source)?));
    }
    guard()?;
    top::live(source)?;
    Ok(None)
}

fn conversation(sampling: Sampling, place: &Place) -> Conversation {
    let mut conversation = Conversation {
        model: sampling.model.or_else(|| place.model.clone()),
        seed: sampling.seed,
        temperature: sampling.temperature,
        max_tokens: sampling.max_tokens,
        ..Conversation::default()
    };
    conversation.set_system(sampling.system.as_deref());
    conversation
}

/// Finds the server at an address, one of this machine that serves the model, or else starts one.
fn place(target: Option<&str>, connection: &Connection, stop: &AtomicBool) -> Result<Place, LauncherError> {
    let place = match target.and_then(address) {
        Some(url) => Place { endpoint: endpoint(&remote(&url, connection)?)?, model: None, _own: None },
        None => match running(target)? {
            Some((status, model)) => Place { endpoint: local(&status.url, connection)?, model, _own: None },
            None => {
                let what = target.map_or("the embedded model", short);
                let (own, url) = OwnServer::start(serve(target)?, what, stop)?;
                Place { endpoint: local(&url, connection)?, model: None, _own: Some(own) }
            }
        },
    };
    place.endpoint.wait_until_ready(stop)?;
    Ok(place)
}

/// Returns the address if `target` is one and no model. `HOST:PORT` is one, too, and an API's base address.
fn address(target: &str) -> Option<String> {
    let is_url = target.starts_with("http://") || target.starts_with("https://");
    let is_place = || {
        let (host, port) = target.rsplit_once(':')?;
        (!host.is_empty() && !host.contains('/')).then_some(())?;
        port.parse::<u16>().ok()
    };
    let url = if is_url { target.to_owned() } else { is_place().map(|_| format!("http://{target}"))? };
    let url = url.trim_end_matches('/');
    Some(url.strip_suffix("/v1").unwrap_or(url).to_owned())
}

fn remote(url: &str, connection: &Connection) -> Result<Server, LauncherError> {
    connect(url, connection, Trust::of(connection.cacert.as_deref(), connection.insecure))
}

/// Returns a server of this user on this machine. Nobody else can answer on a socket that the launcher has bound, so
/// its certificate proves nothing more.
fn local(url: &str, connection: &Connection) -> Result<Endpoint, LauncherError> {
    endpoint(&connect(url, connection, Trust::Anybody)?)
}

fn connect(url: &str, connection: &Connection, trust: Trust) -> Result<Server, LauncherError> {
    Server::new(url, connection.api_key_env.as_deref(), trust).map_err(|error| match error {
        ServerError::Url { url } => LauncherError::usage(format!(
            "the address is `{url}`; expected `http://HOST:PORT` or `https://HOST:PORT`"
        )),
        error => LauncherError::Cache(error.into()),
    })
}

fn endpoint(server: &Server) -> Result<Endpoint, LauncherError> {
    let (trust, url) = (server.trust().clone(), server.url().to_owned());
    let tls = tls_config(&trust).map_err(|error| LauncherError::Cache(ServerError::from(error).into()))?;
    let its_url = url.clone();
    let explain = Arc::new(move |error: &ureq::Error| {
        explain(&trust, &its_url, error).map(|reason| reason.to_string())
    });
    Ok(Endpoint { url, key: server.key().map(str::to_owned), tls, explain })
}

/// Returns the server on this machine that serves the model, or the only one if no model is named, with the name of
/// the model if the server has several.
fn running(target: Option<&str>) -> Result<Option<(Status, Option<String>)>, LauncherError> {
    let bases = runtime_dir::bases();
    let folders = bases.iter().flat_map(|base| runtime_dir::running(base));
    let mut found: Vec<(Status, Option<String>)> = folders
        .filter_map(|(_, folder)| control::status(&folder).ok().flatten())
        .filter_map(|status| match target {
            None => Some((status, None)),
            Some(target) => {
                let name = served(&status, target)?;
                let has_others = status.models.len() > 1;
                Some((status, has_others.then_some(name)))
            }
        })
        .collect();
    found.dedup_by(|(one, _), (other, _)| one.url == other.url);
    match (target, found.len()) {
        (None, 2..) => {
            let urls: Vec<&str> = found.iter().map(|(status, _)| status.url.as_str()).collect();
            Err(LauncherError::usage(format!(
                "several servers run, at {}; hint: name one, as in `trunkline chat {}`",
                urls.join(", "),
                urls[0]
            )))
        }
        _ => Ok(found.into_iter().next()),
    }
}

/// Returns the name under which a server serves the model: the file or folder at this path, or the one of this name or
/// id.
fn served(status: &Status, target: &str) -> Option<String> {
    let path = fs::canonicalize(target).ok();
    let is_it = |served: &&Served| match &path {
        Some(path) => fs::canonicalize(&served.path).is_ok_and(|other| other == *path),
        None => served.name == target || served.model_id == target,
    };
    status.models.iter().find(is_it).map(|served| served.name.clone())
}

/// Returns the name of a file or folder, or a Hub id as it is.
fn short(target: &str) -> &str {
    let name = Path::new(target).file_name().and_then(|name| name.to_str());
    name.filter(|_| Path::new(target).exists()).unwrap_or(target)
}

/// Returns the command of a server that only this machine reaches, and that ends with its standard input.
fn serve(model: Option<&str>) -> Result<Command, LauncherError> {
    let own = std::env::current_exe()
        .map_err(|source| LauncherError::System { what: "find its own executable", source })?;
    let mut command = Command::new(own);
    command.arg(SERVE).args(model).args(["--hostname", "127.0.0.1", "--port", "0", "--metrics-port", "0"]);
    command.arg(format!("--{LIFELINE}"));
    Ok(command)
}

/// Returns the file of what was typed: `trunkline/chat-history` in `XDG_STATE_HOME`.
fn history() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")))?;
    Some(state.join("trunkline/chat-history"))
}

fn read_schema(path: &Path) -> Result<serde_json::Value, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::File {
        what: "read",
        path: path.to_owned(),
        source,
    })?;
    let schema: serde_json::Value = serde_json::from_str(&text).map_err(|error| Error::Content {
        what: "the JSON schema",
        path: path.to_owned(),
        problem: error.to_string(),
    })?;
    Ok(json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": true}}))
}
