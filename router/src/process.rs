//! The router's process: parses arguments, builds the server, runs it, and maps the error to an exit code.
//!
//! It is part of the library, so that the code of the server is generated once, here, and not in each executable.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use crate::api::app::App;
use crate::args::Args;
use crate::exit::End;
use crate::http::tls::Tls;
use crate::kv_events::{Endpoint, Publish, Topic};
use crate::log::{self, LogForm};
use crate::model::Model;
use crate::server::{Front, Server};
use crate::tenants::{Access, AccessError};
use crate::watermark::{self, KeyError};
use clap::Parser;
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use trunkline_object::{Location, LocationError, Remote};

/// The launcher is gone.
const EXIT_LIFELINE: i32 = 1;
/// One API key: not a flag, as command lines are no secret.
const KEY_VARIABLE: &str = "TRUNKLINE_API_KEY";
/// What Kubernetes calls this server, where its manifest says so (downward API).
const POD_VARIABLE: &str = "POD_NAME";
/// This machine's name, or the container's.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// Opens a store of one of the schemes `s3`, `gs` and `az`.
pub type OpenCloud = fn(&Location) -> Result<Remote, LocationError>;
/// Starts to publish KV events; the error is a line for the user.
pub type StartPublisher = fn(Endpoint, Topic) -> BoxFuture<'static, Result<Publish, String>>;

/// Capabilities that an executable may lack, because their libraries take long to compile and few users need them.
#[derive(Clone, Copy, Default)]
pub struct Extensions {
    /// For `--kv-object-store`.
    pub open_cloud: Option<OpenCloud>,
    /// For `--kv-events-endpoint`.
    pub start_publisher: Option<StartPublisher>,
}

/// Runs the router with the arguments of this process until it is told to end; returns the process's exit code.
pub fn main(extensions: Extensions) -> ExitCode {
    match run(Args::parse(), extensions) {
        Ok(()) => ExitCode::SUCCESS,
        Err(end) => {
            let _ = writeln!(std::io::stderr(), "{}", end.line());
            ExitCode::from(end.code())
        }
    }
}

fn run(args: Args, extensions: Extensions) -> Result<(), End> {
    let form = if args.json_output { LogForm::Json } else { LogForm::Text };
    log::init(&args.log_level, form).map_err(End::User)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(num_http_threads())
        .enable_all()
        .build()
        .map_err(|error| End::Bug(error.into()))?;
    let result = runtime.block_on(serve(args, extensions));
    // Blocking work (the lifeline's read, a long tokenization) must not hold the exit up.
    runtime.shutdown_background();
    result
}

/// The step loop has a thread of its own (`step_thread`); what is left of the cores is for HTTP.
fn num_http_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).saturating_sub(1).max(1)
}

async fn serve(args: Args, extensions: Extensions) -> Result<(), End> {
    // Handlers first: a signal during the start must not kill us by default.
    let terminate = termination(args.lifeline).map_err(|error| End::Bug(error.into()))?;
    if args.lifeline {
        watch_lifeline();
    }
    let variable = key_variable().map_err(|error| End::User(error.into()))?;
    let access =
        Access::new(args.api_keys.clone(), variable.as_deref()).map_err(|error| End::User(error.into()))?;
    let mut limits = args.limits();
    limits.watermark.key = watermark_key(&args).map_err(|error| End::User(error.into()))?;
    // The port is taken before the model is read: a busy one is known at once, and `/readyz` answers meanwhile as soon
    // as the server runs.
    let address = format!("{}:{}", args.hostname, args.port);
    let listener = TcpListener::bind((args.hostname.as_str(), args.port)).await.map_err(|error| {
        End::User(anyhow::anyhow!(
            "cannot listen on {address}: {error}; hint: choose another `--port` or `--hostname`"
        ))
    })?;
    let publisher = match args.kv_events_endpoint.clone() {
        Some(endpoint) => {
            Some(publisher(endpoint, &args.served_model_name, extensions).await.map_err(End::User)?)
        }
        None => None,
    };
    let path = args.model_path.clone();
    let name = args.served_model_name.clone();
    let (tools, reasoning) = (args.tool_call_parser, args.reasoning_parser);
    let model = tokio::task::spawn_blocking(move || Model::load_with(&path, name, tools, reasoning))
        .await
        .map_err(|error| End::Bug(error.into()))?
        .map_err(|error| End::User(error.into()))?;
    let local = listener.local_addr().map_err(|error| End::Bug(error.into()))?;
    tracing::info!(
        address = %format!("{}://{local}", if args.tls_cert.is_some() { "https" } else { "http" }),
        model = args.served_model_name,
        "router is listening"
    );
    let remote = args.kv_object_store.as_deref().map(|url| object_store(url, extensions)).transpose()?;
    let front = front(&args).map_err(End::User)?;
    let mut server = Server::start_with_objects(model, limits, access, args.shard_socket, remote)
        .map_err(|error| End::Bug(anyhow::anyhow!("cannot start the thread of the step loop: {error}")))?;
    server.front = front;
    if let Some(publisher) = publisher {
        server.app.kv_events.publish_to(publisher);
    }
    let reread = reread_keys(server.app.clone()).map_err(|error| End::Bug(error.into()))?;
    let reread = tokio::spawn(reread);
    let done = server.run(listener, terminate).await;
    reread.abort();
    done?;
    tracing::info!("router is done");
    Ok(())
}

