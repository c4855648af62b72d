//! Streamed answers that belong to the server: a client may leave one and come back to it.
//!
//! The bytes of a kept stream stay in memory, so its tenant can read them from the beginning, while it runs and for a
//! day afterwards. All kept streams together have a limit. Above it, those of the tenant go that holds the most: first
//! the oldest ended one, and without any, the largest that runs.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures::StreamExt;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use trunkline_base::clock::unix_s;
use trunkline_base::limits::MAX_WRITE_BYTES;
use trunkline_http::StreamForm;

/// The time for which an ended stream is kept.
const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// The bytes of a stream are in blocks of this size, which is also the most that leaves in one write.
const BLOCK_BYTES: usize = MAX_WRITE_BYTES;
/// The most letters of a stream's id.
const MAX_ID_CHARS: usize = 64;

/// Returns true if a client may call a stream so.
pub fn is_id(id: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    (1..=MAX_ID_CHARS).contains(&id.len()) && id.bytes().all(is_plain)
}

/// The tenant of a stream, if there are tenants, and the id that the client gave it.
type Key = (Option<Box<str>>, String);

/// The kept streams of a server.
#[derive(Debug)]
pub struct KeptStreams {
    streams: Mutex<HashMap<Key, Arc<Kept>>>,
    /// The memory of all kept streams.
    num_bytes: AtomicUsize,
    limit_bytes: usize,
}

/// A stream whose bytes stay in memory.
#[derive(Debug)]
pub struct Kept {
    created: u64,
    since: Instant,
    text: Mutex<Text>,
    progress: watch::Sender<Progress>,
    /// Stops the request.
    abort: Mutex<Option<AbortHandle>>,
}

/// The bytes of a stream.
#[derive(Debug, Default)]
struct Text {
    full: Vec<Bytes>,
    last: Vec<u8>,
    /// True once the stream is no longer kept. It takes no more bytes then.
    is_forgotten: bool,
}

/// The state that readers of a stream watch. The numbers are those of its bytes.
#[derive(Debug, Clone, Copy)]
enum Progress {
    /// The request has no answer yet.
    Waits,
    Runs(StreamForm, usize),
    Ended(StreamForm, usize),
    /// The answer is not a stream.
    Failed,
}

/// A kept stream in a list.
#[derive(Debug, Clone)]
pub struct Listed {
    pub id: String,
    /// The time at which its request arrived, in seconds since 1970.
    pub created: u64,
    pub is_running: bool,
    pub num_bytes: usize,
}

/// Why a stream is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotKept {
    /// The tenant has another stream with this id.
    Taken,
    /// The stream was deleted before its request had an answer.
    Deleted,
}

impl KeptStreams {
    /// Keeps streams in at most so many bytes.
    pub fn new(limit_bytes: usize) -> Self {
        Self { streams: Mutex::default(), num_bytes: AtomicUsize::new(0), limit_bytes }
    }

    /// Answers a request in a task of its own, which goes on without the client. Keeps the answer if it is a stream.
    pub async fn keep(
        self: &Arc<Self>,
        tenant: Option<&str>,
        id: &str,
        answer: impl Future<Output = Response> + Send + 'static,
    ) -> Result<Response, NotKept> {
        let key: Key = (tenant.map(Into::into), id.to_owned());
        let kept = Arc::new(Kept::new());
        match self.lock().entry(key.clone()) {
            Entry::Occupied(_) => return Err(NotKept::Taken),
            Entry::Vacant(entry) => entry.insert(kept.clone()),
        };
        let (tell, told) = oneshot::channel();
        let running = Running { streams: self.clone(), key, kept: kept.clone() };
        let task = tokio::spawn(running.collect(answer, tell));
        *lock(&kept.abort) = Some(task.abort_handle());
        if let Ok(response) = told.await {
            return Ok(response);
        }
        match task.await {
            // A panic is answered as one in a handler without a task of its own would be.
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            _ => Err(NotKept::Deleted),
        }
    }

