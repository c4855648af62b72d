//! The OpenAPI document of all routes.

use utoipa::OpenApi;

use crate::dialects::{anthropic, openai, responses, tgi};
use crate::http::{kv, kv_events, kv_node, operate};

/// Generated from the handlers and their types.
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
        openai::models::list_models,
        openai::models::get_model,
        responses::route::create,
        responses::route::get,
        responses::route::delete,
        anthropic::messages::create,
        anthropic::messages::count_tokens,
        tgi::generate::generate,
        tgi::generate::generate_stream,
        tgi::generate::root,
        tgi::info::info,
        tgi::tokenize::tokenize,
        kv::totals,
        kv::tree,
        kv::remove,
        kv_node::show,
        kv_node::pin,
        kv_node::unpin,
        kv_events::events,
        operate::health,
        operate::livez,
        operate::readyz,
        operate::metrics,
    ),
    components(schemas(openai::Chunk<'_>, tgi::StreamAnswer))
)]
pub struct ApiDoc;
