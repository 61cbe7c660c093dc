//! `memlab serve`: this user's traced processes on this host, as Prometheus metrics and a live page.
//!
//! ```text
//! discovery ──── the processes that listen on a control socket, asked every second
//!     │ traces
//!     ▼
//! feed ───────── the thread of the dashboard, which follows the traces; visited for figures and parts of the page
//!     │
//!     ▼
//! hub ────────── what routes ask for: figures, fragments, moves
//!     │
//!     ▼
//! routes ─────── /metrics, /events, /fragment, /, and who may have them (access)
//!     │
//!     ▼
//! connections ── how many there are, and how long they may take to ask and to read
//! ```
//!
//! One thread, the caller of [`serve`], runs all of HTTP. Nothing is drawn while no page is open.

mod access;
mod connections;
mod discovery;
mod figures;
mod fragment;
mod hub;
mod metrics;
mod page;
mod routes;
mod strip;

pub use self::access::{Access, Token};
pub use self::routes::serve;
