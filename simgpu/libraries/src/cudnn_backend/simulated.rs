//! Backend without a planning cuDNN: descriptors store their attributes, and a heuristic returns one engine for every
//! operation graph.

use std::collections::HashMap;

use crate::cudnn::WORKSPACE;
use simgpu_support::api::{CUDNN_BAD_PARAM, SUCCESS, answer};
use simgpu_support::table::Table;

/// A descriptor: attributes by name, each with its element count and bytes.
#[derive(Clone, Default)]
struct Descriptor {
    attributes: HashMap<i32, (i64, Vec<u8>)>,
}

static DESCRIPTORS: Table<Descriptor> = Table::new();

// cudnnBackendAttributeName_t
const HEURISTIC_GRAPH: i32 = 201;
const HEURISTIC_RESULTS: i32 = 202;
const CONFIGURATION_ENGINE: i32 = 300;
const CONFIGURATION_WORKSPACE: i32 = 303;
const CONFIGURATION_SHARED_MEMORY: i32 = 304;
const PLAN_WORKSPACE: i32 = 402;
const PLAN_JSON: i32 = 405;
const GRAPH_ENGINES: i32 = 802;
const ENGINE_GRAPH: i32 = 1300;
const ENGINE_INDEX: i32 = 1301;

/// Returns the bytes per element of a `cudnnBackendAttributeType_t`.
fn element_bytes(kind: i32) -> usize {
    match kind {
        0 | 3 | 5 | 6 | 15 | 26 => 8, // handle, int64, double, pointer, descriptor, fraction
        2 | 24 => 1,                  // boolean, character
        _ => 4,
    }
}

/// Returns element count and bytes of an attribute that is computed, not set.
fn computed(attribute: i32) -> Option<(i64, Vec<u8>)> {
    let number = |value: i64| Some((1, value.to_ne_bytes().to_vec()));
    match attribute {
        PLAN_WORKSPACE | CONFIGURATION_WORKSPACE => number(WORKSPACE as i64),
        CONFIGURATION_SHARED_MEMORY => Some((1, 1024i32.to_ne_bytes().to_vec())),
        GRAPH_ENGINES => number(1),
        ENGINE_INDEX => number(0),
        PLAN_JSON => Some((3, b"{}\0".to_vec())),
        _ => None,
    }
}

/// Fills the descriptors that the caller created for an attribute.
///
/// # Safety
/// `elements` is null or holds `room` descriptors.
unsafe fn fill(descriptor: usize, attribute: i32, room: i64, count: *mut i64, elements: *const usize) -> i32 {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        answer(count, 1);
        if !elements.is_null() && room >= 1 {
            let graph = DESCRIPTORS.get(descriptor, |own| own.attributes.get(&HEURISTIC_GRAPH).cloned()).flatten();
            let engine = attribute == CONFIGURATION_ENGINE;
            DESCRIPTORS.get(*elements, |result| {
                if let (true, Some(graph)) = (engine, graph) {
                    result.attributes.insert(ENGINE_GRAPH, graph);
                }
            });
        }
    }
    SUCCESS
}

pub fn create(to: *mut usize) -> i32 {
    // SAFETY: the caller of the entry point vouches for the pointer.
    unsafe { answer(to, DESCRIPTORS.add(Descriptor::default())) };
    SUCCESS
}

pub fn destroy(descriptor: usize) -> i32 {
    DESCRIPTORS.remove(descriptor);
    SUCCESS
}

pub fn finalize(descriptor: usize) -> i32 {
    DESCRIPTORS.get(descriptor, |_| SUCCESS).unwrap_or(CUDNN_BAD_PARAM)
}

/// # Safety
/// `elements` is null or holds `count` elements of this kind.
pub unsafe fn set(descriptor: usize, attribute: i32, kind: i32, count: i64, elements: *const u8) -> i32 {
    let bytes = element_bytes(kind) * count.max(0) as usize;
    let value = if elements.is_null() {
        Vec::new()
    } else {
        // SAFETY: the caller vouches for this many bytes.
        unsafe { std::slice::from_raw_parts(elements, bytes) }.to_vec()
    };
    let set = |own: &mut Descriptor| own.attributes.insert(attribute, (count, value));
    DESCRIPTORS.get(descriptor, set).map_or(CUDNN_BAD_PARAM, |_| SUCCESS)
}

/// # Safety
/// `elements` is null or has room for `room` elements of this kind.
pub unsafe fn get(descriptor: usize, attribute: i32, kind: i32, room: i64, count: *mut i64, elements: *mut u8) -> i32 {
    let Some(set) = DESCRIPTORS.get(descriptor, |own| own.attributes.get(&attribute).cloned()) else {
        return CUDNN_BAD_PARAM;
    };
    if matches!(attribute, HEURISTIC_RESULTS | CONFIGURATION_ENGINE) && set.is_none() {
        // SAFETY: as the caller vouches.
        return unsafe { fill(descriptor, attribute, room, count, elements.cast()) };
    }
    let (own, bytes) = set.or_else(|| computed(attribute)).unwrap_or_default();
    // SAFETY: as the caller vouches.
    unsafe { answer(count, own) };
    if !elements.is_null() {
        let fitting = bytes.len().min(element_bytes(kind) * room.max(0) as usize);
        // SAFETY: `fitting` bytes fit.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), elements, fitting) };
    }
    SUCCESS
}
