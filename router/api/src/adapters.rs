//! The routes that list adapters, as llama.cpp's server does, and load and unload them, as vLLM's does.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::app::App;
use crate::of_model::{ModelQuery, NoModel, OfModel};
use crate::openai::ErrorResponse;
use crate::{respond, tgi};
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;
use trunkline_generation::adapters::{Adapter, State as Known};
use trunkline_generation::models::ModelId;
use trunkline_generation::served::ServedModel;
use trunkline_http::{Refused, parse};

/// Fields of vLLM's body that are refused, because ignoring them would change the answers.
const REFUSED: &[Refused] =
    &[Refused { field: "is_3d_lora_weight", neutral: &["false"], hint: "leave it out" }];

/// An adapter in the list of `GET /lora-adapters`.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdapterRow {
    /// The adapter's place in the list, by which llama.cpp's field `lora` names it.
    pub id: usize,
    /// The path or Hub id, for admins, and the name for others.
    pub path: String,
    /// The factor for requests that do not name the adapter, always 0.
    pub scale: f32,
    /// The name by which requests choose the adapter. Not part of llama.cpp's API, like the next fields.
    pub name: String,
    /// `unopened` until a request names it, `opening`, `open`, or `unusable`.
    pub state: &'static str,
    /// The largest rank of the adapter's matrices, if it is open.
    pub rank: Option<u32>,
    /// The bytes that it takes on the device, at most, if it is open.
    pub num_bytes: Option<u64>,
    /// Why it is unusable.
    pub problem: Option<String>,
}

impl AdapterRow {
    fn new((id, adapter): (usize, &Arc<Adapter>), caller: &Caller) -> Self {
        let (name, path) = (adapter.name.to_string(), adapter.source_for(caller).to_owned());
        let row = Self {
            id,
            path,
            scale: 0.0,
            name,
            state: "unopened",
            rank: None,
            num_bytes: None,
            problem: None,
        };
        match adapter.state() {
            Known::Unopened => row,
            Known::Opening(_) => Self { state: "opening", ..row },
            Known::Open(opened) => {
                Self { state: "open", rank: Some(opened.rank), num_bytes: Some(opened.num_bytes), ..row }
            }
            Known::Unusable(problem) => Self { state: "unusable", problem: Some(problem.to_string()), ..row },
        }
    }
}

/// Lists the adapters that the caller may use, with rank, size and state.
#[utoipa::path(
    get, path = "/lora-adapters", params(ModelQuery),
    responses((status = 200, description = "The adapters", body = Vec<AdapterRow>))
)]
pub async fn list(view: Result<OfModel, NoModel>, Extension(caller): Extension<Caller>) -> Response {
    let list = async {
        let OfModel(app) = view.map_err(|NoModel(error)| error)?;
        let listed = app.served.adapters.listed(&caller).await;
        let rows: Vec<AdapterRow> =
            listed.iter().enumerate().map(|row| AdapterRow::new(row, &caller)).collect();
        app.admission.answer_memory(&caller).hold(axum::Json(rows).into_response()).await
    };
    respond::answer::<tgi::ErrorResponse>(list.await)
}

/// The body of a request to load an adapter.
#[derive(Debug, Deserialize, ToSchema)]
pub struct LoadAdapter {
    /// The name by which requests choose the adapter.
    pub lora_name: String,
    /// A folder or GGUF file on the server's machine, or a Hub id.
    pub lora_path: String,
    /// If true, the adapter may replace the one with its name.
    pub load_inplace: Option<bool>,
    /// The model that the adapter changes, on a server of several ones. The default is the first one.
    pub base_model_name: Option<String>,
}

/// The body of a request to unload an adapter.
#[derive(Debug, Deserialize, ToSchema)]
pub struct UnloadAdapter {
    /// The name of the adapter.
    pub lora_name: String,
    /// vLLM's number of the adapter, which is ignored.
    pub lora_int_id: Option<i64>,
    /// The model of the adapter, on a server of several ones. The default is the first one.
    pub base_model_name: Option<String>,
}

/// Opens an adapter and gives it a name. That of a model which is not in memory is opened when a request names it. Only
/// admins may.
#[utoipa::path(
    post, path = "/v1/load_lora_adapter", request_body = LoadAdapter,
    responses(
        (status = 200, description = "The adapter can be used", body = String),
        (status = 400, description = "The adapter cannot be used, or its name is taken", body = ErrorResponse),
        (status = 404, description = "No model has the name `base_model_name`", body = ErrorResponse),
        (status = 503, description = "No shard is connected", body = ErrorResponse),
    )
)]
pub async fn load(State(app): State<Arc<App>>, request: Request) -> Response {
    let loaded = async {
        let (caller, body) = read::<LoadAdapter>(&app, request).await?;
        let (name, path) = (&*body.lora_name, &*body.lora_path);
        let (id, served) = base(&app, &caller, body.base_model_name.as_deref()).await?;
        let is_in_memory = app.models.gate().is_none_or(|gate| gate.is_held(id));
        let replaces = body.load_inplace == Some(true);
        served.adapters.load(&served.model, name, path, replaces, is_in_memory).await?;
        tracing::info!(model = served.model.served_name, adapter = name, source = path, "adapter loaded");
        Ok(format!("Success: LoRA adapter '{name}' added successfully."))
    };
    respond::answer::<ErrorResponse>(loaded.await)
}

/// Takes the name of an adapter away. Requests that use it go on. Only admins may.
#[utoipa::path(
    post, path = "/v1/unload_lora_adapter", request_body = UnloadAdapter,
    responses(
        (status = 200, description = "The adapter is gone", body = String),
        (status = 400, description = "The body is invalid", body = ErrorResponse),
        (status = 404, description = "No adapter or model has this name", body = ErrorResponse),
    )
)]
pub async fn unload(State(app): State<Arc<App>>, request: Request) -> Response {
    let unloaded = async {
        let (caller, body) = read::<UnloadAdapter>(&app, request).await?;
        let (_, served) = base(&app, &caller, body.base_model_name.as_deref()).await?;
        let name = body.lora_name;
        served.adapters.unload(&name)?;
        tracing::info!(model = served.model.served_name, adapter = name, "adapter unloaded");
        Ok(format!("Success: LoRA adapter '{name}' removed successfully."))
    };
    respond::answer::<ErrorResponse>(unloaded.await)
}

/// Reads the body of an admin's request.
async fn read<T: serde::de::DeserializeOwned + Send + 'static>(
    app: &App,
    request: Request,
) -> Result<(Caller, T), ApiError> {
    let caller = Caller::of_request(&request)?;
    let (body, _memory) = app.admission.read_body(&caller, request.into_body()).await?;
    let parsed = app.served.parse(&caller, body, |body| parse(body, REFUSED, "")).await?;
    Ok((caller, parsed))
}

/// Returns the model that the field `base_model_name` names, which need not be in memory.
async fn base(
    app: &App,
    caller: &Caller,
    name: Option<&str>,
) -> Result<(ModelId, Arc<ServedModel>), ApiError> {
    let entry = app.models.find(caller, name)?;
    let served = app.models.served(&entry).await?;
    served.check_name(caller, name)?;
    Ok((entry.id, served))
}
