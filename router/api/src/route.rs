//! The table of routes, which is complete. The router, the listener of `--metrics-port`, the OpenAPI document, access,
//! metrics, traces, docs/api and the fuzzers read it.
//!
//! A new route is a row, its handler, and a test. The handler's documentation and its types are those of the document.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request};
use axum::http::Method;
use axum::routing::{MethodFilter, get, on};
use axum::{Extension, Router};

use super::app::App;
use super::dialect::{Dialect, Errors};
use super::shown::Document;
use super::{
    adapters, anthropic, conversations, kv, llama, models, ollama, openai, operate, page, responses, shown,
    steps, streams, tgi, usage, vectors,
};

/// A row of the table.
#[derive(Debug)]
pub struct Route {
    pub method: Method,
    /// As in the router, with `{*id}` for a parameter that may contain slashes.
    pub path: &'static str,
    pub dialect: Dialect,
    pub errors: Errors,
    pub model: ModelField,
    pub access: Access,
    pub kind: Kind,
    pub group: Group,
}

/// A part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// `/openapi.json` describes these routes.
    Documented,
    /// The document describes these, too, and the listener of `--metrics-port` has them.
    OnMetricsPort,
    /// The document leaves these out: they show it, or they are other names of a route.
    Undocumented,
    /// These exist only with the web page.
    Page,
}

/// Whether a body may name a model, which may be one that is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelField {
    Named,
    Unnamed,
}

/// The work of a route, which decides what a request costs, which errors it may return, and whether it has a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Generates replies in turns of a conversation.
    Chats(Events),
    /// Generates text that continues a prompt.
    Completes(Events),
    /// Makes vectors, scores or classes.
    MakesVectors,
    /// Needs the model's limits, but no step.
    Renders,
    /// Takes no place, so each request is charged to the tenant's rate of requests.
    Looks,
    /// Is polled by machines, so refusals are not counted as rejected requests.
    Probes,
    /// Does none of this: it answers from the tokenizer, the model's description or what is stored.
    Answers,
}

/// The events of an answer that can be a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Events {
    Never,
    /// The data of an event is one of several types.
    Mixed,
    /// The name of the schema of every event's data.
    Of(&'static str),
}

/// The keys that may use a route, if keys are configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// All valid keys may.
    Keys,
    /// Only keys of admins.
    Admins,
    /// A key is not needed: the route is for probes, or shows a file of the web page, which holds no data and asks for
    /// the key.
    Anybody,
}

use Dialect::*;
use Events::{Mixed, Never, Of};
use Kind::{Answers, Chats, Completes, Looks, MakesVectors, Probes, Renders};
use ModelField::{Named, Unnamed};

/// Declares the table [`ROUTES`], [`Group::router`] and the paths of the OpenAPI document.
///
/// A row has method, path, dialect, in brackets the form of its errors if it is not the dialect's, whether the body may
/// name a model, the access if it is not [`Access::Keys`] (`for`), the kind, and the handler.
macro_rules! routes {
    ($($group:ident { $($method:ident $path:literal $dialect:ident $([$errors:ident])? $model:ident
        $(for $access:ident)? ($kind:expr) $($handler:ident)::+;)* })*) => {
        pub static ROUTES: &[Route] = &[$($(Route {
            method: Method::$method,
            path: $path,
            dialect: $dialect,
            errors: routes!(@or $dialect.errors() $(, Errors::$errors)?),
            model: $model,
            access: routes!(@or Access::Keys $(, Access::$access)?),
            kind: $kind,
            group: Group::$group,
        },)*)*];

        impl Group {
            /// Returns a router with the routes of the group.
            pub fn router(self) -> Router<Arc<App>> {
                match self {
                    $(Self::$group => Router::new()$(.route($path, on(MethodFilter::$method, $($handler)::+)))*,)*
                }
            }
        }

        routes! { @paths $($group { $([$($handler)::+])* })* }
    };
    (@or $default:expr) => { $default };
    (@or $default:expr, $chosen:expr) => { $chosen };
    (@paths Documented { $([$($handler:ident)::+])* } OnMetricsPort { $([$($probe:ident)::+])* } $($rest:tt)*) => {
        /// The document with only what the handlers say.
        #[derive(utoipa::OpenApi)]
        #[openapi(paths($($($handler)::+,)* $($($probe)::+),*))]
        pub struct Paths;
    };
}

