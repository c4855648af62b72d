//! The middleware around the routes.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use axum::{Extension, Router};

use super::Front;
use super::kept;
use super::observe::observe;
use trunkline_api::app::App;
use trunkline_api::dialect::Errors;
use trunkline_api::openapi;
use trunkline_api::route::{self, Access, Group, Kind, Route};
use trunkline_base::error::ApiError;
use trunkline_base::limits::MAX_HEADER_FIELDS;
use trunkline_base::tenants::{Caller, ClientNetwork, RateSlot};
use trunkline_http::announce_close;
use trunkline_http::browser::{BrowserGuard, Foreign};
use trunkline_http::cors;

fn routes(app: Arc<App>, has_page: bool) -> Router {
    route::router(has_page, openapi::document())
        .route_layer(axum::middleware::from_fn_with_state(app.clone(), kept::keep))
        .route_layer(axum::middleware::from_fn_with_state(app.clone(), admit))
        .fallback(unknown_route)
        .method_not_allowed_fallback(unknown_method)
        // Bodies are limited where they are read, with an error that names the flag.
        .layer(axum::extract::DefaultBodyLimit::disable())
        .layer(axum::middleware::from_fn_with_state(app.clone(), limit_header))
        // Added after the routes and around the fallbacks, so that unknown routes need a key, too.
        .layer(axum::middleware::from_fn_with_state(app.clone(), require_key))
        .layer(axum::middleware::from_fn(announce_close))
        .layer(axum::middleware::from_fn_with_state(app.clone(), observe))
        .with_state(app)
}

/// Returns all routes as `front` has them: it may answer preflight requests of browsers, refuse foreign web pages, and
/// have no page of its own.
pub fn routes_of(app: Arc<App>, front: &Front) -> Router {
    let routes = guarded(routes(app, !front.no_web), front.guard.clone());
    match cors::layer(&front.origins) {
        Some(layer) => routes.layer(layer),
        None => routes,
    }
}

/// Returns the routes of `--metrics-port`: the probes, and metrics without samples of tenants. They need no key.
pub fn metrics_routes(app: Arc<App>, guard: Option<BrowserGuard>) -> Router {
    let routes = Group::OnMetricsPort
        .router()
        .fallback(unknown_route)
        .method_not_allowed_fallback(unknown_method)
        .layer(Extension(Caller::stranger()))
        .layer(axum::middleware::from_fn_with_state(app.clone(), limit_header))
        .layer(axum::middleware::from_fn(announce_close))
        .layer(axum::middleware::from_fn_with_state(app.clone(), observe))
        .with_state(app);
    guarded(routes, guard)
}

fn guarded(routes: Router, guard: Option<BrowserGuard>) -> Router {
    match guard {
        Some(guard) => {
            routes.layer(axum::middleware::from_fn_with_state(Arc::new(guard), refuse_foreign_pages))
        }
        None => routes,
    }
}

/// Refuses a header that is too large, with an error that names the limit. The HTTP library refuses much larger headers
/// before they reach this function.
async fn limit_header(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let uri = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    // On the wire a field has a colon, a space and a line break in addition to its name and value.
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    let num_fields = request.headers().len();
    if num_fields > MAX_HEADER_FIELDS {
        let error = ApiError::HeaderFields { num_fields, limit: MAX_HEADER_FIELDS };
        return Errors::of(&request).response(&error);
    }
    let limit = app.limits.max_header_bytes;
    if uri + fields.sum::<usize>() > limit {
        return Errors::of(&request).response(&ApiError::HeaderTooLarge { limit });
    }
    next.run(request).await
}

/// Refuses requests without a valid key, and stores the caller of the others in their extensions.
async fn require_key(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let errors = Errors::of(&request);
    let needs_key = Route::of(&request).is_none_or(Route::needs_key);
    match app.admission.access.caller(needs_key, request.headers()) {
        Ok(caller) => {
            let caller = caller.from_network(request.extensions().get::<ClientNetwork>().copied());
            let slot = RateSlot::default();
            request.extensions_mut().insert(caller.clone());
            request.extensions_mut().insert(slot.clone());
            let mut response = next.run(request).await;
            response.extensions_mut().insert(caller);
            slot.write(errors.rate_headers(), response.headers_mut());
            response
        }
        Err(error) => errors.response(&error),
    }
}

/// Refuses a caller who is no admin on a route for admins, and charges a request that takes no place to its tenant's
/// rate of requests.
async fn admit(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let Some(route) = Route::of(&request) else { return next.run(request).await };
    let admitted = check_access(&request, route).and_then(|()| match route.kind {
        Kind::Looks => app.admission.charge(&app.served, &request),
        _ => Ok(()),
    });
    match admitted {
        Ok(()) => next.run(request).await,
        Err(error) => route.errors.response(&error),
    }
}

fn check_access(request: &Request, route: &Route) -> Result<(), ApiError> {
    // A method without a row is refused as such.
    let is_for_admins = route.access == Access::Admins && route.method == *request.method();
    if is_for_admins && !Caller::of_request(request)?.is_admin() {
        return Err(ApiError::AdminsOnly { route: route.shown_path() });
    }
    Ok(())
}

/// Refuses requests of web pages that are not this machine's own. Probes are answered.
async fn refuse_foreign_pages(
    State(guard): State<Arc<BrowserGuard>>,
    request: Request,
    next: Next,
) -> Response {
    match guard.check(request.uri(), request.headers()) {
        Err(Foreign { header, value }) if Route::of(&request).is_none_or(Route::needs_key) => {
            let value = value.chars().take(128).collect();
            Errors::of(&request).response(&ApiError::ForeignPage { header, value })
        }
        _ => next.run(request).await,
    }
}

async fn unknown_route(State(_): State<Arc<App>>, request: Request) -> Response {
    let path: String = request.uri().path().chars().take(128).collect();
    let similar = Route::similar_path(&path);
    Errors::of_path(&path).response(&ApiError::UnknownRoute { path, similar })
}

async fn unknown_method(State(_): State<Arc<App>>, request: Request) -> Response {
    let path: String = request.uri().path().chars().take(128).collect();
    let method: String = request.method().as_str().chars().take(32).collect();
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let allowed = route.map(Route::methods_of).unwrap_or_default();
    Errors::of(&request).response(&ApiError::UnknownMethod { path, method, allowed })
}
