//! Starts the driver, the links, the health polls and the listener, and stops them in order.

mod kept;
mod model;
pub mod observe;
pub mod routes;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, oneshot};

use trunkline_api::app::App;
use trunkline_api::history::HistorySlot;
use trunkline_api::kept_streams::KeptStreams;
use trunkline_api::response_store::ResponseStore;
use trunkline_base::limits::{MAX_LOOKS, MAX_LOOKS_OF_TENANT, MAX_METRICS_CONNECTIONS, ServerLimits};
use trunkline_base::metrics::Metrics;
use trunkline_base::shutdown::{Phase, Shutdown};
use trunkline_base::tenants::permits::TenantPermits;
use trunkline_base::tenants::{Access, MemoryBudget};
use trunkline_base::trace::TelemetrySlot;
use trunkline_generation::admission::Admission;
use trunkline_generation::model::Model;
use trunkline_generation::models::{Entry, Finder, Gate, ModelId, Models};
use trunkline_http::browser::BrowserGuard;
use trunkline_http::cors::Origin;
use trunkline_http::serve::{self, AbortOnDrop, Host};
use trunkline_http::tls::Tls;

pub use model::{LaterModel, ModelParts, Opened, Runner};

/// The time in which clients must read the errors that end their streams.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// The time between two looks at the number of open requests.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// The checks without an open request, for 2 s, after which a replaced router closes the connections that clients keep
/// alive. A client that sends one request after another has received an answer with `connection: close` by then.
const QUIET_CHECKS: u32 = 200;

#[derive(Debug, Clone, Default)]
pub struct Front {
    /// The certificate and its key; without them connections are not encrypted.
    pub tls: Option<Arc<Tls>>,
    /// Web origins whose scripts may send requests.
    pub origins: Vec<Origin>,
    /// Refuses foreign web pages; set where no key is needed because only this machine reaches the server.
    pub guard: Option<BrowserGuard>,
    /// True if the server has no web page (`--no-web`).
    pub no_web: bool,
}

/// The models beside the first one, which are opened when they are first asked for, and what decides which of all are
/// in memory.
pub struct Others {
    pub later: Vec<LaterModel>,
    pub gate: Arc<Gate>,
    pub finder: Finder,
}

/// A server whose tasks run, without a listener yet.
pub struct Server {
    pub app: Arc<App>,
    /// The settings of the listener, which may be set before [`Self::run`].
    pub front: Front,
    /// The listener of `--metrics-port`, which may be set before [`Self::run`].
    pub metrics_listener: Option<TcpListener>,
    /// True if another router accepts connections until this one's shard is ready.
    pub accepts_when_ready: bool,
    /// Receives a message when another router has taken over the listening socket.
    pub replaced: Option<oneshot::Receiver<()>>,
    /// Gets a message once this router has closed the listening socket for another one.
    pub left: Option<oneshot::Sender<()>>,
    /// Receives each model that is opened, the first one included.
    pub opened: mpsc::UnboundedReceiver<Opened>,
    pub runner: Arc<Runner>,
    shutdown: Shutdown,
    /// Receives a message when the step loop of a model has ended.
    ended: mpsc::Receiver<()>,
}

/// The error when the driving task has ended, which is a defect. The process must then end, too.
#[derive(Debug, thiserror::Error)]
#[error("the driving task ended")]
pub struct DriverEnded;

impl Server {
    /// Starts a server of one model. It must be called inside a tokio runtime, and fails if the thread of the step loop
    /// cannot be started.
    pub fn start(
        model: Model,
        limits: ServerLimits,
        access: Access,
        shard_sockets: Vec<PathBuf>,
    ) -> io::Result<Self> {
        Self::start_all(ModelParts { model, limits, shard_sockets, remote: None }, access, None)
    }