routes! {
    Documented {
        POST "/v1/chat/completions" OpenAi Named (Chats(Of("ChatCompletionChunk"))) openai::chat::chat_completions;
        POST "/v1/completions" OpenAi Named (Completes(Of("CompletionResponse"))) openai::completions::completions;
        POST "/v1/chat/completions/render" Vllm Named (Renders) openai::render::render_chat;
        POST "/v1/completions/render" Vllm Named (Renders) openai::render::render_completion;
        POST "/infill" LlamaCpp Named (Completes(Of("InfillResponse"))) llama::infill::infill;
        GET "/v1/models" OpenAi Unnamed (Answers) models::list_models;
        GET "/v1/models/{*id}" OpenAi Unnamed (Answers) models::get_model;
        POST "/v1/models/{*id}" Operating Unnamed for Admins (Answers) models::manage::manage;
        POST "/v1/load_lora_adapter" Vllm Unnamed for Admins (Answers) adapters::load;
        POST "/v1/unload_lora_adapter" Vllm Unnamed for Admins (Answers) adapters::unload;
        GET "/lora-adapters" LlamaCpp[Tgi] Unnamed (Answers) adapters::list;
        POST "/v1/responses" OpenAi Named (Chats(Mixed)) responses::route::create;
        GET "/v1/responses/{id}" OpenAi Unnamed (Answers) responses::route::get;
        DELETE "/v1/responses/{id}" OpenAi Unnamed (Answers) responses::route::delete;
        POST "/v1/responses/input_tokens" OpenAi Named (Answers) responses::route::input_tokens;
        POST "/v1/responses/{id}/cancel" OpenAi Unnamed (Answers) responses::route::cancel;
        GET "/v1/responses/{id}/input_items" OpenAi Unnamed (Answers) responses::items::input_items;
        GET "/v1/streams" Streams Unnamed (Looks) streams::list;
        GET "/v1/streams/{id}" Streams Unnamed (Looks) streams::read;
        DELETE "/v1/streams/{id}" Streams Unnamed (Looks) streams::delete;
        GET "/v1/history" History Unnamed (Looks) conversations::list;
        GET "/v1/history/{id}" History Unnamed (Looks) conversations::get;
        PUT "/v1/history/{id}" History Unnamed (Answers) conversations::put;
        PATCH "/v1/history/{id}" History Unnamed (Answers) conversations::patch;
        DELETE "/v1/history/{id}" History Unnamed (Looks) conversations::delete;
        POST "/v1/messages" Anthropic Named (Chats(Mixed)) anthropic::messages::create;
        POST "/v1/messages/count_tokens" Anthropic Named (Answers) anthropic::messages::count_tokens;
        POST "/generate" Tgi Unnamed (Completes(Of("StreamResponse"))) tgi::generate::generate;
        POST "/generate_stream" Tgi Unnamed (Completes(Never)) tgi::generate::generate_stream;
        POST "/" Tgi Unnamed (Completes(Of("StreamResponse"))) tgi::generate::root;
        GET "/info" Tgi Unnamed (Answers) tgi::info::info;
        POST "/tokenize" Tgi Named (Answers) tgi::tokenize::tokenize;
        POST "/chat_tokenize" Tgi Named (Answers) tgi::tokenize::chat_tokenize;
        POST "/detokenize" Vllm[Tgi] Named (Answers) tgi::detokenize::detokenize;
        POST "/invocations" Tgi Named (Completes(Mixed)) tgi::platforms::invocations;
        POST "/vertex" Tgi Named (Completes(Never)) tgi::platforms::vertex;
        POST "/api/chat" Ollama Named (Chats(Of("OllamaChatResponse"))) ollama::chat::chat;
        POST "/api/generate" Ollama Named (Completes(Of("OllamaGenerateResponse"))) ollama::generate::generate;
        POST "/api/embed" Ollama Named (MakesVectors) vectors::ollama::embed;
        POST "/api/embeddings" Ollama Named (MakesVectors) vectors::ollama::embeddings;
        GET "/api/tags" Ollama Unnamed (Answers) ollama::models::tags;
        GET "/api/ps" Ollama Unnamed (Answers) ollama::models::running;
        POST "/api/show" Ollama Named (Answers) ollama::models::show;
        POST "/api/pull" Ollama Named (Answers) ollama::pull::pull;
        DELETE "/api/delete" Ollama Named for Admins (Answers) ollama::delete::delete;
        GET "/api/version" Ollama Unnamed (Answers) ollama::models::version;
        POST "/v1/embeddings" OpenAi Named (MakesVectors) vectors::embeddings::embeddings;
        POST "/embed" Tei Unnamed (MakesVectors) vectors::embeddings::embed;
        POST "/v1/rerank" JinaAndCohere Named (MakesVectors) vectors::rerank::rerank;
        POST "/rerank" Tei Named (MakesVectors) vectors::rerank::rerank_tei;
        POST "/v1/score" Vllm Named (MakesVectors) vectors::rerank::score;
        POST "/v1/classify" Vllm Named (MakesVectors) vectors::classify::classify;
        POST "/predict" Tei Unnamed (MakesVectors) vectors::classify::predict;
        GET "/v1/kv" KvCache Unnamed (Looks) kv::totals::totals;
        GET "/v1/kv/tree" KvCache Unnamed (Looks) kv::tree::tree;
        DELETE "/v1/kv/tree/{id}" KvCache Unnamed (Looks) kv::tree::remove;
        GET "/v1/kv/tree/{id}" KvCache Unnamed (Looks) kv::node::show;
        POST "/v1/kv/tree/{id}/pin" KvCache Unnamed (Looks) kv::node::pin;
        DELETE "/v1/kv/tree/{id}/pin" KvCache Unnamed (Looks) kv::node::unpin;
        GET "/v1/kv/events" KvCache Unnamed (Looks) kv::events::events;
        GET "/health" Tgi Unnamed (Probes) operate::health;
        GET "/ping" Tgi Unnamed (Probes) operate::ping;
        GET "/v1/usage" Operating Unnamed (Looks) usage::usage;
        GET "/v1/steps" Operating Unnamed (Answers) steps::steps;
    }
    OnMetricsPort {
        GET "/livez" Operating[Tgi] Unnamed for Anybody (Probes) operate::livez;
        GET "/readyz" Operating[Tgi] Unnamed for Anybody (Probes) operate::readyz;
        GET "/metrics" Operating[Tgi] Unnamed (Probes) operate::metrics;
    }
    Undocumented {
        GET "/openapi.json" Operating[Tgi] Unnamed (Answers) shown::document;
        GET "/docs" Operating[Tgi] Unnamed (Answers) shown::docs;
        POST "/v2/rerank" JinaAndCohere Named (MakesVectors) vectors::rerank::rerank;
        POST "/score" Vllm Named (MakesVectors) vectors::rerank::score;
        POST "/classify" Vllm Named (MakesVectors) vectors::classify::classify;
    }
    Page {
        GET "/" Operating[Tgi] Unnamed for Anybody (Answers) page::root;
        GET "/assets/{file}" Operating[Tgi] Unnamed for Anybody (Answers) page::asset;
        GET "/favicon.svg" Operating[Tgi] Unnamed for Anybody (Answers) page::icon;
    }
}

