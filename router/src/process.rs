//! The router's process: reads the settings, builds and runs the server, and maps errors to exit codes.
//!
//! It is part of the library so that the server's code is generated only once and not for each executable.

use std::io::{self, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use crate::args::{self, Command, Start};
use crate::exit::End;
use crate::server::{Front, ModelParts, Server};
use crate::{launcher, models};
use futures::future::BoxFuture;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::SockRef;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use trunkline_api::app::App;
use trunkline_api::history::History;
use trunkline_base::log;
use trunkline_base::repeats::Repeats;
use trunkline_base::tenants::{Access, AccessError};
use trunkline_base::trace::Exporter;
use trunkline_base::watermark::{self, KeyError};
use trunkline_engine::kv_events::{Endpoint, Publish, PublishedEvents, Topic};
use trunkline_http::browser::BrowserGuard;
use trunkline_http::tls::Tls;
use trunkline_object::{Location, LocationError, Remote};
use trunkline_settings::{EXIT_CUT, KEY_VARIABLE, RouterCache, ServeSettings, WATERMARK_KEY_VARIABLE};

/// Environment variable of the pod's name, which a Kubernetes manifest may set (downward API).
const POD_VARIABLE: &str = "POD_NAME";
/// Connections that wait in the kernel until they are accepted, as many as tokio's own listeners have.
const BACKLOG: i32 = 1024;
/// File with the name of this machine or container.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// Opens an object store with the scheme `s3`, `gs` or `az`.
pub type OpenCloud = fn(&Location) -> Result<Remote, LocationError>;
/// Starts publishing KV events; the error is a line for the user.
pub type StartPublisher = fn(PublishedEvents) -> BoxFuture<'static, Result<Publish, String>>;
/// Starts sending spans; the error is a line for the user.
pub type StartExporter = fn(&str) -> Result<Exporter, String>;
/// Opens the history in a folder, with a limit in bytes for each tenant; the error is a line for the user.
pub type OpenHistory = fn(&Path, u64) -> Result<Arc<dyn History>, String>;

/// Capabilities that an executable may lack, because few users need them and their libraries take long to compile.
#[derive(Clone, Copy, Default)]
pub struct Extensions {
    /// Opens the store of `--kv-object-store` in a cloud.
    pub open_cloud: Option<OpenCloud>,
    /// Publishes on the endpoints of `--kv-events-endpoint` and `--kv-events-replay-endpoint`.
    pub start_publisher: Option<StartPublisher>,
    /// Sends spans to the collector of `--otlp-endpoint`.
    pub start_exporter: Option<StartExporter>,
    /// Opens the history of `--history-path`.
    pub open_history: Option<OpenHistory>,
}

/// Runs the router with the arguments of this process and returns its exit code.
pub fn main(extensions: Extensions) -> ExitCode {
    let command = args::parse(std::env::args_os().skip(1)).map_err(End::User);
    let result = command.and_then(|command| match command {
        Command::Print(text) => {
            // Standard output may be closed, which is no failure of ours.
            let _ = std::io::stdout().write_all(text.as_bytes());
            Ok(0)
        }
        Command::Serve(start) => {
            let settings = args::read_settings(&start.settings).map_err(End::User)?;
            run(settings, &start, extensions)
        }
    });
    match result {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(EXIT_CUT),
        Err(end) => {
            let _ = writeln!(std::io::stderr(), "{}", end.line());
            ExitCode::from(end.code())
        }
    }
}

/// Returns the number of requests that the drain cut.
fn run(settings: ServeSettings, start: &Start, extensions: Extensions) -> Result<usize, End> {
    let (format, repeats) = (settings.logging.format(), Repeats::default());
    log::init(settings.logging.log_level, format, repeats.clone()).map_err(End::Bug)?;
    // Each connection is an open file. Without permission there is room for as many as before.
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).ok();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(num_http_threads())
        .enable_all()
        .build()
        .map_err(|error| End::Bug(error.into()))?;
    runtime.spawn(log::report_left_out(repeats.clone(), format));
    let result = runtime.block_on(serve(settings, start, extensions));
    log::write_left_out(&repeats, format, std::io::stderr());
    // Blocking work, such as reading the lifeline or a long tokenization, must not delay the exit.
    runtime.shutdown_background();
    result
}

/// Returns the number of HTTP threads: one per core, except for the core of the step loop's own thread.
fn num_http_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).saturating_sub(1).max(1)
}