    /// Starts a server of this model and of others.
    pub fn start_all(first: ModelParts, access: Access, others: Option<Others>) -> io::Result<Self> {
        let metrics = Arc::new(Metrics::default());
        let limits = Arc::new(first.limits.clone());
        let shutdown = Shutdown::default();
        let telemetry = TelemetrySlot::default();
        let parallel = std::thread::available_parallelism().map_or(1, usize::from);
        // One core stays free for everything else.
        let num_working = parallel.saturating_sub(1).max(1);
        let admission = Arc::new(Admission {
            access,
            open: Arc::new(Semaphore::new(limits.max_open)),
            places: Arc::default(),
            models: Arc::default(),
            requests: Arc::new(MemoryBudget::new(limits.max_requests_bytes())),
            answers: Arc::new(MemoryBudget::new(limits.max_answers_bytes)),
            listeners: Arc::default(),
            looks: TenantPermits::new(MAX_LOOKS, MAX_LOOKS_OF_TENANT),
            limits: limits.clone(),
            metrics: metrics.clone(),
            phase: shutdown.subscribe(),
        });
        let (opened_in, opened) = mpsc::unbounded_channel();
        let (ended_in, ended) = mpsc::channel(1);
        let runner = Arc::new(Runner {
            admission: admission.clone(),
            phase: shutdown.subscribe(),
            telemetry: telemetry.clone(),
            working: Arc::new(TenantPermits::new(num_working, num_working)),
            gate: others.as_ref().map(|others| others.gate.clone()),
            opened: opened_in,
            ended: ended_in,
            tasks: Mutex::default(),
        });
        let served = runner.start(ModelId(0), first)?;
        let models = match others {
            None => Models::one(served.clone()),
            Some(Others { gate, finder, later }) => {
                let first = Entry::opened_as(ModelId(0), served.clone());
                Models::several(first, later.into_iter().map(|later| runner.later(later)), gate, finder)
            }
        };
        let app = Arc::new(App {
            served,
            models: Arc::new(models),
            admission,
            registry: Arc::new(metrics.registry()),
            responses: Arc::new(ResponseStore::new(limits.max_response_store_bytes)),
            kept_streams: Arc::new(KeptStreams::new(limits.max_response_store_bytes)),
            history: HistorySlot::default(),
            limits,
            metrics,
            telemetry,
            phase: shutdown.subscribe(),
        });
        Ok(Self {
            app,
            front: Front::default(),
            metrics_listener: None,
            accepts_when_ready: false,
            replaced: None,
            left: None,
            opened,
            shutdown,
            runner,
            ended,
        })
    }

