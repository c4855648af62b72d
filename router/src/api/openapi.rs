//! The OpenAPI document of all routes.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::IntoResponse;
use bytes::Bytes;
use trunkline_contract::range;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{Object, Schema, SchemaType, Type};
use utoipa::openapi::{Content, Ref, RefOr, ResponseBuilder};
use utoipa::{Modify, Number, OpenApi};

use super::dialect::Dialect;
use super::{anthropic, kv, models, openai, operate, responses, tgi, usage, vectors};
use crate::tenants;

/// Routes that can stream, with the schema of an event's data if it is one type.
const STREAMING: [(&str, Option<&str>); 7] = [
    ("/v1/chat/completions", Some("ChatCompletionChunk")),
    ("/v1/completions", Some("CompletionResponse")),
    ("/v1/responses", None),
    ("/v1/messages", None),
    ("/generate", Some("StreamResponse")),
    ("/", Some("StreamResponse")),
    ("/invocations", None),
];
/// Routes that compute steps but do not appear in [`STREAMING`].
const COMPUTING: [&str; 6] =
    ["/generate_stream", "/vertex", "/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/classify"];
/// Routes that need the model's limits, but no step.
const WITHOUT_STEPS: [&str; 2] = ["/v1/chat/completions/render", "/v1/completions/render"];
/// Routes that take no place and are charged to the rate of requests, as are those below the first.
const CHARGED: [&str; 2] = ["/v1/kv", "/v1/usage"];
/// Routes of TGI's dialect whose body may name a model.
const WITH_MODEL: [&str; 5] = ["/chat_tokenize", "/detokenize", "/invocations", "/rerank", "/vertex"];
/// The errors that any route with a body may return.
const WITH_BODY: [(&str, &str); 4] = [
    ("400", "The body is not JSON, or the request is invalid"),
    ("408", "The body did not arrive in time"),
    ("413", "The body is too large"),
    ("429", "Too many requests"),
];

/// The OpenAPI document, generated from the handlers and their types.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Trunkline",
        description = "Large language models over the HTTP APIs of OpenAI, Anthropic and TGI.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    paths(
        openai::chat::chat_completions,
        openai::completions::completions,
        openai::render::render_chat,
        openai::render::render_completion,
        models::list_models,
        models::get_model,
        responses::route::create,
        responses::route::get,
        responses::route::delete,
        responses::route::input_tokens,
        responses::route::cancel,
        responses::items::input_items,
        anthropic::messages::create,
        anthropic::messages::count_tokens,
        tgi::generate::generate,
        tgi::generate::generate_stream,
        tgi::generate::root,
        tgi::info::info,
        tgi::tokenize::tokenize,
        tgi::tokenize::chat_tokenize,
        tgi::detokenize::detokenize,
        tgi::platforms::invocations,
        tgi::platforms::vertex,
        vectors::embeddings::embeddings,
        vectors::embeddings::embed,
        vectors::rerank::rerank,
        vectors::rerank::rerank_tei,
        vectors::rerank::score,
        vectors::classify::classify,
        vectors::classify::predict,
        kv::tree::totals,
        kv::tree::tree,
        kv::tree::remove,
        kv::node::show,
        kv::node::pin,
        kv::node::unpin,
        kv::events::events,
        operate::health,
        operate::ping,
        operate::livez,
        operate::readyz,
        operate::metrics,
        usage::usage,
    ),
    components(schemas(
        openai::Chunk<'_>,
        openai::StopReason,
        tgi::StreamAnswer,
        models::anthropic::ModelInfo,
        models::anthropic::ModelPage
    )),
    modifiers(&CommonAnswers, &SamplingRanges)
)]
pub struct ApiDoc;

/// The document, built once.
static DOCUMENT: LazyLock<utoipa::openapi::OpenApi> = LazyLock::new(ApiDoc::openapi);
/// The document as JSON text, which all answers share. Serializing it cannot fail, because its parts are JSON.
static TEXT: LazyLock<Bytes> = LazyLock::new(|| serde_json::to_vec(&*DOCUMENT).unwrap_or_default().into());

/// Answers `/openapi.json`.
pub async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], TEXT.clone())
}

