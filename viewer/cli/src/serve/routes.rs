//! The routes, and the server that answers them.

use std::convert::Infallible;
use std::future::Future;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};

use super::access::{Access, Purpose};
use super::connections;
use super::fragment::FragmentRequest;
use super::hub::{Hub, HubUpdate};
use super::metrics::{self, Format};
use super::page::page;
use memlab_protocol::status::OperationKind;
use memlab_report::page::nonce;
pub use memlab_report::report::live::PagePart;

/// The most pages that receive updates at a time, with the token and without one.
const MAX_OWN_PAGES: usize = 64;
const MAX_GUEST_PAGES: usize = 32;
/// Interval after which an idle connection is written to, so that a dead one is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

struct Server {
    hub: Hub,
    access: Access,
    /// Permits for pages.
    ///
    /// Other users of this machine have no token and cannot use up the owner's permits.
    own_pages: Arc<Semaphore>,
    guest_pages: Arc<Semaphore>,
}

type Shared = State<Arc<Server>>;

/// Serves until `stop` is ready.
///
/// Calls `started` with the number of processes once requests are answered.
///
/// # Errors
///
/// If the system refuses.
pub fn serve(
    listener: TcpListener,
    access: Access,
    started: impl FnOnce(usize, &Access),
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener).context("the listening socket")?;
        let [own_pages, guest_pages] = [MAX_OWN_PAGES, MAX_GUEST_PAGES].map(|places| Arc::new(Semaphore::new(places)));
        let server = Arc::new(Server { hub: Hub::start()?, access, own_pages, guest_pages });
        started(server.hub.count(), &server.access);
        let routes = Router::new()
            .route("/", get(empty_page))
            .route("/metrics", get(all_metrics))
            .route("/events", get(events))
            .route("/fragment/{id}", get(fragment))
            .route("/processes/{id}/offload", post(offload))
            .route("/processes/{id}/restore", post(restore))
            .fallback(unknown)
            .layer(middleware::from_fn_with_state(server.clone(), guard))
            .with_state(server.clone());
        tokio::select! {
            never = connections::answer(&listener, routes) => match never {},
            () = server.hub.tell() => {}
            () = stop => {}
        }
        Ok(())
    })
}

/// Refuses forbidden requests, and adds headers that keep the answers private to this page.
async fn guard(State(server): Shared, request: Request, next: Next) -> Response {
    let purpose = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/") => Purpose::EmptyPage,
        (&Method::GET | &Method::HEAD, _) => Purpose::Read,
        _ => Purpose::Move,
    };
    let mut response = match server.access.check(purpose, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => text_response(refusal.status, &refusal.message),
    };
    if response.status() == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Answers with a sentence.
fn text_response(status: StatusCode, message: &str) -> Response {
    (status, format!("{message}\n")).into_response()
}

async fn unknown() -> Response {
    text_response(StatusCode::NOT_FOUND, "memlab serve has / (the page) and /metrics")
}

async fn empty_page() -> Response {
    let nonce = nonce();
    let policy = format!(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; base-uri \
         'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let headers =
        [(header::CONTENT_TYPE, "text/html; charset=utf-8".to_owned()), (header::CONTENT_SECURITY_POLICY, policy)];
    (headers, page(&nonce)).into_response()
}

async fn all_metrics(State(server): Shared, headers: HeaderMap) -> Response {
    let format = Format::wanted(&headers);
    match metrics::write(server.hub.figures().await, format) {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(error) => text_response(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// Streams updates.
///
/// A slow reader gets only the latest.
async fn events(State(server): Shared, headers: HeaderMap) -> Response {
    let is_owner = server.access.is_owner(&headers);
    let places = if is_owner { &server.own_pages } else { &server.guest_pages };
    let Ok(place) = places.clone().try_acquire_owned() else {
        let next = if is_owner { "close some" } else { "close some, or open the address with the token" };
        return text_response(StatusCode::SERVICE_UNAVAILABLE, &format!("too many pages are open: {next}"));
    };
    // The stream begins with the previous update, unless no page was open to receive it.
    let updates = WatchStream::new(server.hub.updates()).filter(|updates| !updates.strip.is_empty());
    let updates = as_events(updates).map(move |event| {
        let _held_with_the_stream = &place;
        event
    });
    Sse::new(updates).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

fn as_events(updates: impl Stream<Item = Arc<HubUpdate>>) -> impl Stream<Item = Result<Event, Infallible>> {
    updates.filter_map(|updates| Event::default().event("news").json_data(&*updates).ok().map(Ok))
}

/// Parameters of a fragment request.
#[derive(Debug, Deserialize)]
struct FragmentParameters {
    device: Option<i32>,
    part: Option<String>,
    at: Option<String>,
}

async fn fragment(State(server): Shared, Path(id): Path<String>, Query(asked): Query<FragmentParameters>) -> Response {
    let part = asked.part.as_deref().and_then(PagePart::named).unwrap_or_default();
    let at = asked.at.filter(|at| !at.is_empty());
    match server.hub.fragment(FragmentRequest { id, device: asked.device, part, at }).await {
        Ok(fragment) => Json(&*fragment).into_response(),
        Err(message) => text_response(StatusCode::NOT_FOUND, &message),
    }
}

async fn offload(State(server): Shared, Path(id): Path<String>) -> Response {
    order(&server, &id, OperationKind::Offload).await
}

async fn restore(State(server): Shared, Path(id): Path<String>) -> Response {
    order(&server, &id, OperationKind::Restore).await
}

async fn order(server: &Server, id: &str, kind: OperationKind) -> Response {
    match server.hub.order(id, kind).await {
        Ok(()) => text_response(StatusCode::ACCEPTED, "started: the page and `memlab ps` show the progress"),
        Err(message) => text_response(StatusCode::NOT_FOUND, &message),
    }
}
