//! The handler of `/api/pull`: finds a model, or downloads it, and tells the progress.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use trunkline_http::{Events, IgnoredFields, StreamForm};
use utoipa::ToSchema;

use super::options::parse;
use super::{ErrorResponse, untagged};
use crate::app::App;
use crate::models::named;
use crate::respond::{self, ErrorForm};
use crate::stream::event_stream;
use trunkline_base::error::ApiError;
use trunkline_base::shutdown::Phase;
use trunkline_base::tenants::Caller;
use trunkline_generation::models::{Search, Sought};
use trunkline_generation::place::Place;

const MANIFEST: &str = "pulling manifest";
const SUCCESS: &str = "success";

/// The body of a request for a model to be there.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaPullRequest)]
pub struct PullBody {
    /// The name of a model of this server, or a Hub repository such as `org/name` or `org/name:Q4_K_M`, with or without
    /// `hf.co/` before it.
    pub model: Option<String>,
    /// An older name of `model`, which counts if both are sent.
    pub name: Option<String>,
    /// Accepted; the server's own settings say how it reaches the Hub.
    pub insecure: Option<bool>,
    /// If false, the answer is one JSON object; by default it is a stream of lines.
    pub stream: Option<bool>,
}

/// The state of a pull.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = OllamaPullStatus)]
pub struct PullStatus {
    /// `success` last.
    pub status: String,
    /// The bytes of all files that are to be downloaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// The bytes of them that are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed: Option<u64>,
}

impl PullStatus {
    fn new(status: &str) -> Self {
        Self { status: status.to_owned(), ..Self::default() }
    }
}

/// Adds a model to the server and tells the progress of its download, as far as `--pull` allows it: with `local` one
/// that was downloaded before, with `hub` any repository of the Hub, which only admins may download. A download goes on
/// if the client leaves.
#[utoipa::path(
    post, path = "/api/pull", request_body = PullBody,
    responses(
        (status = 200, description = "The model is there; a stream of lines unless `stream` is false", body = PullStatus),
        (status = 400, description = "The request is invalid", body = ErrorResponse),
        (status = 404, description = "The model cannot be added; the error says why", body = ErrorResponse),
    )
)]
pub async fn pull(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<ErrorResponse>(pulled(&app, request).await)
}

async fn pulled(app: &App, request: Request) -> Result<Response, ApiError> {
    // A search costs the time of a process.
    app.admission.charge(&app.served, &request)?;
    let read = |body: &[u8]| parse::<PullBody>(body, &[], &mut IgnoredFields::default());
    let (caller, place, body) = app.read_of_any_model(request, read).await?;
    let name = body.model.filter(|name| !name.is_empty()).or(body.name);
    let name = name.ok_or_else(|| ApiError::MissingField { field: "model".to_owned() })?;
    let sought = sought(app, &caller, untagged(&name))?;
    if body.stream == Some(false) {
        if let Some(sought) = sought {
            sought.found().await?;
        }
        return Ok(axum::Json(PullStatus::new(SUCCESS)).into_response());
    }
    let next = match sought {
        Some(sought) => Next::Search(Searching { sought, phase: app.phase.clone(), _place: place }),
        None => Next::Success,
    };
    let lines = stream::unfold(Some(Next::Manifest(Box::new(next))), line);
    Ok(event_stream(Body::from_stream(lines), StreamForm::Lines))
}

/// Begins to look for a model that the server does not have. Returns `None` for one that it has.
fn sought(app: &App, caller: &Caller, name: &str) -> Result<Option<Sought>, ApiError> {
    let unknown = match named(app, caller, name) {
        Ok(_) => return Ok(None),
        Err(unknown @ ApiError::UnknownModel { .. }) => unknown,
        Err(error) => return Err(error),
    };
    let problem = match app.models.finder() {
        _ if !caller.may_use_all_models() => return Err(unknown),
        Some(finder) if finder.may_add() => match finder.seek(caller, name)? {
            Some(sought) => return Ok(Some(sought)),
            None => {
                "it is no name of a Hub repository; hint: name one, such as `org/name` or `org/name:Q4_K_M`"
            }
        },
        _ => "this server adds no models; hint: start it with `--pull hub`",
    };
    Err(ApiError::ModelNotPulled { model: name.to_owned(), problem: problem.to_owned() })
}

/// The next line of a stream.
enum Next {
    Manifest(Box<Next>),
    Search(Searching),
    Success,
}

/// A search that a stream tells of.
struct Searching {
    sought: Sought,
    phase: watch::Receiver<Phase>,
    /// The place of the request.
    _place: Place,
}

impl Searching {
    async fn next(&mut self) -> Result<Search, ApiError> {
        tokio::select! {
            news = self.sought.next() => news,
            _ = self.phase.wait_for(|phase| *phase != Phase::Serving) => Err(ApiError::Draining),
        }
    }
}

async fn line(next: Option<Next>) -> Option<(Result<Bytes, ApiError>, Option<Next>)> {
    let mut events = Events::new(StreamForm::Lines);
    let then = match next? {
        Next::Manifest(then) => {
            events.json(&PullStatus::new(MANIFEST));
            Some(*then)
        }
        Next::Search(mut searching) => match searching.next().await {
            Ok(Search::Downloading { done_bytes, total_bytes }) => {
                let status = format!("pulling {}", searching.sought.name);
                events.json(&PullStatus { status, total: Some(total_bytes), completed: Some(done_bytes) });
                Some(Next::Search(searching))
            }
            Ok(_) => Some(Next::Success),
            Err(error) => {
                events.json(&ErrorResponse::from_error(&error));
                None
            }
        },
        Next::Success => {
            events.json(&PullStatus::new(SUCCESS));
            None
        }
    };
    Some((Ok(events.take()), then))
}
