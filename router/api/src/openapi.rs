//! The OpenAPI document of all routes.

use std::sync::LazyLock;

use axum::http::Method;
use bytes::Bytes;
use trunkline_contract::{RequestNumbers, range};
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{Object, Schema, SchemaType, Type};
use utoipa::openapi::{Content, Ref, RefOr, ResponseBuilder};
use utoipa::{Modify, Number, OpenApi};

use super::dialect::{Dialect, Errors};
use super::route::{Access, Events, Kind, ModelField, Paths, Route};
use super::shown::Document;
use super::{models, openai, tgi};
use trunkline_http::StreamForm;

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
        description = "Large language models over the HTTP APIs of OpenAI, Anthropic, TGI and Ollama.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    components(schemas(
        openai::Chunk<'_>,
        openai::StopReason,
        tgi::StreamAnswer,
        models::anthropic::ModelInfo,
        models::anthropic::ModelPage
    )),
    modifiers(&AllPaths, &CommonAnswers, &SamplingRows)
)]
pub struct ApiDoc;

/// The document, built once.
static DOCUMENT: LazyLock<utoipa::openapi::OpenApi> = LazyLock::new(ApiDoc::openapi);
/// The document as JSON text, which all answers share. Serializing it cannot fail, because its parts are JSON.
static TEXT: LazyLock<Bytes> = LazyLock::new(|| serde_json::to_vec(&*DOCUMENT).unwrap_or_default().into());

pub fn document() -> Document {
    Document(TEXT.clone())
}

/// Adds what the handlers of the table of routes say.
struct AllPaths;

impl Modify for AllPaths {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        document.merge(Paths::openapi());
    }
}

/// Adds what the table says of an operation: its dialect, event streams, and errors of keys, bodies and models.
struct CommonAnswers;

impl Modify for CommonAnswers {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        for (path, item) in &mut document.paths.paths {
            let operations = [
                (Method::GET, &mut item.get),
                (Method::POST, &mut item.post),
                (Method::PUT, &mut item.put),
                (Method::PATCH, &mut item.patch),
                (Method::DELETE, &mut item.delete),
            ];
            for (method, operation) in operations {
                if let (Some(operation), Some(route)) = (operation, Route::documented(path, &method)) {
                    complete(route, operation);
                }
            }
        }
    }
}

/// Adds range and default of each sampling parameter to the requests that have it, and who sets the default: the
/// `model`, if it names one, or the `server`.
struct SamplingRows;

impl Modify for SamplingRows {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let schemas = document.components.iter_mut().flat_map(|components| components.schemas.values_mut());
        for schema in schemas {
            let RefOr::T(Schema::Object(Object { properties, .. })) = schema else { continue };
            for (name, range, default, of_model) in RequestNumbers::ROWS {
                let Some(RefOr::T(Schema::Object(field))) = properties.get_mut(*name) else { continue };
                // In answers the fields are numbers that are always there.
                let SchemaType::Array(types) = &field.schema_type else { continue };
                if !types.contains(&Type::Null) {
                    continue;
                }
                let set_by = if of_model.is_empty() { "server" } else { "model" };
                field.extensions = Some([("x-default-set-by", set_by)].into_iter().collect());
                if types.contains(&Type::Integer) {
                    field.default = Some((*default as i64).into());
                    field.minimum = Some(Number::Int(*range.start() as isize));
                    continue;
                }
                field.default = Some(digits(*default).into());
                field.maximum = Some(number(*range.end()));
                if range::is_above_zero(range) || field.exclusive_minimum.is_some() {
                    field.exclusive_minimum = Some(number(0.0));
                } else {
                    field.minimum = Some(number(*range.start()));
                }
            }
        }
    }
}

fn number(bound: f32) -> Number {
    Number::Float(digits(bound))
}

/// Returns the number that the shortest digits of `number` denote.
fn digits(number: f32) -> f64 {
    number.to_string().parse().expect("a number's own digits")
}

fn complete(route: &Route, operation: &mut Operation) {
    let errors = route.errors;
    operation.tags = Some(vec![route.dialect.name().to_owned()]);
    if route.needs_key() {
        add(operation, errors, "401", "API keys are configured, and the request has no valid one");
    }
    if route.access == Access::Admins {
        add(operation, errors, "403", "The caller is no admin");
    }
    if operation.request_body.is_some() {
        for (status, description) in WITH_BODY {
            add(operation, errors, status, description);
        }
        if route.model == ModelField::Named {
            add(operation, errors, "404", "The model is not served");
        }
    }
    if route.kind == Kind::Looks {
        add(operation, errors, "429", "The tenant has reached its rate of requests");
    }
    if matches!(route.kind, Kind::Chats(_) | Kind::Completes(_) | Kind::MakesVectors) {
        add(operation, errors, "503", "The server is not ready or is draining");
    }
    if operation.responses.responses.contains_key("503") && operation.request_body.is_some() {
        add(operation, errors, "504", "The request timed out");
        let lost = if errors == Errors::Tgi { "424" } else { "502" };
        add(operation, errors, lost, "The shard disconnected or failed the request");
    }
    if route.kind == Kind::Renders {
        add(operation, errors, "503", "The model is loading, or the server is draining");
    }
    let schema = match route.events() {
        Events::Never => return,
        Events::Mixed => None,
        Events::Of(schema) => Some(schema),
    };
    if let Some(RefOr::T(answer)) = operation.responses.responses.get_mut("200") {
        let content = Content::new(schema.map(Ref::from_schema_name));
        let form = if route.dialect == Dialect::Ollama { StreamForm::Lines } else { StreamForm::Events };
        answer.content.insert(form.content_type().to_owned(), content);
    }
}

/// Adds an error response unless the handler documents that status itself.
fn add(operation: &mut Operation, errors: Errors, status: &str, description: &str) {
    operation.responses.responses.entry(status.to_owned()).or_insert_with(|| {
        let content = Content::new(Some(Ref::from_schema_name(errors.schema())));
        ResponseBuilder::new().description(description).content("application/json", content).build().into()
    });
}
