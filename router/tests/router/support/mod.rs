//! A router on a free port with a mock shard, and a small HTTP client.

mod client;
pub mod process;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use trunkline_object::Remote;
use trunkline_router::api::app::App;
use trunkline_router::limits::ServerLimits;
use trunkline_router::model::Model;
use trunkline_router::model::ReplyStyle;
use trunkline_router::server::Front;
use trunkline_router::server::{DriverEnded, Server};
use trunkline_router::shutdown::Phase;
use trunkline_router::tenants::Access;

pub use crate::mock::{END, MockShard, ShardPlan, bytes, prompt_of, write_model};
pub use client::{Answer, Connection, sse_data};

/// The longest wait of a test, reached only if the test fails.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// A running router with its mock shard.
pub struct Router {
    pub shard: Option<MockShard>,
    pub app: Arc<App>,
    pub address: std::net::SocketAddr,
    pub socket: PathBuf,
    terminate: Option<oneshot::Sender<()>>,
    pub running: JoinHandle<Result<(), DriverEnded>>,
    _folder: tempfile::TempDir,
}

impl Router {
    /// Starts a router with this shard and these limits, and waits until it is ready.
    pub async fn start(plan: ShardPlan, limits: impl Into<ServerLimits>) -> Self {
        let mut router = Self::start_without_shard(limits).await;
        router.start_shard(plan).await;
        router
    }

    /// Starts a router with the default shard and limits.
    pub async fn default() -> Self {
        Self::start(ShardPlan::default(), ServerLimits::default()).await
    }

    pub async fn start_without_shard(limits: impl Into<ServerLimits>) -> Self {
        Self::start_with(limits.into(), Access::open(), None, Front::default(), None)
    }

    /// Starts a router with an object tier and without a shard.
    pub async fn start_with_objects(limits: impl Into<ServerLimits>, remote: Option<Remote>) -> Self {
        Self::start_with(limits.into(), Access::open(), remote, Front::default(), None)
    }

    /// Starts a router with API keys and without a shard.
    pub fn start_with_access(limits: impl Into<ServerLimits>, access: Access) -> Self {
        Self::start_with(limits.into(), access, None, Front::default(), None)
    }

    /// Starts a router behind this front, with the default shard.
    pub async fn start_behind(front: Front, limits: impl Into<ServerLimits>, access: Access) -> Self {
        let mut router = Self::start_with(limits.into(), access, None, front, None);
        router.start_shard(ShardPlan::default()).await;
        router
    }

    /// Starts a router with a model whose replies are parsed in this style.
    pub async fn start_with_replies(plan: ShardPlan, replies: ReplyStyle) -> Self {
        let mut router =
            Self::start_with(ServerLimits::default(), Access::open(), None, Front::default(), Some(replies));
        router.start_shard(plan).await;
        router
    }

    fn start_with(
        limits: ServerLimits,
        access: Access,
        remote: Option<Remote>,
        front: Front,
        replies: Option<ReplyStyle>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path());
        let socket = folder.path().join("shard.sock");
        let mut model = Model::load(folder.path(), "test/model".into()).unwrap();
        model.reply = replies.unwrap_or(model.reply);
        let mut server = Server::start_with_objects(model, limits, access, socket.clone(), remote).unwrap();
        server.front = front;
        let app = server.app.clone();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let address = listener.local_addr().unwrap();
        let (terminate, terminated) = oneshot::channel();
        let running = tokio::spawn(server.run(listener, async {
            // A test that ends drops the sender without sending anything. No drain begins then.
            if terminated.await.is_err() {
                std::future::pending::<()>().await;
            }
        }));
        Self { shard: None, app, address, socket, terminate: Some(terminate), running, _folder: folder }
    }

    /// Starts a shard on the socket and waits until the router is ready.
    pub async fn start_shard(&mut self, plan: ShardPlan) {
        self.shard = Some(MockShard::start(&self.socket, plan));
        self.wait("the router to be ready", |app| app.served.readiness().is_ok()).await;
    }

    pub fn shard(&self) -> &MockShard {
        self.shard.as_ref().unwrap()
    }

    pub fn kill_shard(&mut self) {
        self.shard.take().unwrap().kill();
        std::fs::remove_file(&self.socket).unwrap();
    }

    /// Starts a drain, as SIGTERM does.
    pub fn terminate(&mut self) {
        self.terminate.take().unwrap().send(()).unwrap();
    }

    /// Waits until `condition` holds. It is checked whenever statistics, shard, health or phase change.
    pub async fn wait(&self, what: &str, condition: impl Fn(&App) -> bool) {
        let (mut stats, mut shard) = (self.app.served.stats.clone(), self.app.served.shard.clone());
        let (mut health, mut phase) = (self.app.served.health.clone(), self.app.phase.clone());
        let look = async {
            while !condition(&self.app) {
                tokio::select! {
                    _ = stats.changed() => {}
                    _ = shard.changed() => {}
                    _ = health.changed() => {}
                    _ = phase.changed() => {}
                }
            }
        };
        assert!(tokio::time::timeout(DEADLINE, look).await.is_ok(), "timed out waiting for {what}");
    }

    /// Waits until no sequence runs, waits or holds a block.
    pub async fn wait_idle(&self) {
        self.wait("the scheduler to be empty", |app| {
            let stats = *app.served.stats.borrow();
            stats.num_running == 0 && stats.num_waiting == 0 && stats.blocks_held == 0
        })
        .await;
        assert_eq!(self.app.served.stats.borrow().unexpected_results, 0);
        let phase = *self.app.phase.borrow();
        assert!(phase == Phase::Serving || phase == Phase::Draining);
    }

    /// Waits until no request is open.
    pub async fn wait_places(&self) {
        let all = self.app.admission.open.acquire_many(self.app.limits.max_concurrent_requests as u32);
        drop(tokio::time::timeout(DEADLINE, all).await.expect("all places come back").unwrap());
    }

    pub async fn connect(&self) -> Connection {
        Connection::open(self.address).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.connect().await.request("GET", path, b"").await
    }

    pub async fn post(&self, path: &str, body: &serde_json::Value) -> Answer {
        self.post_bytes(path, body.to_string().as_bytes()).await
    }

    pub async fn post_bytes(&self, path: &str, body: &[u8]) -> Answer {
        self.connect().await.request("POST", path, body).await
    }

    /// Returns the value of a sample.
    pub async fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").await.text();
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        line.unwrap_or_else(|| panic!("no sample {name} in:\n{text}"))
            .split(' ')
            .nth(1)
            .unwrap()
            .parse()
            .unwrap()
    }
}