/// Returns a router with the routes of the main listener, with the web page or with what `/` shows without it.
pub fn router(has_page: bool, document: Document) -> Router<Arc<App>> {
    let page = if has_page { Group::Page.router() } else { Router::new().route("/", get(shown::to_docs)) };
    Group::Documented
        .router()
        .merge(Group::OnMetricsPort.router())
        .merge(Group::Undocumented.router().layer(Extension(document)))
        .merge(page)
}

impl Route {
    /// Returns the row that a request has matched. A method without a row has that of the path's first one.
    ///
    /// The outermost middleware notes it in the request's extensions, so that it is looked up once.
    pub fn of(request: &Request) -> Option<&'static Self> {
        if let Some(noted) = request.extensions().get::<Option<&'static Self>>() {
            return *noted;
        }
        let matched = request.extensions().get::<MatchedPath>()?;
        // Routes with `GET` answer `HEAD`, too.
        let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
        let mut rows = ROUTES.iter().filter(|route| route.path == matched.as_str());
        let first = rows.clone().next();
        rows.find(|route| route.method == *method).or(first)
    }

    /// Returns the row of a path and a method in the OpenAPI document.
    pub fn documented(path: &str, method: &Method) -> Option<&'static Self> {
        ROUTES
            .iter()
            .find(|route| route.is_documented() && route.method == *method && route.shown_path() == path)
    }

    /// Returns the path that a client may have meant whose base URL lacks `/v1` or has it twice, or whose path ends
    /// with a slash.
    pub fn similar_path(path: &str) -> Option<String> {
        let path = path.trim_end_matches('/');
        let meant =
            [Some(path.to_owned()), Some(format!("/v1{path}")), path.strip_prefix("/v1").map(str::to_owned)];
        let exists = |meant: &String| ROUTES.iter().any(|route| route.is_documented() && route.path == meant);
        meant.into_iter().flatten().find(exists)
    }

    /// Returns the methods of a path.
    pub fn methods_of(path: &str) -> Vec<&'static str> {
        ROUTES.iter().filter(|route| route.path == path).map(|route| route.method.as_str()).collect()
    }

    /// Returns true if `/openapi.json` describes the route.
    pub fn is_documented(&self) -> bool {
        matches!(self.group, Group::Documented | Group::OnMetricsPort)
    }

    /// Returns the path as documents show it.
    pub fn shown_path(&self) -> String {
        self.path.replace("{*", "{")
    }

    /// Returns true if requests need a valid key where keys are configured.
    pub fn needs_key(&self) -> bool {
        self.access != Access::Anybody
    }

    /// Returns the operation of its trace in OpenTelemetry's words, or `None` if it has no record.
    pub fn operation(&self) -> Option<&'static str> {
        match self.kind {
            Chats(_) => Some("chat"),
            Completes(_) => Some("text_completion"),
            MakesVectors => Some("embeddings"),
            Renders | Looks | Probes | Answers => None,
        }
    }

    /// Returns the events of its answers.
    pub fn events(&self) -> Events {
        match self.kind {
            Chats(events) | Completes(events) => events,
            _ => Never,
        }
    }
}

impl Errors {
    /// Returns the form for a request's route, or the one for its path if it has matched none.
    pub fn of(request: &Request) -> Self {
        Route::of(request).map_or_else(|| Self::of_path(request.uri().path()), |route| route.errors)
    }
}
