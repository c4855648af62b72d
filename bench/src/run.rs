//! Sends the requests of one load and measures them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

use crate::arrivals::{self, Limit, Load};
use crate::client::failure::{Failure, Kind};
use crate::compose::Composer;
use crate::live::Live;
use crate::record::{Measured, Open, Record};
use crate::server::Server;
use crate::workload::Workload;

/// Pause of a client in a closed loop after a failure: as long as the server asks for within these bounds.
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// Failed connections in a row, beside those of each client, after which the server is gone.
const GONE_AFTER: u64 = 20;

/// One load on one server.
pub struct Run {
    pub server: Arc<Server>,
    pub workload: Arc<Workload>,
    pub load: Load,
    pub limit: Limit,
    /// Number of the first session.
    pub first_session: u64,
    pub seed: u64,
    /// True if the text of each answer is kept, and the events of requests that are open at the end.
    pub is_detailed: bool,
    pub live: Arc<Live>,
    /// Becomes true when the run is interrupted.
    pub stop: watch::Receiver<bool>,
}

/// What a run has measured.
#[derive(Debug, Default)]
pub struct Outcome {
    pub records: Vec<Record>,
    /// When it began: seconds of Unix time.
    pub began_unix_s: f64,
    pub duration: Duration,
    /// Requests that were open when the run was interrupted.
    pub unfinished: u64,
    /// The same requests, in the order of their sessions, if the run is detailed.
    pub open: Vec<Open>,
    /// Sessions that were started.
    pub num_sessions: u64,
    /// The last failure, if the server is gone.
    pub gone: Option<Failure>,
}

/// The state that the tasks of a run share.
struct Shared {
    server: Arc<Server>,
    workload: Arc<Workload>,
    live: Arc<Live>,
    start: Instant,
    records: Mutex<Vec<Record>>,
    /// Open requests by session and turn, if the run is detailed.
    open: Option<Mutex<BTreeMap<(u64, u32), Open>>>,
    next_session: AtomicU64,
    first_session: u64,
    limit: Limit,
    failed_connections: AtomicU64,
    gone_after: u64,
    gone: watch::Sender<Option<Failure>>,
}

impl Run {
    /// Runs to the limit, until the server is gone, or until it is interrupted.
    pub async fn measure(self) -> Outcome {
        let mut stop = self.stop.clone();
        let began_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let clients = if let Load::Closed { clients } = self.load { clients as u64 } else { 0 };
        let shared = Arc::new(Shared {
            server: self.server,
            workload: self.workload,
            live: self.live,
            start: Instant::now(),
            records: Mutex::default(),
            open: self.is_detailed.then(Mutex::default),
            next_session: AtomicU64::new(0),
            first_session: self.first_session,
            limit: self.limit,
            failed_connections: AtomicU64::new(0),
            gone_after: GONE_AFTER + clients,
            gone: watch::Sender::new(None),
        });
        let mut gone = shared.gone.subscribe();
        let sends = async {
            match self.load {
                Load::Closed { clients } => closed(&shared, clients).await,
                Load::Open { rate_per_s, burstiness } => {
                    let times = arrivals::times(rate_per_s, burstiness, self.limit, self.seed);
                    open(&shared, times).await;
                }
                Load::Trace { speed } => {
                    open(&shared, trace_times(&shared.workload, speed, self.limit)).await
                }
            }
        };
        tokio::select! {
            () = sends => {}
            _ = stop.wait_for(|stop| *stop) => {}
            _ = gone.wait_for(Option::is_some) => {}
        }
        let duration = shared.start.elapsed();
        let records = std::mem::take(&mut *lock(&shared.records));
        let started = shared.next_session.load(Relaxed);
        let gone = gone.borrow().clone();
        let open =
            shared.open.iter().flat_map(|open| std::mem::take(&mut *lock(open)).into_values()).collect();
        let unfinished = shared.live.open();
        Outcome { records, began_unix_s, duration, unfinished, open, num_sessions: started, gone }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Each client sends its next request when the one before is answered.
async fn closed(shared: &Arc<Shared>, clients: usize) {
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        let shared = Arc::clone(shared);
        tasks.spawn(async move {
            while let Some(number) = shared.claim() {
                if let Err(failure) = shared.session(number).await {
                    let pause = failure.retry_after.unwrap_or(MIN_PAUSE).clamp(MIN_PAUSE, MAX_PAUSE);
                    sleep(pause.min(shared.left())).await;
                }
            }
        });
    }
    while tasks.join_next().await.is_some() {}
}

/// Sends a session at each time, whether those before are answered or not.
async fn open(shared: &Arc<Shared>, times: Vec<Duration>) {
    let mut tasks = JoinSet::new();
    for time in times {
        sleep_until((shared.start + time).into()).await;
        let number = shared.first_session + shared.next_session.fetch_add(1, Relaxed);
        let shared = Arc::clone(shared);
        tasks.spawn(async move { shared.session(number).await.err() });
        while tasks.try_join_next().is_some() {}
    }
    while tasks.join_next().await.is_some() {}
}

fn trace_times(workload: &Workload, speed: f64, limit: Limit) -> Vec<Duration> {
    let Workload::Trace(trace) = workload else { return Vec::new() };
    let times = trace.times().map(|time| time.div_f64(speed));
    match limit {
        Limit::Sessions(count) => times.take(count as usize).collect(),
        Limit::Time(end) => times.take_while(|time| *time < end).collect(),
    }
}

impl Shared {
    /// Returns the number of the next session of a closed loop; `None` at the limit.
    fn claim(&self) -> Option<u64> {
        let number = match self.limit {
            Limit::Sessions(count) => {
                let more = |next| (next < count).then_some(next + 1);
                self.next_session.fetch_update(Relaxed, Relaxed, more).ok()?
            }
            Limit::Time(end) => {
                (self.start.elapsed() < end).then(|| self.next_session.fetch_add(1, Relaxed))?
            }
        };
        Some(self.first_session + number)
    }

