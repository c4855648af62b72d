//! Models that requests name and the server does not have. The launcher looks for them on this machine or downloads
//! them, one after another, and adds them to the server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot, watch};
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;
use trunkline_residency::ModelId;
use trunkline_settings::{Pull, Report};

use crate::model::plain_name;

/// Most models that are looked for at a time.
const MAX_SEARCHES: usize = 8;
/// Most bytes of a name, so that an order of the launcher is written at once.
const MAX_NAME_BYTES: usize = 256;
/// The time after which a client may ask again if too many models are looked for.
const RETRY_S: u64 = 5;

/// The state of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Search {
    /// It has not begun, or what there is to download is not known yet.
    Begun,
    Downloading {
        done_bytes: u64,
        total_bytes: u64,
    },
    Found(ModelId),
    Failed(Arc<str>),
}

/// A search that a request waits for.
#[derive(Debug, Clone)]
pub struct Sought {
    pub name: Arc<str>,
    state: watch::Receiver<Search>,
}

/// A search that has not ended.
#[derive(Debug)]
struct Open {
    state: watch::Sender<Search>,
    downloads: bool,
    /// The searches of the launcher for this model, of which only one downloads it.
    num_asked: u32,
}

/// Looks for models by way of the launcher.
#[derive(Debug)]
pub struct Finder {
    pull: Pull,
    searches: Mutex<BTreeMap<Arc<str>, Open>>,
    /// Each deletion that has not ended. Its outcome is the reason why the files are still there, if they are.
    deletions: Mutex<BTreeMap<ModelId, oneshot::Sender<Result<(), String>>>>,
    /// Receives what the launcher has to do.
    reports: mpsc::UnboundedSender<Report>,
}

impl Sought {
    /// Returns the state as clients read it after "model NAME is".
    pub fn shown(&self) -> String {
        match &*self.state.borrow() {
            Search::Downloading { done_bytes, total_bytes } => {
                format!("downloading, {} %", percent(*done_bytes, *total_bytes))
            }
            _ => "being looked for".to_owned(),
        }
    }

    /// Waits for news: how far a download is, or that the model is found. Fails if it is not.
    pub async fn next(&mut self) -> Result<Search, ApiError> {
        let ended = self.state.changed().await.is_err();
        let state = self.state.borrow_and_update().clone();
        match state {
            Search::Failed(why) => {
                Err(ApiError::ModelNotPulled { model: self.name.to_string(), problem: why.to_string() })
            }
            // The sender tells its last state before it is dropped, unless the server stops.
            Search::Begun | Search::Downloading { .. } if ended => Err(ApiError::Draining),
            state => Ok(state),
        }
    }

    /// Waits for the end of the search.
    pub async fn found(mut self) -> Result<ModelId, ApiError> {
        loop {
            if let Search::Found(model) = self.next().await? {
                return Ok(model);
            }
        }
    }
}

impl Finder {
    /// Returns the finder, and what the launcher has to do from now on.
    pub fn new(pull: Pull) -> (Self, mpsc::UnboundedReceiver<Report>) {
        let (reports, asked) = mpsc::unbounded_channel();
        let (searches, deletions) = (Mutex::default(), Mutex::default());
        (Self { pull, searches, deletions, reports }, asked)
    }

    /// Returns true if requests may add models.
    pub fn may_add(&self) -> bool {
        self.pull != Pull::Never
    }

    /// Begins to look for a model that the server does not have, or joins a search for it. Returns `None` if the caller
    /// may not add models by this name.
    pub fn seek(&self, caller: &Caller, name: &str) -> Result<Option<Sought>, ApiError> {
        let name = plain_name(name);
        if !self.may_add() || !caller.may_use_all_models() || !is_possible(caller, name) {
            return Ok(None);
        }
        let downloads = self.pull == Pull::Hub && caller.is_admin();
        let find = || Report::Find { model: name.to_owned(), downloads };
        let mut searches = self.searches();
        if let Some(search) = searches.get_mut(name) {
            if downloads && !search.downloads {
                (search.downloads, search.num_asked) = (true, search.num_asked + 1);
                self.report(find());
            }
            return Ok(Some(Sought { name: name.into(), state: search.state.subscribe() }));
        }
        if searches.len() >= MAX_SEARCHES {
            return Err(ApiError::ModelFailed {
                model: name.to_owned(),
                problem: format!("the server is looking for {MAX_SEARCHES} other models"),
                retry_after_s: Some(RETRY_S),
            });
        }
        self.report(find());
        let (name, (sender, state)) = (Arc::<str>::from(name), watch::channel(Search::Begun));
        searches.insert(name.clone(), Open { state: sender, downloads, num_asked: 1 });
        Ok(Some(Sought { name, state }))
    }

    /// Notes how far a search is.
    pub fn progress(&self, name: &str, done_bytes: u64, total_bytes: u64) {
        if let Some(search) = self.searches().get(name) {
            search.state.send_replace(Search::Downloading { done_bytes, total_bytes });
        }
    }

    /// Ends a search, unless an administrator has joined one that downloads nothing.
    pub fn end(&self, name: &str, found: Result<ModelId, String>) {
        let mut searches = self.searches();
        if let Some(search) = searches.get_mut(name).filter(|search| found.is_err() && search.num_asked > 1) {
            search.num_asked -= 1;
            return;
        }
        if let Some(search) = searches.remove(name) {
            search.state.send_replace(match found {
                Ok(model) => Search::Found(model),
                Err(why) => Search::Failed(why.into()),
            });
        }
    }

    /// Deletes the files of a model that was downloaded. The error says why they are still there.
    pub async fn delete(&self, model: ModelId) -> Result<(), String> {
        let (sender, ended) = oneshot::channel();
        self.deletions().insert(model, sender);
        self.report(Report::Delete { model: model.0 });
        // A second request to delete the same model takes the place of the first.
        ended.await.unwrap_or_else(|_| Err("another request deletes it".to_owned()))
    }

    /// Tells the outcome of a deletion to the request that asked for it.
    pub fn end_deletion(&self, model: ModelId, outcome: Result<(), String>) {
        if let Some(sender) = self.deletions().remove(&model) {
            // The client may have left.
            let _ = sender.send(outcome);
        }
    }

    fn report(&self, report: Report) {
        // This fails while the server stops.
        let _ = self.reports.send(report);
    }

    fn searches(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Open>> {
        self.searches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deletions(&self) -> MutexGuard<'_, BTreeMap<ModelId, oneshot::Sender<Result<(), String>>>> {
        self.deletions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if a name has the form `org/name` or `org/name:file`, or is a path and the caller an administrator: a
/// path tells others what this machine has.
fn is_possible(caller: &Caller, name: &str) -> bool {
    let is_word = |word: &str| {
        !word.is_empty()
            && word.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter))
    };
    if name.len() > MAX_NAME_BYTES || name.contains(char::is_control) {
        return false;
    }
    if name.starts_with('/') {
        return caller.is_admin();
    }
    let (repository, file) = name.split_once(':').unwrap_or((name, "file"));
    !file.is_empty()
        && !repository.starts_with('.')
        && repository.split_once('/').is_some_and(|(owner, name)| is_word(owner) && is_word(name))
}

fn percent(done_bytes: u64, total_bytes: u64) -> u64 {
    done_bytes.saturating_mul(100).checked_div(total_bytes).unwrap_or(0).min(100)
}
