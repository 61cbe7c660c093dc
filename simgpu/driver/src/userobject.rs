//! User objects: resources that a graph keeps alive, with a destructor for the last reference.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use crate::api::{answer, api};
use crate::code::Code;
use crate::objects::References;
use crate::state::state;

struct Object {
    data: usize,
    destroy: extern "C" fn(*mut c_void),
    references: u32,
}

static OBJECTS: Mutex<Option<HashMap<usize, Object>>> = Mutex::new(None);

fn with<R>(body: impl FnOnce(&mut HashMap<usize, Object>) -> R) -> R {
    let mut objects = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
    body(objects.get_or_insert_default())
}

fn retain(object: usize, count: u32) -> Result<(), Code> {
    with(|objects| objects.get_mut(&object).map(|object| object.references += count).ok_or(Code::INVALID_VALUE))
}

/// Drops references; the destructor runs without the lock.
fn release(object: usize, count: u32) -> Result<(), Code> {
    let dead = with(|objects| {
        let known = objects.get_mut(&object).ok_or(Code::INVALID_VALUE)?;
        known.references = known.references.saturating_sub(count);
        Ok(if known.references == 0 { objects.remove(&object) } else { None })
    })?;
    if let Some(dead) = dead {
        (dead.destroy)(dead.data as *mut c_void);
    }
    Ok(())
}

/// Adds references to all objects that a graph references.
pub fn retain_all(references: &References) {
    for (object, count) in references {
        retain(*object, *count).ok();
    }
}

/// Drops all references of a graph.
pub fn release_all(references: References) {
    for (object, count) in references {
        release(object, count).ok();
    }
}

api! {
    fn cuUserObjectCreate(
        object: *mut usize, data: *mut c_void, destroy: extern "C" fn(*mut c_void), references: u32, _flags: u32,
    ) {
        let handle = state()?.new_handle();
        with(|objects| objects.insert(handle, Object { data: data as usize, destroy, references }));
        answer(object, handle)?;
    }

    fn cuUserObjectRetain(object: usize, count: u32) {
        retain(object, count)?;
    }

    fn cuUserObjectRelease(object: usize, count: u32) {
        release(object, count)?;
    }

    fn cuGraphRetainUserObject(graph: usize, object: usize, count: u32, flags: u32) {
        const MOVE: u32 = 1; // CU_GRAPH_USER_OBJECT_MOVE: the caller's references become the graph's
        let mut state = state()?;
        let graph = state.graphs.get_mut(&graph).ok_or(Code::INVALID_VALUE)?;
        if flags & MOVE == 0 {
            retain(object, count)?;
        }
        graph.objects.push((object, count));
    }

    fn cuGraphReleaseUserObject(graph: usize, object: usize, count: u32) {
        let mut held = state()?;
        let graph = held.graphs.get_mut(&graph).ok_or(Code::INVALID_VALUE)?;
        let index = graph.objects.iter().position(|(known, _)| *known == object).ok_or(Code::INVALID_VALUE)?;
        graph.objects.swap_remove(index);
        drop(held);
        release(object, count)?;
    }
}
