//! A router on a free port with a mock shard, and a small HTTP client.

mod client;
pub mod process;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use trunkline_api::app::App;
use trunkline_base::limits::{Limits, ServerLimits};
use trunkline_base::shutdown::Phase;
use trunkline_base::tenants::Access;
use trunkline_engine::driver::NewSequence;
use trunkline_engine::shard::{ShardStatus, proto};
use trunkline_generation::model::{Choice, Model, ReplyStyle};
use trunkline_object::Remote;
use trunkline_reply::ReasoningMarks;
use trunkline_router::server::{DriverEnded, Front, ModelParts, Others, Server};
use trunkline_scheduler::SequenceRequest;

pub use crate::mock::{
    END, INFILL, MockShard, PAD, START, ShardPlan, bytes, prompt_of, write_infill_model, write_model,
};
pub use client::{Answer, Connection, sse_data};

const KEY_FILE: &str = "keys.toml";
/// The longest wait of a test, reached only if the test fails.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Another address of this machine than the one from which [`Router::connect`] connects.
pub const OTHER_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Adds fields to an object, replacing those of the same name.
pub fn with(mut body: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else { panic!("no object: {fields}") };
    body.as_object_mut().unwrap().extend(fields);
    body
}

/// Returns a conversation of one user message.
pub fn user(content: impl Into<Value>) -> Value {
    json!([{"role": "user", "content": content.into()}])
}

/// Returns a greedy sequence for the driver.
pub fn sequence(token_ids: Vec<u32>, max_new_tokens: u32) -> NewSequence {
    NewSequence {
        request: SequenceRequest { token_ids, max_new_tokens, ..SequenceRequest::default() },
        constraint: None,
        arrived: Instant::now(),
        deadline: None,
        span: None,
        request_id: "test".into(),
    }
}

/// A running router with its mock shards.
pub struct Router {
    /// The shard of the first lane.
    pub shard: Option<MockShard>,
    /// The shards of the other lanes.
    pub others: Vec<MockShard>,
    pub app: Arc<App>,
    pub address: SocketAddr,
    /// The address for metrics, which needs no key.
    pub metrics_address: SocketAddr,
    pub socket: PathBuf,
    terminate: Option<oneshot::Sender<()>>,
    replace: Option<oneshot::Sender<()>>,
    pub running: JoinHandle<Result<usize, DriverEnded>>,
    folder: TempDir,
}

/// A router that is not started yet.
struct Setup {
    folder: TempDir,
    limits: ServerLimits,
    access: Access,
    remote: Option<Remote>,
    front: Front,
    replies: Option<ReplyStyle>,
    /// A chat template in place of the mock's.
    template: Option<&'static str>,
    has_template: bool,
    accepts_when_ready: bool,
    /// Writes the model's files.
    write: fn(&Path),
    num_lanes: usize,
    /// Models that are loaded when they are asked for.
    others: Option<Others>,
}