async fn serve(settings: ServeSettings, start: &Start, extensions: Extensions) -> Result<usize, End> {
    // Install the handlers first, so that a signal during the start does not kill the process.
    let terminate = termination(start.lifeline).map_err(|error| End::Bug(error.into()))?;
    let mut replaced = signal(SignalKind::user_defined2()).map_err(|error| End::Bug(error.into()))?;
    let orders = start.lifeline.then(launcher::read_orders);
    let variable = key_variable().map_err(|error| End::User(error.into()))?;
    let (server, replies) = (&settings.server, &settings.replies);
    let mut access =
        Access::new(server.api_keys.clone(), variable.as_deref()).map_err(|error| End::User(error.into()))?;
    let key =
        watermark_key(replies.watermark_key_file.as_deref()).map_err(|error| End::User(error.into()))?;
    // Bind the port before reading the model, so that a busy port is reported at once.
    let listener = listen(start.listener, "--", &server.hostname, server.port).await.map_err(End::User)?;
    let metrics_listener = match server.metrics_port {
        0 => None,
        port => Some(
            listen(start.metrics_listener, "--metrics-", &server.metrics_hostname, port)
                .await
                .map_err(End::User)?,
        ),
    };
    let publisher =
        publisher(&settings.cache, &settings.served_model_name, extensions).await.map_err(End::User)?;
    let url = settings.cache.kv_object_store.as_deref();
    let remote = url.map(|url| object_store(url, extensions)).transpose()?;
    let history =
        server.history_path.as_deref().map(|folder| history(folder, &settings, extensions)).transpose()?;
    let own = settings.clone();
    let parts = tokio::task::spawn_blocking(move || models::load(&own, key))
        .await
        .map_err(|error| End::Bug(error.into()))?
        .map_err(End::User)?;
    let others = start.on_demand.then(|| models::others(&settings, &start.others, key)).transpose();
    let others = others.map_err(End::User)?;
    let local = listener.local_addr().map_err(|error| End::Bug(error.into()))?;
    tracing::info!(
        address = %format!("{}://{local}", if server.tls_cert.is_some() { "https" } else { "http" }),
        model = settings.served_model_name,
        max_open_requests = parts.limits.max_open,
        "router is listening"
    );
    if let Some(listener) = &metrics_listener {
        announce_metrics(listener).map_err(|error| End::Bug(error.into()))?;
    }
    let mut front = front(server).map_err(End::User)?;
    if local.ip().is_loopback() && access.ring().is_none() {
        front.guard = Some(BrowserGuard::new(front.origins.clone()));
    } else if access.ring().is_none() {
        tracing::warn!(
            address = %local,
            "anyone who reaches this address can use the server; hint: set `--api-keys` or `TRUNKLINE_API_KEY`"
        );
        access.set_exposed();
    }
    let (others, asked) = others.unzip();
    let parts = ModelParts { remote, ..parts };
    let mut server = Server::start_all(parts, access, others)
        .map_err(|error| End::Bug(anyhow::anyhow!("cannot start the thread of the step loop: {error}")))?;
    if let Some(history) = history {
        // Nothing has set it before.
        let _ = server.app.history.set(history);
    }
    server.front = front;
    server.metrics_listener = metrics_listener;
    server.accepts_when_ready = start.accepts_when_ready;
    let (tell, told) = oneshot::channel();
    server.replaced = Some(told);
    tokio::spawn(async move {
        replaced.recv().await;
        // This fails if the server has ended.
        let _ = tell.send(());
    });
    let (left, has_left) = oneshot::channel();
    server.left = Some(left);
    let app = server.app.clone();
    tokio::spawn(async move {
        app.served.wait_ready().await;
        if let Ok(shard) = app.served.shard_info() {
            let useless = app.served.validator(&shard).useless_limits();
            useless.iter().for_each(|line| tracing::warn!("{line}"));
        }
    });
    if let Some(orders) = orders {
        let (_, opened) = mpsc::unbounded_channel();
        let opened = std::mem::replace(&mut server.opened, opened);
        let runner = server.runner.clone();
        let read_added: launcher::ReadAdded = Box::new(move |path| {
            let settings = args::read_settings(path)?;
            let residency = models::of_model(&settings);
            Ok((runner.later(models::later(settings, key)), residency))
        });
        launcher::attend(&server.app, orders, read_added, opened, has_left);
    }
    if let Some(asked) = asked {
        tokio::spawn(launcher::carry_out(server.app.clone(), start.loads.clone(), asked));
    }
    if let Some(publisher) = publisher {
        server.app.served.kv_events.publish_to(publisher);
    }
    let stop_exporter = match &settings.server.otlp_endpoint {
        Some(endpoint) => {
            let start =
                extensions.start_exporter.ok_or_else(|| End::User(not_in_this_build("`--otlp-endpoint`")))?;
            let exporter = start(endpoint).map_err(|error| End::User(anyhow::Error::msg(error)))?;
            // Nothing has set it before.
            let _ = server.app.telemetry.set(exporter.telemetry);
            Some(exporter.stop)
        }
        None => None,
    };
    let reread = reread_keys(server.app.clone()).map_err(|error| End::Bug(error.into()))?;
    let reread = tokio::spawn(reread);
    let done = server.run(listener, terminate).await;
    reread.abort();
    if let Some(stop) = stop_exporter {
        stop.await;
    }
    let num_cut = done?;
    tracing::debug!("router stopped");
    Ok(num_cut)
}

