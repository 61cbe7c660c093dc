//! Connections of `memlab serve`: requests must arrive in time, and answers must be read.
//!
//! Connections without a request make room for others.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// Longest time from the connection, or from the previous answer, until a request is complete.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time in which the peer takes none of the written bytes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Well below the usual limit of 1,024 open files per process.
const MAX_CONNECTIONS: usize = 256;
/// Pause after the system refused a connection for lack of files.
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);

/// A connection, which its task answers.
struct Connection {
    task: AbortHandle,
    /// True once it has sent a request.
    has_asked: Arc<AtomicBool>,
}

/// Answers all connections; never returns.
pub async fn answer(listener: &TcpListener, routes: Router) -> Infallible {
    let mut connections = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) if makes_room(&mut connections) => connections.push_back(begin(stream, &routes)),
            Ok(_) => {}
            Err(error) if is_of_connection(&error) => {}
            Err(_) => tokio::time::sleep(REFUSAL_PAUSE).await,
        }
    }
}

/// Ends the oldest connection without a request if the limit is reached; `false`: all have sent one.
fn makes_room(connections: &mut VecDeque<Connection>) -> bool {
    connections.retain(|connection| !connection.task.is_finished());
    if connections.len() < MAX_CONNECTIONS {
        return true;
    }
    let silent = connections.iter().position(|connection| !connection.has_asked.load(Ordering::Relaxed));
    silent.and_then(|silent| connections.remove(silent)).inspect(|oldest| oldest.task.abort()).is_some()
}

fn begin(stream: TcpStream, routes: &Router) -> Connection {
    let has_asked = Arc::new(AtomicBool::new(false));
    let routes = routes.clone().layer(middleware::from_fn_with_state(has_asked.clone(), note_request));
    let task = tokio::spawn(serve(stream, routes)).abort_handle();
    Connection { task, has_asked }
}

async fn note_request(State(has_asked): State<Arc<AtomicBool>>, request: Request, next: Next) -> Response {
    has_asked.store(true, Ordering::Relaxed);
    next.run(request).await
}

fn serve(stream: TcpStream, routes: Router) -> impl Future<Output = ()> + Send {
    // The kernel then ends the connection. If the kernel is too old for that, only the peer can.
    let _ = set_tcp_user_timeout(&stream, ANSWER_TIMEOUT.as_millis() as u32);
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT);
    let connection = server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    // Errors of a peer that is gone or does not speak HTTP are ignored.
    async { drop(connection.await) }
}

/// Returns true for an error of a single connection, after which others can be accepted at once.
fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