    /// Returns the time until no session may start.
    fn left(&self) -> Duration {
        match self.limit {
            Limit::Sessions(_) => Duration::MAX,
            Limit::Time(end) => end.saturating_sub(self.start.elapsed()),
        }
    }

    /// Sends the requests of a session, one after the other, up to the first that fails.
    async fn session(&self, number: u64) -> Result<(), Failure> {
        let Server { client, composer, .. } = &*self.server;
        let session = self.workload.session(number);
        let mut conversation = composer.begin();
        for (turn_number, turn) in (0..).zip(&session.turns) {
            if !turn.pause.is_zero() {
                sleep(turn.pause).await;
            }
            composer.ask(&mut conversation, &turn.content);
            let body = composer.body(&conversation, turn.output_tokens, &turn.extra);
            let keep_text = self.open.is_some() || turn_number as usize + 1 < session.turns.len();
            self.live.started.fetch_add(1, Relaxed);
            let sent = Instant::now();
            let sent_s = (sent - self.start).as_secs_f64();
            let place = (number, turn_number);
            if let Some(open) = &self.open {
                let begun = Open { session: number, turn: turn_number, sent_s, events_s: Vec::new() };
                lock(open).insert(place, begun);
            }
            let on_output = |at: Instant| {
                self.live.outputs.fetch_add(1, Relaxed);
                if let Some(begun) =
                    self.open.as_ref().map(lock).as_mut().and_then(|open| open.get_mut(&place))
                {
                    begun.events_s.push((at - sent).as_secs_f64());
                }
            };
            let answer = client.stream(composer.endpoint.path(), body, keep_text, on_output).await;
            let mut outcome =
                answer.as_ref().map(|answer| Measured::new(sent, answer)).map_err(Failure::clone);
            if let Some(open) = &self.open {
                lock(open).remove(&place);
                if let (Ok(measured), Ok(answer)) = (&mut outcome, &answer) {
                    measured.text = Some(answer.text.clone());
                }
            }
            self.note(Record { session: number, turn: turn_number, sent_s, outcome });
            Composer::answer(&mut conversation, &answer?.text);
        }
        Ok(())
    }

    fn note(&self, record: Record) {
        match &record.outcome {
            Ok(_) => self.live.completed.fetch_add(1, Relaxed),
            Err(_) => self.live.failed.fetch_add(1, Relaxed),
        };
        match &record.outcome {
            Err(failure) if failure.kind == Kind::Connect => {
                if self.failed_connections.fetch_add(1, Relaxed) + 1 >= self.gone_after {
                    self.gone.send_replace(Some(failure.clone()));
                }
            }
            _ => self.failed_connections.store(0, Relaxed),
        }
        lock(&self.records).push(record);
    }
}
