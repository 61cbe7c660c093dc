//! Notices: what a person or a program is told while a recorded program runs, because it ran out of memory, leaks, or
//! leaves little free.

mod command;
mod delivery;
mod notice;
mod options;
mod process_notices;
mod webhook;

pub use delivery::Deliveries;
pub use notice::{Notice, NoticeKind, NoticedProcess};
pub use options::Options;
pub use process_notices::ProcessNotices;
