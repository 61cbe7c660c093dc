//! CUDA graphs of PyTorch that are being captured.
//!
//! PyTorch's allocator takes memory for their private pools.
//!
//! While a graph is captured, the allocator queries the runtime before each request: does the request's stream belong to a
//! capture, and to which number? The thread's latest answer decides whether its next segment is for the graph's pool.

use hashbrown::HashMap;
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;

use interpose_base::locks;
use interpose_base::symbols::Real;

/// A CUDA graph.
#[derive(Clone, Copy)]
pub struct Graph {
    /// The driver's number of the graph's capture.
    pub capture: u64,
    pub device: i32,
    is_captured: bool,
}

/// Graphs by the address of PyTorch's object.
static GRAPHS: Mutex<HashMap<usize, Graph, FxBuildHasher>> = Mutex::new(HashMap::with_hasher(FxBuildHasher));

/// Capture state of a thread.
///
/// Zero means none.
#[derive(Clone, Copy, Default)]
pub struct ThreadCapture {
    /// Capture of the stream in the thread's latest query; 0 if it was not being captured.
    pub answer: u64,
}

/// Records that PyTorch has begun to capture a graph.
pub fn begun(object: usize, capture: u64, device: i32) {
    GRAPHS.lock().insert(object, Graph { capture, device, is_captured: false });
}

/// Records that the capture of a graph is about to end.
pub fn ending(object: usize) -> Option<Graph> {
    let mut graphs = GRAPHS.lock();
    let graph = graphs.get_mut(&object).filter(|graph| !graph.is_captured)?;
    graph.is_captured = true;
    Some(*graph)
}

/// Forgets a graph that the program releases.
pub fn remove(object: usize) -> Option<Graph> {
    GRAPHS.lock().remove(&object)
}

/// `c10::cuda::CUDAStream`, which is returned in two registers.
#[repr(C)]
struct Stream {
    device: u64,
    number: u64,
}

static CURRENT_STREAM: Real<unsafe extern "C-unwind" fn(i8) -> Stream> =
    Real::in_library(c"libc10_cuda.so", c"_ZN3c104cuda20getCurrentCUDAStreamEa");

/// PyTorch's number of the thread's stream on a device, for which its allocator takes memory.
///
/// 0 is the default stream, or unknown.
pub fn current_stream(device: i32) -> u64 {
    let (Some(current), Ok(device)) = (CURRENT_STREAM.get(), i8::try_from(device)) else { return 0 };
    // SAFETY: PyTorch's own function, which its allocator has called for the request that needs memory: it reads a variable of
    // the thread, and throws for a device only that does not exist.
    unsafe { current(device) }.number
}

/// Capture for whose pool the thread takes memory from the driver; 0: none.
pub fn taking(thread: ThreadCapture) -> u64 {
    let is_under_way = |graph: &Graph| graph.capture == thread.answer && !graph.is_captured;
    if thread.answer != 0 && GRAPHS.lock().values().any(is_under_way) { thread.answer } else { 0 }
}

pub fn reset_in_child() {
    locks::reset_in_child(&GRAPHS, HashMap::with_hasher(FxBuildHasher));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_graphs_while_it_is_captured() {
        // GIVEN a graph whose capture has number 7
        begun(0x1000, 7, 0);
        let [inside, beside] = [7, 0].map(|answer| ThreadCapture { answer });
        // THEN memory that its stream takes is for its pool, and memory that another stream takes is not
        assert_eq!((taking(inside), taking(beside)), (7, 0));
        // AND after its end no memory is for the pool, though the thread made no further query
        assert_eq!(ending(0x1000).map(|graph| graph.capture), Some(7));
        assert_eq!(taking(inside), 0);
        assert!(ending(0x1000).is_none());
        // AND it can be removed once
        assert!(remove(0x1000).is_some() && remove(0x1000).is_none());
    }
}
