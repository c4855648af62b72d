//! A bare axum loop that only streams the same events as the router. It shows the highest rate that a server can reach
//! on this machine.

use std::convert::Infallible;

use axum::Json;
use axum::response::IntoResponse;
use axum::response::sse::{Event, Sse};
use axum::routing::post;
use serde_json::Value;

use crate::client::Api;

/// An event of the router, with the same bytes except for id and time.
const CHUNK: &str = concat!(
    r#"{"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1767225600,"#,
    r#""model":"HuggingFaceTB/SmolLM2-135M-Instruct","system_fingerprint":"trunkline-0.1.0-0123456789ab","#,
    r#""choices":[{"index":0,"delta":{"content":"x"},"logprobs":null,"finish_reason":null}]}"#,
);

/// Prints the address to standard error and serves until the process is killed.
pub fn serve() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        eprintln!("bare loop address=http://{}", listener.local_addr()?);
        let routes = axum::Router::new().route("/v1/chat/completions", post(answer));
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let service = hyper_util::service::TowerToHyperService::new(routes.clone());
            let io = hyper_util::rt::TokioIo::new(stream);
            // A client that disconnects ends only its connection.
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(io, service));
        }
    })
}

async fn answer(Json(request): Json<Value>) -> impl IntoResponse {
    let tokens = request["max_tokens"].as_u64().unwrap_or(0);
    let events =
        (0..tokens + Api::Chat.num_empty()).map(|_| Ok::<_, Infallible>(Event::default().data(CHUNK)));
    Sse::new(futures::stream::iter(events))
}