    /// Returns a stream from its beginning, once its request has an answer.
    pub async fn read(&self, tenant: Option<&str>, id: &str) -> Option<(StreamForm, Body)> {
        let kept = self.lock().get(&(tenant.map(Into::into), id.to_owned())).cloned()?;
        let mut progress = kept.progress.subscribe();
        let begun = *progress.wait_for(|progress| !matches!(progress, Progress::Waits)).await.ok()?;
        match begun {
            Progress::Runs(form, _) | Progress::Ended(form, _) => Some((form, kept.body())),
            Progress::Waits | Progress::Failed => None,
        }
    }

    /// Stops a stream and forgets it. Returns false if there is none.
    pub fn remove(&self, tenant: Option<&str>, id: &str) -> bool {
        let removed = self.lock().remove(&(tenant.map(Into::into), id.to_owned()));
        removed.inspect(|kept| self.free(kept)).is_some()
    }

    /// Stops the streams that nobody reads, as a server does that nobody can ask for them any more.
    pub fn stop_unread(&self) {
        let unread = |kept: &&Arc<Kept>| !kept.has_ended() && kept.progress.receiver_count() == 0;
        self.lock()
            .values()
            .filter(unread)
            .filter_map(|kept| lock(&kept.abort).take())
            .for_each(|it| it.abort());
    }

    /// Returns the streams of a tenant, newest first.
    pub fn list(&self, tenant: &str) -> Vec<Listed> {
        let streams = self.lock();
        let own = streams.iter().filter(|((of, _), _)| of.as_deref() == Some(tenant));
        let mut listed: Vec<Listed> = own.map(|((_, id), kept)| kept.listed(id)).collect();
        listed.sort_by(|a, b| (b.created, &a.id).cmp(&(a.created, &b.id)));
        listed
    }

    /// Forgets this stream, unless another one has its id meanwhile.
    fn forget(&self, key: &Key, kept: &Arc<Kept>) {
        let mut streams = self.lock();
        if streams.get(key).is_some_and(|own| Arc::ptr_eq(own, kept)) {
            streams.remove(key);
            self.free(kept);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Kept>>> {
        lock(&self.streams)
    }

    /// Appends bytes to a stream. Returns false if it is no longer kept.
    fn push(&self, kept: &Kept, form: StreamForm, bytes: &[u8]) -> bool {
        let (num_taken, len) = {
            let mut text = lock(&kept.text);
            if text.is_forgotten {
                return false;
            }
            let before = text.memory_bytes();
            text.push(bytes);
            (text.memory_bytes() - before, text.len())
        };
        kept.progress.send_replace(Progress::Runs(form, len));
        let all = self.num_bytes.fetch_add(num_taken, Ordering::Relaxed) + num_taken;
        if all > self.limit_bytes {
            self.make_room();
        }
        true
    }

    /// Forgets streams of the tenant that holds the most, until the others fit: its ended ones, the oldest first, and
    /// then the largest of those that run, which ends then.
    fn make_room(&self) {
        let mut streams = self.lock();
        while self.num_bytes.load(Ordering::Relaxed) > self.limit_bytes {
            let mut of_tenants: HashMap<&Option<Box<str>>, usize> = HashMap::new();
            for ((tenant, _), kept) in &*streams {
                *of_tenants.entry(tenant).or_default() += lock(&kept.text).memory_bytes();
            }
            let next = streams.iter().max_by_key(|((tenant, _), kept)| {
                let (has_ended, bytes) = (kept.has_ended(), lock(&kept.text).memory_bytes());
                let age = if has_ended { kept.since.elapsed() } else { Duration::ZERO };
                (of_tenants[tenant], has_ended, age, bytes)
            });
            let Some(key) = next.map(|(key, _)| key.clone()) else { return };
            if let Some(kept) = streams.remove(&key) {
                if !kept.has_ended() {
                    tracing::warn!("a kept stream is cut, because those of its tenant take too much memory");
                }
                self.free(&kept);
            }
        }
    }

    fn free(&self, kept: &Kept) {
        if let Some(abort) = lock(&kept.abort).take() {
            abort.abort();
        }
        let mut text = lock(&kept.text);
        self.num_bytes.fetch_sub(text.memory_bytes(), Ordering::Relaxed);
        *text = Text { is_forgotten: true, ..Text::default() };
    }
}

impl Text {
    fn len(&self) -> usize {
        self.full.len() * BLOCK_BYTES + self.last.len()
    }

    fn memory_bytes(&self) -> usize {
        self.full.len() * BLOCK_BYTES + self.last.capacity()
    }

    fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            self.last.reserve_exact(BLOCK_BYTES - self.last.len());
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.last.len()));
            self.last.extend_from_slice(now);
            if self.last.len() == BLOCK_BYTES {
                self.full.push(std::mem::take(&mut self.last).into());
            }
            bytes = later;
        }
    }

    /// Returns the bytes from `start` to the end of its block, or `None` if there are none.
    fn from(&self, start: usize) -> Option<Bytes> {
        let (block, offset) = (start / BLOCK_BYTES, start % BLOCK_BYTES);
        if let Some(full) = self.full.get(block) {
            return Some(full.slice(offset..));
        }
        let rest = self.last.get(offset..).filter(|rest| block == self.full.len() && !rest.is_empty())?;
        Some(Bytes::copy_from_slice(rest))
    }
}