/// Returns the inherited socket, or binds an address. Flags that `flag_prefix` begins name the address.
async fn listen(
    inherited: Option<RawFd>,
    flag_prefix: &str,
    hostname: &str,
    port: u16,
) -> anyhow::Result<TcpListener> {
    let listener = match inherited {
        Some(inherited) => adopt(inherited),
        None => TcpListener::bind((hostname, port)).await,
    };
    listener.map_err(|error| {
        anyhow::anyhow!(
            "cannot listen on {hostname}:{port}: {error}; hint: choose another `{flag_prefix}port` or \
             `{flag_prefix}hostname`"
        )
    })
}

/// Logs the address of the metrics, and a warning if other machines reach it.
fn announce_metrics(listener: &TcpListener) -> io::Result<()> {
    let local = listener.local_addr()?;
    tracing::info!(metrics_address = %format!("http://{local}"), "metrics need no key there");
    if !local.ip().is_loopback() {
        tracing::warn!(
            metrics_address = %local,
            "anyone who reaches this address can read the metrics of all tenants together; hint: let only the scrapers \
             reach it, by a network policy or a firewall"
        );
    }
    Ok(())
}

/// Returns the socket that this process inherited as descriptor `inherited`.
fn adopt(inherited: RawFd) -> io::Result<TcpListener> {
    // SAFETY: the launcher opened this descriptor for this process and names it once on the command line. Nothing else
    // here uses it, since there is one call for each socket.
    let listener = unsafe { std::net::TcpListener::from_raw_fd(inherited) };
    listener.set_nonblocking(true)?;
    // The launcher's queue of connections is short, because the standard library offers no choice.
    SockRef::from(&listener).listen(BACKLOG)?;
    TcpListener::from_std(listener)
}

/// Loads the certificate and parses the origins.
fn front(settings: &trunkline_settings::Server) -> anyhow::Result<Front> {
    let tls = match (settings.tls_cert.clone(), settings.tls_key.clone()) {
        (Some(cert), Some(key)) => Some(Arc::new(Tls::load(cert, key)?)),
        (None, None) => None,
        (Some(_), None) => anyhow::bail!("`--tls-cert` needs `--tls-key`"),
        (None, Some(_)) => anyhow::bail!("`--tls-key` needs `--tls-cert`"),
    };
    let origin = |text: &String| {
        text.parse().map_err(|error| anyhow::anyhow!("`--cors-allow-origin` `{text}` {error}"))
    };
    let origins = settings.cors_allow_origin.iter().map(origin).collect::<Result<_, _>>()?;
    Ok(Front { tls, origins, guard: None, no_web: settings.no_web })
}

fn object_store(url: &str, extensions: Extensions) -> Result<Remote, End> {
    // The error does not repeat the URL, which may contain credentials.
    let fail = |error: LocationError| End::User(anyhow::anyhow!("`--kv-object-store` {error}"));
    let location = Location::parse(url).map_err(fail)?;
    let remote = match (location.open_folder(), extensions.open_cloud) {
        (Some(folder), _) => folder,
        (None, Some(open_cloud)) => open_cloud(&location).map_err(fail)?,
        (None, None) => {
            return Err(End::User(not_in_this_build("`--kv-object-store` with a store in a cloud")));
        }
    };
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if let Some(variables) = location.missing_credentials(is_set) {
        tracing::warn!(
            "no variable has credentials for `--kv-object-store`, so a role of this machine must give access; hint: set \
             {variables}"
        );
    }
    tracing::info!(%location, "replicas share KV blocks through an object store");
    Ok(remote)
}