impl Setup {
    fn new(limits: impl Into<ServerLimits>) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            limits: limits.into(),
            access: Access::open(),
            remote: None,
            front: Front::default(),
            replies: None,
            template: None,
            has_template: true,
            accepts_when_ready: false,
            write: write_model,
            num_lanes: 1,
            others: None,
        }
    }

    async fn start(self, plan: ShardPlan) -> Router {
        let mut router = self.start_without_shard();
        router.start_shard(plan).await;
        router
    }

    fn start_without_shard(self) -> Router {
        let Self { folder, limits, access, remote, front, replies, template, write, .. } = self;
        write(folder.path());
        let sockets = (0..self.num_lanes).map(|lane| lane_socket(folder.path(), lane)).collect();
        let path = folder.path().join("template.jinja");
        template.iter().for_each(|template| std::fs::write(&path, template).unwrap());
        let own = template.map(|_| path.as_path());
        let name = "test/model".to_owned();
        let mut model = Model::load_with(folder.path(), name, own, Choice::Auto, Choice::Auto).unwrap();
        if !self.has_template {
            model.text.chat_templates = None;
        }
        model.reply = replies.unwrap_or(model.reply);
        if model.reply.marks == ReasoningMarks::Harmony {
            // `<|end|>` ends only a message.
            model.text.end_token_ids = vec![PAD];
        }
        let parts = ModelParts { model, limits, shard_sockets: sockets, remote };
        let mut server = Server::start_all(parts, access, self.others).unwrap();
        server.front = front;
        let app = server.app.clone();
        let (listener, address) = listen();
        let (metrics_listener, metrics_address) = listen();
        server.metrics_listener = Some(metrics_listener);
        let (replace, replaced) = oneshot::channel();
        server.replaced = Some(replaced);
        server.accepts_when_ready = self.accepts_when_ready;
        let (terminate, terminated) = oneshot::channel();
        let running = tokio::spawn(server.run(listener, async {
            // A test that ends drops the sender without sending anything. No drain begins then.
            if terminated.await.is_err() {
                std::future::pending::<()>().await;
            }
        }));
        let (terminate, replace) = (Some(terminate), Some(replace));
        let socket = lane_socket(folder.path(), 0);
        let (shard, others) = (None, Vec::new());
        Router { shard, others, app, address, metrics_address, socket, terminate, replace, running, folder }
    }
}

/// Returns the path of the socket of a lane's shard.
pub fn lane_socket(folder: &Path, lane: usize) -> PathBuf {
    folder.join(format!("shard{lane}.sock"))
}

/// Opens a listener on a free port.
fn listen() -> (TcpListener, SocketAddr) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Waits until `condition` holds. It is checked again and again, so prefer [`Router::wait`].
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let look = async {
        while !condition().await {
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(DEADLINE, look).await.is_ok(), "timed out waiting for {what}");
}

impl Router {
    /// Starts a router with this shard and these limits, and waits until it is ready.
    pub async fn start(plan: ShardPlan, limits: impl Into<ServerLimits>) -> Self {
        Setup::new(limits).start(plan).await
    }

    /// Starts a router with the default shard and limits.
    pub async fn default() -> Self {
        Self::with(ShardPlan::default()).await
    }

    /// Starts a router with this shard and the default limits.
    pub async fn with(plan: ShardPlan) -> Self {
        Self::start(plan, ServerLimits::default()).await
    }

    /// Starts a router that answers every prompt with `text`.
    pub async fn saying(text: &str) -> Self {
        Self::with(ShardPlan::saying(text)).await
    }

    /// Starts a router whose choice i is `texts[i]`, starting again after the last.
    pub async fn replying(texts: &[&str]) -> Self {
        let replies = texts.iter().map(|text| bytes(text)).collect();
        Self::with(ShardPlan { replies, ..ShardPlan::default() }).await
    }

    /// Starts a router of several models, of which none is in memory.
    pub async fn start_several(access: Access, others: Others) -> Self {
        let others = Some(others);
        let limits = Limits { max_concurrent_requests: Some(128), ..Limits::default() };
        Setup { others, access, ..Setup::new(limits) }.start_without_shard()
    }

    pub async fn start_without_shard(limits: impl Into<ServerLimits>) -> Self {
        Setup::new(limits).start_without_shard()
    }

    /// Starts a router with so many lanes, and these shards on the first of them. Waits until all are connected.
    pub async fn start_lanes(num_lanes: usize, plans: Vec<ShardPlan>) -> Self {
        let mut plans = plans.into_iter();
        let first = plans.next().unwrap();
        let mut router = Self::start_lanes_with(ServerLimits::default(), num_lanes, first).await;
        router.wait("the router to be ready", |app| app.served.readiness().is_ok()).await;
        for plan in plans {
            router.start_other(plan).await;
        }
        router
    }