impl Kept {
    fn new() -> Self {
        let (created, since) = (unix_s(), Instant::now());
        let progress = watch::Sender::new(Progress::Waits);
        Self { created, since, text: Mutex::default(), progress, abort: Mutex::default() }
    }

    fn has_ended(&self) -> bool {
        matches!(*self.progress.borrow(), Progress::Ended(..))
    }

    fn listed(&self, id: &str) -> Listed {
        let (is_running, num_bytes) = (!self.has_ended(), lock(&self.text).memory_bytes());
        Listed { id: id.to_owned(), created: self.created, is_running, num_bytes }
    }

    /// Returns a body with all bytes, which ends with the stream.
    fn body(self: &Arc<Self>) -> Body {
        let reader = (self.clone(), self.progress.subscribe(), 0);
        let blocks = futures::stream::unfold(reader, |(kept, mut progress, next)| async move {
            loop {
                let now = *progress.borrow_and_update();
                let bytes = lock(&kept.text).from(next);
                if let Some(bytes) = bytes {
                    let next = next + bytes.len();
                    return Some((Ok::<_, Infallible>(bytes), (kept, progress, next)));
                }
                if !matches!(now, Progress::Runs(..)) || progress.changed().await.is_err() {
                    return None;
                }
            }
        });
        Body::from_stream(blocks)
    }
}

/// A request whose answer is kept. Dropping it, also by aborting its task, ends the stream.
struct Running {
    streams: Arc<KeptStreams>,
    key: Key,
    kept: Arc<Kept>,
}

impl Running {
    async fn collect(self, answer: impl Future<Output = Response>, tell: oneshot::Sender<Response>) {
        let (parts, body) = answer.await.into_parts();
        let content_type = parts.headers.get(header::CONTENT_TYPE);
        let form = [StreamForm::Events, StreamForm::Lines]
            .into_iter()
            .find(|form| content_type.is_some_and(|own| own == form.content_type()));
        let Some(form) = form.filter(|_| parts.status == StatusCode::OK) else {
            drop(self);
            // The client may be gone.
            let _ = tell.send(Response::from_parts(parts, body));
            return;
        };
        self.kept.progress.send_replace(Progress::Runs(form, 0));
        let _ = tell.send(Response::from_parts(parts, self.kept.body()));
        let mut body = body.into_data_stream();
        while let Some(Ok(piece)) = body.next().await {
            if !self.streams.push(&self.kept, form, &piece) {
                break;
            }
        }
        drop(body);
        let (streams, key, kept) = (self.streams.clone(), self.key.clone(), self.kept.clone());
        drop(self);
        tokio::time::sleep(KEPT_FOR).await;
        streams.forget(&key, &kept);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut is_stream = true;
        self.kept.progress.send_modify(|progress| {
            *progress = match *progress {
                Progress::Runs(form, num) | Progress::Ended(form, num) => Progress::Ended(form, num),
                Progress::Waits | Progress::Failed => {
                    is_stream = false;
                    Progress::Failed
                }
            }
        });
        if !is_stream {
            self.streams.forget(&self.key, &self.kept);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
