//! The table of routes. The router, the OpenAPI document, access, metrics and traces read it. It lacks only the routes
//! that show the document itself.

use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::http::Method;
use axum::routing::{MethodFilter, on};

use super::app::App;
use super::dialect::Dialect;
use super::{
    adapters, anthropic, conversations, kv, llama, models, ollama, openai, operate, page, responses, steps,
    streams, tgi, usage, vectors,
};

/// A row of the table.
#[derive(Debug)]
pub struct Route {
    pub method: Method,
    /// As in the router, with `{*id}` for a parameter that may contain slashes.
    pub path: &'static str,
    pub dialect: Dialect,
    pub model: ModelField,
    pub kind: Kind,
    /// True if `/openapi.json` describes it. Other names of a route are left out.
    pub is_documented: bool,
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
    Probes(Key),
    /// Is a file of the web page. It holds no data, so that browsers get it without a key, which the page asks for.
    Shows,
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

/// Whether a request needs a valid key where keys are configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Required,
    NotRequired,
}

use Dialect::{Anthropic, Ollama, OpenAi, Tgi};
use Events::{Mixed, Never, Of};
use Key::{NotRequired, Required};
use Kind::{Answers, Chats, Completes, Looks, MakesVectors, Probes, Renders, Shows};
use ModelField::{Named, Unnamed};

/// Declares the table [`ROUTES`], the function [`router`] and the paths of the OpenAPI document. A row has method,
/// path, dialect, whether the body may name a model, kind and handler.
macro_rules! routes {
    (
        documented { $($method:ident $path:literal $dialect:ident $model:ident ($kind:expr) $($handler:ident)::+;)* }
        others { $($other_method:ident $other_path:literal $other_dialect:ident $other_model:ident ($other_kind:expr)
            $($other_handler:ident)::+;)* }
        page { $($page_method:ident $page_path:literal $page_dialect:ident $page_model:ident ($page_kind:expr)
            $($page_handler:ident)::+;)* }
    ) => {
        pub static ROUTES: &[Route] = &[
            $(Route {
                method: Method::$method, path: $path, dialect: $dialect, model: $model, kind: $kind,
                is_documented: true,
            },)*
            $(Route {
                method: Method::$other_method, path: $other_path, dialect: $other_dialect, model: $other_model,
                kind: $other_kind, is_documented: false,
            },)*
            $(Route {
                method: Method::$page_method, path: $page_path, dialect: $page_dialect, model: $page_model,
                kind: $page_kind, is_documented: false,
            },)*
        ];

        /// Returns a router with every route except those of the web page.
        pub fn router() -> Router<Arc<App>> {
            Router::new()
                $(.route($path, on(MethodFilter::$method, $($handler)::+)))*
                $(.route($other_path, on(MethodFilter::$other_method, $($other_handler)::+)))*
        }

        /// Returns a router with the routes of the web page.
        pub fn page_router() -> Router<Arc<App>> {
            Router::new()$(.route($page_path, on(MethodFilter::$page_method, $($page_handler)::+)))*
        }

        /// The document with only what the handlers say.
        #[derive(utoipa::OpenApi)]
        #[openapi(paths($($($handler)::+),*))]
        pub struct Paths;
    };
}