    /// Starts a router with these limits and so many lanes, and a shard on the first of them that may be unwell.
    pub async fn start_lanes_with(limits: ServerLimits, num_lanes: usize, plan: ShardPlan) -> Self {
        let mut router = Setup { num_lanes, ..Setup::new(limits) }.start_without_shard();
        router.shard = Some(MockShard::start(&router.socket, plan));
        router.wait("a shard", |app| matches!(app.served.shards.borrow()[0], ShardStatus::Ready(_))).await;
        router
    }

    /// Starts the shard of the next lane and waits until it is connected.
    pub async fn start_other(&mut self, plan: ShardPlan) {
        let lane = self.others.len() + 1;
        self.others.push(MockShard::start(&lane_socket(self.folder.path(), lane), plan));
        self.wait("another shard", |app| matches!(app.served.shards.borrow()[lane], ShardStatus::Ready(_)))
            .await;
    }

    /// Starts a router that accepts connections only once its shard is ready.
    pub async fn start_beside_another() -> Self {
        Setup { accepts_when_ready: true, ..Setup::new(ServerLimits::default()) }.start_without_shard()
    }

    /// Starts a router with an object tier.
    pub async fn start_with_objects(plan: ShardPlan, remote: Remote) -> Self {
        Setup { remote: Some(remote), ..Setup::new(ServerLimits::default()) }.start(plan).await
    }

    /// Starts a router with an object tier, and a lane for each of these shards.
    pub async fn start_lanes_with_objects(plans: Vec<ShardPlan>, remote: Remote) -> Self {
        let num_lanes = plans.len();
        let mut plans = plans.into_iter();
        let setup = Setup { remote: Some(remote), num_lanes, ..Setup::new(ServerLimits::default()) };
        let mut router = setup.start(plans.next().unwrap()).await;
        for plan in plans {
            router.start_other(plan).await;
        }
        router
    }

    /// Starts a router with a key file of this text.
    pub async fn start_with_keys(keys: &str, plan: ShardPlan, limits: impl Into<ServerLimits>) -> Self {
        let mut setup = Setup::new(limits);
        let path = setup.folder.path().join(KEY_FILE);
        std::fs::write(&path, keys).unwrap();
        setup.access = Access::new(Some(path), None).unwrap();
        setup.start(plan).await
    }

    /// Replaces the key file, and reads it again.
    pub fn reload_keys(&self, keys: &str) {
        std::fs::write(self.folder.path().join(KEY_FILE), keys).unwrap();
        self.app.admission.access.reload().unwrap();
    }

    /// Starts a router behind this front, with the default shard.
    pub async fn start_behind(front: Front, limits: impl Into<ServerLimits>, access: Access) -> Self {
        Setup { front, access, ..Setup::new(limits) }.start(ShardPlan::default()).await
    }

    /// Starts a router with a model whose replies are parsed in this style.
    pub async fn start_with_replies(plan: ShardPlan, replies: ReplyStyle) -> Self {
        Setup { replies: Some(replies), ..Setup::new(ServerLimits::default()) }.start(plan).await
    }

    /// Starts a router with a model that has fill-in-the-middle tokens.
    pub async fn start_infilling(plan: ShardPlan) -> Self {
        Setup { write: write_infill_model, ..Setup::new(ServerLimits::default()) }.start(plan).await
    }

    /// Starts a router with a model whose chat template is `template`.
    pub async fn start_with_template(plan: ShardPlan, template: &'static str) -> Self {
        Setup { template: Some(template), ..Setup::new(ServerLimits::default()) }.start(plan).await
    }

    /// Starts a router with a model that has no chat template.
    pub async fn start_without_template(plan: ShardPlan) -> Self {
        Setup { has_template: false, ..Setup::new(ServerLimits::default()) }.start(plan).await
    }