/// Certificate, key and origins; unusable ones are a user's mistake.
fn front(args: &Args) -> anyhow::Result<Front> {
    let tls = match (args.tls_cert.clone(), args.tls_key.clone()) {
        (Some(cert), Some(key)) => Some(Arc::new(Tls::load(cert, key)?)),
        (None, None) => None,
        (Some(_), None) => anyhow::bail!("`--tls-cert` needs `--tls-key`"),
        (None, Some(_)) => anyhow::bail!("`--tls-key` needs `--tls-cert`"),
    };
    Ok(Front { tls, origins: args.cors_allow_origin.clone() })
}

fn object_store(url: &str, extensions: Extensions) -> Result<Remote, End> {
    // The URL itself is not repeated before it is known to hold no credentials.
    let fail = |error: LocationError| End::User(anyhow::anyhow!("`--kv-object-store` {error}"));
    let location = Location::parse(url).map_err(fail)?;
    let remote = match (location.open_folder(), extensions.open_cloud) {
        (Some(folder), _) => folder,
        (None, Some(open_cloud)) => open_cloud(&location).map_err(fail)?,
        (None, None) => {
            return Err(End::User(not_in_this_build("`--kv-object-store` with a store in a cloud")));
        }
    };
    tracing::info!(%location, "KV blocks are shared by an object store");
    Ok(remote)
}

fn not_in_this_build(what: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "{what} is not part of this build; hint: install the wheels, or build with `make build FULL=1`"
    )
}

/// Publishes the events of the KV cache, under the name of this pod: `POD_NAME`, else the machine's.
async fn publisher(endpoint: Endpoint, model: &str, extensions: Extensions) -> anyhow::Result<Publish> {
    let start = extensions.start_publisher.ok_or_else(|| not_in_this_build("`--kv-events-endpoint`"))?;
    let pod = match std::env::var(POD_VARIABLE) {
        Ok(name) if !name.is_empty() => name,
        _ => std::fs::read_to_string(HOST_NAME).map_err(|error| {
            anyhow::anyhow!("cannot read `{HOST_NAME}`: {error}; hint: set `{POD_VARIABLE}`")
        })?,
    };
    let topic = Topic::new(pod.trim(), model)?;
    tracing::info!(topic = topic.as_str(), "KV events are published");
    start(endpoint, topic).await.map_err(anyhow::Error::msg)
}

/// The key from the environment; an empty variable is an unset one.
fn key_variable() -> Result<Option<String>, AccessError> {
    let Some(value) = std::env::var_os(KEY_VARIABLE).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let key = value.into_string();
    key.map(Some).map_err(|_| AccessError::Variable { problem: "is not text".to_owned() })
}

/// The key of the watermark; an empty variable is an unset one.
fn watermark_key(args: &Args) -> Result<u64, KeyError> {
    let variable = std::env::var_os(watermark::KEY_VARIABLE).filter(|value| !value.is_empty());
    let variable =
        variable.map(|value| value.into_string().map_err(|_| KeyError::NoKeyInVariable)).transpose()?;
    watermark::read_key(args.watermark_key_file.as_deref(), variable.as_deref())
}

/// Reads the file of the API keys again at each SIGHUP. Without a file SIGHUP ends the process, as it does by default.
fn reread_keys(app: Arc<App>) -> std::io::Result<impl Future<Output = ()>> {
    let mut hangups = app.admission.access.has_file().then(|| signal(SignalKind::hangup())).transpose()?;
    Ok(async move {
        while let Some(hangups) = &mut hangups
            && hangups.recv().await.is_some()
        {
            let access = &app.admission.access;
            match access.reload() {
                Ok(()) => app.served.driver.set_weights(access.shares(), access.weights()).await,
                Err(error) => tracing::error!(%error, "the API keys stay as they were"),
            }
        }
    })
}

/// Ready at SIGTERM; at SIGINT too, unless a launcher forwards signals (a terminal sends SIGINT to the whole group).
fn termination(lifeline: bool) -> std::io::Result<impl Future<Output = ()>> {
    let mut sigterm = signal(SignalKind::terminate())?;
    let mut sigint = signal(SignalKind::interrupt())?;
    Ok(async move {
        loop {
            tokio::select! {
                _ = sigterm.recv() => return,
                _ = sigint.recv() => if !lifeline { return },
            }
        }
    })
}

/// Ends the process when standard input ends: the launcher is gone, however it went.
fn watch_lifeline() {
    std::thread::spawn(|| {
        let mut discard = std::io::sink();
        // An error on the pipe means the same as its end.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut discard);
        std::process::exit(EXIT_LIFELINE);
    });
}