routes! {
    documented {
        POST "/v1/chat/completions" OpenAi Named (Chats(Of("ChatCompletionChunk"))) openai::chat::chat_completions;
        POST "/v1/completions" OpenAi Named (Completes(Of("CompletionResponse"))) openai::completions::completions;
        POST "/v1/chat/completions/render" OpenAi Named (Renders) openai::render::render_chat;
        POST "/v1/completions/render" OpenAi Named (Renders) openai::render::render_completion;
        POST "/infill" OpenAi Named (Completes(Of("InfillResponse"))) llama::infill::infill;
        GET "/v1/models" OpenAi Unnamed (Answers) models::list_models;
        GET "/v1/models/{*id}" OpenAi Unnamed (Answers) models::get_model;
        POST "/v1/models/{*id}" OpenAi Unnamed (Answers) models::manage::manage;
        POST "/v1/load_lora_adapter" OpenAi Unnamed (Answers) adapters::load;
        POST "/v1/unload_lora_adapter" OpenAi Unnamed (Answers) adapters::unload;
        GET "/lora-adapters" Tgi Unnamed (Answers) adapters::list;
        POST "/v1/responses" OpenAi Named (Chats(Mixed)) responses::route::create;
        GET "/v1/responses/{id}" OpenAi Unnamed (Answers) responses::route::get;
        DELETE "/v1/responses/{id}" OpenAi Unnamed (Answers) responses::route::delete;
        POST "/v1/responses/input_tokens" OpenAi Named (Answers) responses::route::input_tokens;
        POST "/v1/responses/{id}/cancel" OpenAi Unnamed (Answers) responses::route::cancel;
        GET "/v1/responses/{id}/input_items" OpenAi Unnamed (Answers) responses::items::input_items;
        GET "/v1/streams" OpenAi Unnamed (Looks) streams::list;
        GET "/v1/streams/{id}" OpenAi Unnamed (Looks) streams::read;
        DELETE "/v1/streams/{id}" OpenAi Unnamed (Looks) streams::delete;
        GET "/v1/history" OpenAi Unnamed (Looks) conversations::list;
        GET "/v1/history/{id}" OpenAi Unnamed (Looks) conversations::get;
        PUT "/v1/history/{id}" OpenAi Unnamed (Answers) conversations::put;
        PATCH "/v1/history/{id}" OpenAi Unnamed (Answers) conversations::patch;
        DELETE "/v1/history/{id}" OpenAi Unnamed (Looks) conversations::delete;
        POST "/v1/messages" Anthropic Named (Chats(Mixed)) anthropic::messages::create;
        POST "/v1/messages/count_tokens" Anthropic Named (Answers) anthropic::messages::count_tokens;
        POST "/generate" Tgi Unnamed (Completes(Of("StreamResponse"))) tgi::generate::generate;
        POST "/generate_stream" Tgi Unnamed (Completes(Never)) tgi::generate::generate_stream;
        POST "/" Tgi Unnamed (Completes(Of("StreamResponse"))) tgi::generate::root;
        GET "/info" Tgi Unnamed (Answers) tgi::info::info;
        POST "/tokenize" Tgi Named (Answers) tgi::tokenize::tokenize;
        POST "/chat_tokenize" Tgi Named (Answers) tgi::tokenize::chat_tokenize;
        POST "/detokenize" Tgi Named (Answers) tgi::detokenize::detokenize;
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
        DELETE "/api/delete" Ollama Named (Answers) ollama::delete::delete;
        GET "/api/version" Ollama Unnamed (Answers) ollama::models::version;
        POST "/v1/embeddings" OpenAi Named (MakesVectors) vectors::embeddings::embeddings;
        POST "/embed" Tgi Unnamed (MakesVectors) vectors::embeddings::embed;
        POST "/v1/rerank" OpenAi Named (MakesVectors) vectors::rerank::rerank;
        POST "/rerank" Tgi Named (MakesVectors) vectors::rerank::rerank_tei;
        POST "/v1/score" OpenAi Named (MakesVectors) vectors::rerank::score;
        POST "/v1/classify" OpenAi Named (MakesVectors) vectors::classify::classify;
        POST "/predict" Tgi Unnamed (MakesVectors) vectors::classify::predict;
        GET "/v1/kv" OpenAi Unnamed (Looks) kv::totals::totals;
        GET "/v1/kv/tree" OpenAi Unnamed (Looks) kv::tree::tree;
        DELETE "/v1/kv/tree/{id}" OpenAi Unnamed (Looks) kv::tree::remove;
        GET "/v1/kv/tree/{id}" OpenAi Unnamed (Looks) kv::node::show;
        POST "/v1/kv/tree/{id}/pin" OpenAi Unnamed (Looks) kv::node::pin;
        DELETE "/v1/kv/tree/{id}/pin" OpenAi Unnamed (Looks) kv::node::unpin;
        GET "/v1/kv/events" OpenAi Unnamed (Looks) kv::events::events;
        GET "/health" Tgi Unnamed (Probes(Required)) operate::health;
        GET "/ping" Tgi Unnamed (Probes(Required)) operate::ping;
        GET "/livez" Tgi Unnamed (Probes(NotRequired)) operate::livez;
        GET "/readyz" Tgi Unnamed (Probes(NotRequired)) operate::readyz;
        GET "/metrics" Tgi Unnamed (Probes(Required)) operate::metrics;
        GET "/v1/usage" OpenAi Unnamed (Looks) usage::usage;
        GET "/v1/steps" OpenAi Unnamed (Answers) steps::steps;
    }
    others {
        POST "/v2/rerank" OpenAi Named (MakesVectors) vectors::rerank::rerank;
        POST "/score" OpenAi Named (MakesVectors) vectors::rerank::score;
        POST "/classify" OpenAi Named (MakesVectors) vectors::classify::classify;
    }
    page {
        GET "/" Tgi Unnamed (Shows) page::root;
        GET "/assets/{file}" Tgi Unnamed (Shows) page::asset;
        GET "/favicon.svg" Tgi Unnamed (Shows) page::icon;
    }
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
        ROUTES.iter().find(|route| {
            route.is_documented && route.method == *method && route.path.replace("{*", "{") == path
        })
    }

    /// Returns the path that a client may have meant whose base URL lacks `/v1` or has it twice, or whose path ends
    /// with a slash.
    pub fn similar_path(path: &str) -> Option<String> {
        let path = path.trim_end_matches('/');
        let meant =
            [Some(path.to_owned()), Some(format!("/v1{path}")), path.strip_prefix("/v1").map(str::to_owned)];
        let exists = |meant: &String| ROUTES.iter().any(|route| route.is_documented && route.path == meant);
        meant.into_iter().flatten().find(exists)
    }

    /// Returns the methods of a path.
    pub fn methods_of(path: &str) -> Vec<&'static str> {
        ROUTES.iter().filter(|route| route.path == path).map(|route| route.method.as_str()).collect()
    }

    /// Returns true if requests need a valid key where keys are configured.
    pub fn needs_key(&self) -> bool {
        !matches!(self.kind, Probes(NotRequired) | Shows)
    }

    /// Returns the operation of its trace in OpenTelemetry's words, or `None` if it has no record.
    pub fn operation(&self) -> Option<&'static str> {
        match self.kind {
            Chats(_) => Some("chat"),
            Completes(_) => Some("text_completion"),
            MakesVectors => Some("embeddings"),
            Renders | Looks | Probes(_) | Shows | Answers => None,
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

impl Dialect {
    /// Returns the dialect of a request's route, or the one of its path if it has matched none.
    pub fn of(request: &Request) -> Self {
        Route::of(request).map_or_else(|| Self::of_path(request.uri().path()), |route| route.dialect)
    }
}