    /// Serves until `terminate` resolves and the drain after it is complete. Returns the number of requests that were
    /// not finished in time and were cut.
    ///
    /// During the drain `/readyz` and new requests answer 503 while open requests finish. Requests that are still open
    /// after `--graceful-termination-timeout` end with an error. Then the listener closes.
    ///
    /// A replaced server accepts no more connections, but serves those that are open as before, and returns when they
    /// are closed. A drain follows if that takes longer than `--graceful-termination-timeout`.
    pub async fn run(
        mut self,
        listener: TcpListener,
        terminate: impl Future<Output = ()>,
    ) -> Result<usize, DriverEnded> {
        let front = std::mem::take(&mut self.front);
        let host = Host {
            routes: routes::routes_of(self.app.clone(), &front),
            tls: front.tls,
            max_connections: self.app.limits.max_open + self.app.limits.spare_connections,
            limits: self.app.limits.clone(),
            metrics: self.app.metrics.clone(),
        };
        let (leave_metrics, metrics_left) = oneshot::channel::<()>();
        let metrics = self.metrics_listener.take();
        let metrics =
            metrics.map(|listener| serve_metrics(&self.app, listener, &front.origins, metrics_left));
        let (leave, left) = oneshot::channel::<()>();
        let (stop, mut stopped) = oneshot::channel::<()>();
        let app = self.app.clone();
        let waiting = self.accepts_when_ready.then(|| app.clone());
        let closed = self.left.take().unwrap_or_else(|| oneshot::channel().0);
        let mut serving = tokio::spawn(async move {
            if let Some(app) = waiting {
                tokio::select! {
                    () = app.served.wait_ready() => tracing::info!("router is ready and accepts connections"),
                    _ = &mut stopped => return Ok(()),
                }
            }
            // Metrics are served as long as the other routes are, so also during a drain.
            let _metrics = metrics.map(AbortOnDrop::spawn);
            // A dropped sender counts like a message.
            serve::serve(listener, host, left.map(drop), stopped.map(drop), closed).await
        });
        let replaced = async {
            let is_told = match self.replaced {
                Some(replaced) => replaced.await.is_ok(),
                None => false,
            };
            if !is_told {
                std::future::pending::<()>().await;
            }
        };
        let drain = async {
            let mut terminate = std::pin::pin!(terminate);
            let is_replaced = tokio::select! {
                () = &mut terminate => false,
                () = replaced => true,
            };
            app.kept_streams.stop_unread();
            let mut stop = Some(stop);
            if is_replaced {
                tracing::info!(open = num_open(&app), "replaced; open connections are served to their end");
                drop((leave, leave_metrics));
                let limit = app.limits.graceful_termination_timeout;
                let quiet = async {
                    quiet(&app, QUIET_CHECKS).await;
                    stop = None;
                    // A request may have arrived on a connection that is closed only after its answer.
                    tokio::time::sleep(LAST_WORDS).await;
                };
                tokio::select! {
                    () = &mut terminate => {}
                    _ = tokio::time::timeout(limit, quiet) => {}
                }
            }
            self.shutdown.enter(Phase::Draining);
            let limit = app.limits.graceful_termination_timeout;
            tracing::info!(limit_s = limit.as_secs(), open = num_open(&app), "draining");
            let mut num_cut = 0;
            if tokio::time::timeout(limit, quiet(&app, 1)).await.is_err() {
                num_cut = num_open(&app);
                tracing::warn!(
                    cut = num_cut,
                    limit_s = limit.as_secs(),
                    "open requests are cut; hint: raise `--graceful-termination-timeout`"
                );
                self.shutdown.enter(Phase::Terminating);
            }
            drop(stop);
            num_cut
        };
        let (result, has_closed) = tokio::select! {
            num_cut = drain => (Ok(num_cut), false),
            _ = &mut serving => (Ok(0), true),
            _ = self.ended.recv() => (Err(DriverEnded), false),
        };
        if result.is_ok() && !has_closed && tokio::time::timeout(LAST_WORDS, &mut serving).await.is_err() {
            tracing::warn!("some clients did not read their responses in time");
        }
        serving.abort();
        self.runner.tasks().clear();
        result
    }
}

/// Serves the metrics until `leave` resolves and all connections are closed, or until this is dropped.
fn serve_metrics(
    app: &Arc<App>,
    listener: TcpListener,
    origins: &[Origin],
    leave: oneshot::Receiver<()>,
) -> impl Future<Output = ()> + use<> {
    let is_loopback = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let guard = is_loopback.then(|| BrowserGuard::new(origins.to_vec()));
    let host = Host {
        routes: routes::metrics_routes(app.clone(), guard),
        tls: None,
        limits: app.limits.clone(),
        max_connections: MAX_METRICS_CONNECTIONS,
        metrics: app.metrics.clone(),
    };
    async move {
        let left = oneshot::channel().0;
        let stop = std::future::pending();
        if let Err(error) = serve::serve(listener, host, leave.map(drop), stop, left).await {
            tracing::error!(%error, "cannot serve metrics on their own port");
        }
    }
}

fn num_open(app: &App) -> usize {
    app.limits.max_open - app.admission.open.available_permits()
}

/// Resolves when no request has been open for `num_checks` times [`CHECK_INTERVAL`], or is open now if that is 1. It
/// takes no permits, because requests that need no shard are answered meanwhile.
async fn quiet(app: &App, num_checks: u32) {
    let mut ticks = tokio::time::interval(CHECK_INTERVAL);
    let mut num_quiet = 0;
    while num_quiet < num_checks {
        ticks.tick().await;
        num_quiet = if num_open(app) == 0 { num_quiet + 1 } else { 0 };
    }
}
