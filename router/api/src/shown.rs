//! The handlers that show the OpenAPI document. It is made from the table of routes, which names them, so they get it
//! with the request.

use axum::Extension;
use axum::http::{HeaderMap, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use bytes::Bytes;

use super::page;

/// The OpenAPI document as JSON text.
#[derive(Debug, Clone)]
pub struct Document(pub Bytes);

/// Answers `/openapi.json`.
pub async fn document(Extension(Document(text)): Extension<Document>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], text)
}

/// Answers `/docs`, a page that shows the document.
pub async fn docs() -> impl IntoResponse {
    Html(include_str!("docs.html"))
}

/// Answers `/` of a server without a web page, where a browser gets the page of the document.
pub async fn to_docs(headers: HeaderMap) -> Response {
    if page::accepts_html(&headers) {
        return Redirect::temporary("/docs").into_response();
    }
    page::ollama_runs().into_response()
}