    /// Starts a shard on the socket and waits until the router is ready.
    pub async fn start_shard(&mut self, plan: ShardPlan) {
        self.shard = Some(MockShard::start(&self.socket, plan));
        self.wait("the router to be ready", |app| app.served.readiness().is_ok()).await;
    }

    pub fn shard(&self) -> &MockShard {
        self.shard.as_ref().unwrap()
    }

    /// Lets a held shard compute this many steps more.
    pub fn add_steps(&self, count: usize) {
        self.shard().steps.add_permits(count);
    }

    /// Returns the prompt of the last sequence as text, in which control tokens become other characters.
    pub fn last_prompt(&self) -> String {
        let ids = self.shard().last_start().token_ids;
        String::from_utf8_lossy(&ids.iter().map(|id| *id as u8).collect::<Vec<u8>>()).into_owned()
    }

    /// Returns the sampling parameters of the last sequence.
    pub fn last_sampling(&self) -> proto::SamplingParams {
        self.shard().last_start().sampling.unwrap()
    }

    pub fn kill_shard(&mut self) {
        self.shard.take().unwrap().kill();
        std::fs::remove_file(&self.socket).unwrap();
    }

    /// Tells the router that another one has taken over its socket.
    pub fn replace(&mut self) {
        self.replace.take().unwrap().send(()).unwrap();
    }

    /// Starts a drain, as SIGTERM does.
    pub fn terminate(&mut self) {
        self.terminate.take().unwrap().send(()).unwrap();
    }

    /// Waits until `condition` holds. It is checked whenever statistics, shard, health or phase change.
    pub async fn wait(&self, what: &str, condition: impl Fn(&App) -> bool) {
        let (mut stats, mut shard) = (self.app.served.stats.clone(), self.app.served.shards.clone());
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

    pub async fn wait_running(&self, count: u64) {
        self.wait("running sequences", |app| app.served.stats.borrow().num_running == count).await;
    }

    pub async fn wait_queued(&self, count: u64) {
        self.wait("waiting sequences", |app| app.served.stats.borrow().num_waiting == count).await;
    }

    /// Waits until no sequence runs, waits or holds a block.
    pub async fn wait_idle(&self) {
        self.wait("the scheduler to be empty", |app| {
            let stats = *app.served.stats.borrow();
            stats.num_running == 0 && stats.num_waiting == 0 && stats.blocks_held == 0
        })
        .await;
        // Updates are sent after they are counted. The driver answers a question in a later turn.
        let _ = self.app.served.driver.ask(|_, _| ()).await;
        assert_eq!(self.app.served.stats.borrow().unexpected_results, 0);
        let phase = *self.app.phase.borrow();
        assert!(phase == Phase::Serving || phase == Phase::Draining);
    }

    /// Waits until no request is open.
    pub async fn wait_places(&self) {
        let all = self.app.admission.open.acquire_many(self.app.limits.max_open as u32);
        drop(tokio::time::timeout(DEADLINE, all).await.expect("all places come back").unwrap());
    }

    pub async fn connect(&self) -> Connection {
        Connection::open(self.address).await
    }

    /// Connects from [`OTHER_ADDRESS`].
    pub async fn connect_from_other(&self) -> Connection {
        Connection::open_from(OTHER_ADDRESS, self.address).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.connect().await.request("GET", path, b"").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_bytes(path, body.to_string().as_bytes()).await
    }

    pub async fn post_bytes(&self, path: &str, body: &[u8]) -> Answer {
        self.connect().await.request("POST", path, body).await
    }

    /// Sends a request with an API key and reads the complete answer. `Value::Null` is an empty body.
    pub async fn ask(&self, key: &str, method: &str, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.connect().await.request_with(method, path, &[("x-api-key", key)], body.as_bytes()).await
    }

    /// Sends a request without reading the answer.
    pub async fn begin(&self, path: &str, body: &Value) -> Connection {
        let mut connection = self.connect().await;
        connection.send("POST", path, body.to_string().as_bytes()).await;
        connection
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
