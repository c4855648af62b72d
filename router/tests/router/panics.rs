//! Panics. One in a handler fails its request; one in the driver ends the process.

use axum::body::Body;
use axum::http::Request;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;
use trunkline_router::exit::End;
use trunkline_router::server::observe::observe;

use crate::support::{DEADLINE, Router};

async fn panics() {
    panic!("on purpose");
}

#[tokio::test]
async fn a_panicking_handler_gives_500_in_the_dialects_form() {
    let router = Router::default().await;
    let routes = axum::Router::new()
        .route("/v1/chat/completions", post(panics))
        .route("/v1/messages", post(panics))
        .route("/generate", post(panics))
        .route("/fine", get(|| async { "fine" }))
        .layer(from_fn_with_state(router.app.clone(), observe));
    let send = async |request: Request<Body>| {
        let response = routes.clone().oneshot(request).await.unwrap();
        let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
        (response.status().as_u16(), id, response.into_body().collect().await.unwrap().to_bytes())
    };
    for path in ["/v1/chat/completions", "/v1/messages", "/generate"] {
        let (status, id, body) = send(Request::post(path).body(Body::empty()).unwrap()).await;
        let body: Value = serde_json::from_slice(&body).unwrap();
        // Anthropic's errors have a `type` instead of the code, and TGI's have no `error` object.
        let (code, message) = match path {
            "/v1/chat/completions" => (&body["error"]["code"], &body["error"]["message"]),
            "/v1/messages" => (&body["error"]["type"], &body["error"]["message"]),
            _ => (&body["code"], &body["error"]),
        };
        let wanted = if path == "/v1/messages" { "api_error" } else { "internal_error" };
        assert_eq!((status, code), (500, &json!(wanted)), "{path}: {body}");
        let message = message.as_str().unwrap();
        assert!(message.contains(&id) && !message.contains("on purpose"), "{path}: {message}");
    }
    let (status, _, body) = send(Request::get("/fine").body(Body::empty()).unwrap()).await;
    assert_eq!((status, &body[..]), (200, &b"fine"[..]));
    for (route, method, status) in [("/generate", "POST", 500), ("/fine", "GET", 200)] {
        let labels = format!("{{route=\"{route}\",method=\"{method}\",status=\"{status}\"}}");
        assert_eq!(router.metric(&format!("trunkline_http_requests_total{labels}")).await, 1.0);
    }
}

#[tokio::test]
async fn a_panicking_driver_ends_the_server_with_exit_code_70() {
    let mut router = Router::default().await;
    let asked = router.app.served.driver.ask::<()>(|_, _| panic!("on purpose")).await;
    assert!(asked.is_err());
    let ended = tokio::time::timeout(DEADLINE, &mut router.running).await.expect("the server ends").unwrap();
    let end = End::from(ended.unwrap_err());
    assert_eq!((end.code(), end.line().as_str()), (70, "error: the driving task ended"));
}
