//! Submission of copies and fills.

use simgpu_observer::{GraphNode, Submitted, Task};

use crate::capture;
use crate::code::Code;
use crate::current::current;
use crate::objects::Work;
use crate::state::DriverState;
use crate::stream_handle;
use crate::submitted;

/// Relation of a call to streams.
#[derive(Clone, Copy)]
pub enum Order {
    /// Complete at return, on the default stream. Forbidden while a capture forbids unsafe calls.
    Synchronous,
    /// On a stream.
    Stream(usize),
}

impl Order {
    /// Returns the stream of the work.
    pub fn stream(self) -> usize {
        match self {
            Order::Synchronous => 0,
            Order::Stream(stream) => stream,
        }
    }

    /// Returns true if the call may return before the work is done.
    pub fn is_async(self) -> bool {
        matches!(self, Order::Stream(_))
    }
}

/// Submits the work: returns true if the caller must execute it now.
pub fn accept(state: &mut DriverState, order: Order, work: Work, task: Task) -> Result<bool, Code> {
    match order {
        Order::Synchronous => {
            current(state)?;
            capture::forbid_unsafe(state)?;
        }
        Order::Stream(stream) => stream_handle::check(state, stream)?,
    }
    capture::submit_task(state, order.stream(), work, Some(task))
}

/// Describes executed work to the observer.
pub fn done(state: &DriverState, order: Order, task: Task) -> Option<Submitted> {
    submitted::on_stream(state, task, order.stream(), GraphNode::default())
}