fn history(folder: &Path, settings: &ServeSettings, extensions: Extensions) -> Result<Arc<dyn History>, End> {
    let open = extensions.open_history.ok_or_else(|| End::User(not_in_this_build("`--history-path`")))?;
    let history = open(folder, settings.limits.max_history_bytes);
    history.map_err(|error| End::User(anyhow::anyhow!("`--history-path` {error}")))
}

fn not_in_this_build(what: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "{what} is not part of this build; hint: install the wheels, or build with `make build FULL=1`"
    )
}

/// Publishes the events of the KV cache under the pod's name (`POD_NAME`), or else the machine's.
async fn publisher(
    cache: &RouterCache,
    model: &str,
    extensions: Extensions,
) -> anyhow::Result<Option<Publish>> {
    let (flag, replay_flag) = ("`--kv-events-endpoint`", "`--kv-events-replay-endpoint`");
    let parse = |flag: &str, text: &str| -> anyhow::Result<Endpoint> {
        text.parse().map_err(|error| anyhow::anyhow!("{flag} {error}"))
    };
    let Some(endpoint) = &cache.kv_events_endpoint else {
        anyhow::ensure!(
            cache.kv_events_replay_endpoint.is_none(),
            "{replay_flag} sends again what {flag} publishes; hint: set both"
        );
        return Ok(None);
    };
    let endpoint = parse(flag, endpoint)?;
    let replay = match &cache.kv_events_replay_endpoint {
        None => None,
        Some(text) => match parse(replay_flag, text)? {
            Endpoint::Bind(address) => Some(address),
            Endpoint::Connect(_) => anyhow::bail!(
                "{replay_flag} is `{text}`, but readers connect to it; hint: `tcp://*:5558` listens on port 5558"
            ),
        },
    };
    let start = extensions.start_publisher.ok_or_else(|| not_in_this_build("`--kv-events-endpoint`"))?;
    let pod = match std::env::var(POD_VARIABLE) {
        Ok(name) if !name.is_empty() => name,
        _ => std::fs::read_to_string(HOST_NAME).map_err(|error| {
            anyhow::anyhow!("cannot read `{HOST_NAME}`: {error}; hint: set `{POD_VARIABLE}`")
        })?,
    };
    let topic = Topic::new(pod.trim(), model)?;
    tracing::info!(topic = topic.as_str(), "KV events are published");
    start(PublishedEvents { endpoint, replay, topic }).await.map(Some).map_err(anyhow::Error::msg)
}

/// Returns the API key in the environment; an empty variable counts as unset.
fn key_variable() -> Result<Option<String>, AccessError> {
    let Some(value) = std::env::var_os(KEY_VARIABLE).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let key = value.into_string();
    key.map(Some).map_err(|_| AccessError::Variable { problem: "is not text".to_owned() })
}

/// Returns the key of the watermark; an empty variable counts as unset.
fn watermark_key(file: Option<&Path>) -> Result<u64, KeyError> {
    let variable = std::env::var_os(WATERMARK_KEY_VARIABLE).filter(|value| !value.is_empty());
    let variable =
        variable.map(|value| value.into_string().map_err(|_| KeyError::NoKeyInVariable)).transpose()?;
    watermark::read_key(file, variable.as_deref())
}

/// Reads the file of the API keys again at each SIGHUP. Without a file, SIGHUP ends the process as usual.
fn reread_keys(app: Arc<App>) -> std::io::Result<impl Future<Output = ()>> {
    let mut hangups = app.admission.access.has_file().then(|| signal(SignalKind::hangup())).transpose()?;
    Ok(async move {
        while let Some(hangups) = &mut hangups
            && hangups.recv().await.is_some()
        {
            let access = &app.admission.access;
            match access.reload() {
                Ok(()) => {
                    for model in app.models.all() {
                        if let Some(served) = model.opened() {
                            served.driver.set_weights(access.shares(), access.weights()).await;
                        }
                    }
                }
                Err(error) => tracing::error!(%error, "cannot reload the API keys; the old ones stay in use"),
            }
        }
    })
}

/// Resolves at SIGTERM, and at SIGINT unless a launcher forwards signals: a terminal sends SIGINT to the whole group.
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