/// Returns the path that a client may have meant whose base URL lacks `/v1` or has it twice, or whose path ends with a
/// slash.
pub fn similar_path(path: &str) -> Option<String> {
    let path = path.trim_end_matches('/');
    let meant =
        [Some(path.to_owned()), Some(format!("/v1{path}")), path.strip_prefix("/v1").map(str::to_owned)];
    meant.into_iter().flatten().find(|meant| DOCUMENT.paths.paths.contains_key(meant))
}

/// Returns the methods of a route; none if the document does not list it.
pub fn methods_of(route: &str) -> Vec<&'static str> {
    let item = DOCUMENT.paths.paths.get(&route.replace("{*", "{"));
    let methods = item.map(|item| [("GET", &item.get), ("POST", &item.post), ("DELETE", &item.delete)]);
    methods.into_iter().flatten().filter_map(|(name, operation)| operation.as_ref().map(|_| name)).collect()
}

/// Adds the responses that do not depend on the handler: event streams, and errors of keys, bodies and models.
struct CommonAnswers;

impl Modify for CommonAnswers {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        for (path, item) in &mut document.paths.paths {
            for operation in [&mut item.get, &mut item.post, &mut item.delete].into_iter().flatten() {
                complete(path, operation);
            }
        }
    }
}

/// Adds the range of each sampling parameter to the requests that have it.
struct SamplingRanges;

impl Modify for SamplingRanges {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let schemas = document.components.iter_mut().flat_map(|components| components.schemas.values_mut());
        for schema in schemas {
            let RefOr::T(Schema::Object(Object { properties, .. })) = schema else { continue };
            for (name, range) in range::OF_REQUESTS {
                let Some(RefOr::T(Schema::Object(field))) = properties.get_mut(name) else { continue };
                // In answers the fields are numbers that are always there.
                if matches!(&field.schema_type, SchemaType::Array(types) if types.contains(&Type::Null)) {
                    field.maximum = Some(number(*range.end()));
                    if range::is_above_zero(&range) || field.exclusive_minimum.is_some() {
                        field.exclusive_minimum = Some(number(0.0));
                    } else {
                        field.minimum = Some(number(*range.start()));
                    }
                }
            }
        }
    }
}

/// Returns the bound that the shortest digits of `bound` denote.
fn number(bound: f32) -> Number {
    Number::Float(bound.to_string().parse().expect("a number's own digits"))
}

fn complete(path: &str, operation: &mut Operation) {
    let dialect = Dialect::of_path(path);
    if !tenants::PUBLIC.contains(&path) {
        add(operation, dialect, "401", "API keys are configured, and the request has no valid one");
    }
    if operation.request_body.is_some() {
        for (status, description) in WITH_BODY {
            add(operation, dialect, status, description);
        }
        if dialect != Dialect::Tgi || WITH_MODEL.contains(&path) {
            add(operation, dialect, "404", "The model is not served");
        }
    }
    if CHARGED.iter().any(|charged| path.starts_with(charged)) {
        add(operation, dialect, "429", "The tenant has reached its rate of requests");
    }
    let streaming = STREAMING.iter().find(|(streaming, _)| *streaming == path);
    if streaming.is_some() || COMPUTING.contains(&path) {
        add(operation, dialect, "503", "The server is not ready or is draining");
    }
    if operation.responses.responses.contains_key("503") && operation.request_body.is_some() {
        add(operation, dialect, "504", "The request timed out");
        let lost = if dialect == Dialect::Tgi { "424" } else { "502" };
        add(operation, dialect, lost, "The shard disconnected or failed the request");
    }
    if WITHOUT_STEPS.contains(&path) {
        add(operation, dialect, "503", "The model is loading, or the server is draining");
    }
    if let Some((_, schema)) = streaming
        && let Some(RefOr::T(answer)) = operation.responses.responses.get_mut("200")
    {
        let content = Content::new(schema.map(Ref::from_schema_name));
        answer.content.insert("text/event-stream".to_owned(), content);
    }
}

/// Adds an error response unless the handler documents that status itself.
fn add(operation: &mut Operation, dialect: Dialect, status: &str, description: &str) {
    let schema = match dialect {
        Dialect::Anthropic => "AnthropicError",
        Dialect::OpenAi => "OpenAiError",
        Dialect::Tgi => "TgiError",
    };
    operation.responses.responses.entry(status.to_owned()).or_insert_with(|| {
        let content = Content::new(Some(Ref::from_schema_name(schema)));
        ResponseBuilder::new().description(description).content("application/json", content).build().into()
    });
}
