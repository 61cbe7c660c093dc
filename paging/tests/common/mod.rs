//! Helpers for the pipeline tests.
#![allow(dead_code)]

pub mod clock;
pub mod model;

use memlab_paging::pipeline::no_lock_held;
use memlab_paging::{Result, Session, Stream};

/// Enters without holding a lock.
///
/// Returns the released and the acquired units.
pub fn enter(session: &mut Session, key: i64, stream: Stream) -> Result<Option<(Vec<u32>, Vec<u32>)>> {
    let change = session.enter(key, stream, &mut no_lock_held)?;
    Ok(change.map(|change| (change.released.to_vec(), change.acquired.to_vec())))
}

pub fn leave(session: &mut Session, stream: Stream) -> Result<Vec<u32>> {
    Ok(session.leave(stream)?.to_vec())
}
