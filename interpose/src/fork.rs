//! Resets memlab in a forked child.
//!
//! The child writes nothing until it uses CUDA; then it gets a separate trace.

use crate::compaction;
use crate::control;
use crate::cuda::driver_memory;
use crate::cuda::graph_captures;
use crate::gpu_time;
use crate::limit;
use crate::limit::{card, overhead, settings, spill};
use crate::memory_calls;
use crate::moved_bytes;
use crate::mover::progress;
use crate::packages;
use crate::python::agent;
use crate::ranges;
use crate::recorder;
use crate::torch::expected;
use interpose_base::got_patch;
use interpose_base::log::live;
use interpose_driver::pools;
use interpose_driver::vmm::{arena, captures, contexts, gate, movable_memory, totals};

/// Registers the fork handler.
pub fn watch() {
    // SAFETY: the handler stays loaded: libmemlab is linked with `-z nodelete`.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

/// Runs in the child, whose only thread is the one that forked.
///
/// Each part unlocks locks that another thread may have held, and forgets the parent's state: its trace, its agent, its
/// memory on the cards.
extern "C" fn in_child() {
    recorder::start::reset_in_child();
    compaction::reset_in_child();
    live::reset_in_child();
    control::clients::reset_in_child();
    agent::reset_in_child();
    expected::reset_in_child();
    got_patch::reset_in_child();
    gpu_time::reset_in_child();
    packages::reset_in_child();
    ranges::names::reset_in_child();
    ranges::nvtx::reset_in_child();

    memory_calls::reset_in_child();
    driver_memory::reset_in_child();
    card::reset_in_child();
    settings::reset_in_child();
    limit::calls::reset_in_child();
    overhead::reset_in_child();
    spill::reset_in_child();
    pools::reset_in_child();
    graph_captures::reset_in_child();

    movable_memory::reset_in_child();
    arena::reset_in_child();
    contexts::reset_in_child();
    totals::reset_in_child();
    captures::reset_in_child();
    gate::reset_in_child();
    progress::reset_in_child();
    moved_bytes::reset_in_child();
}
