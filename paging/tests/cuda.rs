//! The CUDA backend on the simulated GPU.
//!
//! Its copies are real and its events are checked, but all work is done when it is submitted. The order that events enforce
//! is tested in `threads.rs` and `schedule.rs`.
//!
//! The scenarios marked as ignored run in separate processes with the simulated driver.

use std::sync::Arc;

use crate::common::model::Model;
use crate::common::{enter, leave};
use memlab_paging::cuda_driver::Device;
use memlab_paging::{Arena, ByteRange, DeviceMemory, Pipeline, Stream, WeightRange};

/// Runs one of the scenarios below on simulated cards, with these environment variables.
fn run_scenario(scenario: &str, variables: &[(&str, &str)]) -> String {
    simgpu_tests::run_scenario(&format!("cuda::{scenario}"), variables)
}

#[test]
fn forwards() {
    run_scenario("scenario_forwards", &[]);
}

#[test]
fn an_arena_pinned_in_chunks() {
    run_scenario("scenario_an_arena_pinned_in_chunks", &[]);
}

#[test]
fn pinning_refused() {
    run_scenario("scenario_pinning_refused", &[("SIMGPU_FAIL", "cuMemHostRegister_v2:2@2+")]);
}

#[test]
fn a_call_that_fails() {
    run_scenario("scenario_a_call_that_fails", &[("SIMGPU_FAIL", "cuMemcpyHtoDAsync:719@6")]);
}

#[test]
fn a_thread_that_has_another_context() {
    run_scenario("scenario_a_thread_that_has_another_context", &[]);
}

#[test]
fn a_captured_forward() {
    run_scenario("scenario_a_captured_forward", &[]);
}

#[test]
fn a_missing_driver_is_reported() {
    // GIVEN no driver, WHEN a device is opened, THEN the error names the library; WHEN memory is pinned, THEN so does the
    // failure.
    if let Err(error) = Device::open(0) {
        assert!(error.to_string().contains("libcuda.so.1"), "{error}");
        let arena = Arena::new(4096).unwrap();
        assert!(!arena.pin(0) && arena.pin_failure().unwrap().contains("libcuda.so.1"));
    }
}

/// Six layers, one of them resident, in a ring for two.
fn six_layers(bytes: u64) -> Model {
    Model {
        bytes: vec![bytes; 6],
        places: vec![Some(0), Some(bytes), None, Some(0), Some(bytes), Some(0)],
        ring_bytes: 2 * bytes,
        points: (0..6).map(|layer| vec![layer]).collect(),
        keys: (0..6).collect(),
        lookahead: None,
        least_piece: 0,
        compute: vec![0; 6],
    }
}

struct Fixture {
    pipeline: Pipeline,
    arena: Arc<Arena>,
    device: DeviceMemory,
    model: Model,
}

impl Fixture {
    fn new(model: Model) -> Self {
        let arena = Arc::new(Arena::new(model.arena_bytes()).unwrap());
        let device = DeviceMemory::new(Some(0), model.device_bytes()).unwrap();
        for (unit, &bytes) in model.bytes.iter().enumerate() {
            let weights = vec![unit as u8 + 1; bytes as usize];
            // SAFETY: the vector outlives the call and is not written to.
            unsafe { arena.fill(model.arena_offset(unit as u32), weights.as_ptr() as u64, bytes) }.unwrap();
        }
        arena.pin(0);
        let pipeline = Pipeline::new(Arc::clone(&arena), Some(0), None).unwrap();
        // SAFETY: the memory is dropped after the pipeline.
        unsafe { pipeline.configure(model.configuration(device.address()), Stream(0)) }.unwrap();
        Self { pipeline, arena, device, model }
    }

    fn assert_is_there(&self, unit: u32) {
        let mut bytes = vec![0; self.model.bytes[unit as usize] as usize];
        self.device.read(self.model.device_offset(unit), &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == unit as u8 + 1), "unit {unit}");
    }

    fn forward(&self, stream: Stream) {
        let mut session = self.pipeline.session();
        for key in 0..6 {
            enter(&mut session, key, stream).unwrap();
            self.assert_is_there(key as u32);
        }
        leave(&mut session, stream).unwrap();
    }
}

#[test]
#[ignore = "run by `forwards`"]
fn scenario_forwards() {
    // GIVEN a model on the device, and a thread without a context
    let fixture = Fixture::new(six_layers(4096));
    assert!(fixture.arena.is_pinned());
    // WHEN forwards run on the default stream and on a stream of the program, THEN each layer finds its weights
    let device = Device::open(0).unwrap();
    let own = {
        let _current = device.make_current().unwrap();
        Stream(device.create_stream().unwrap())
    };
    for stream in [Stream(0), own, Stream(0)] {
        fixture.forward(stream);
    }
    let counters = fixture.pipeline.counters();
    assert_eq!((counters.forwards, counters.on_demand, counters.out_of_order, counters.waits), (3, 0, 0, 0));
    // AND bandwidth and times can be measured.
    fixture.pipeline.set_timed(true);
    fixture.forward(own);
    assert!(fixture.pipeline.timings().unwrap().iter().all(|&ns| ns > 0));
    // SAFETY: the memory belongs to the fixture.
    let bandwidth = unsafe { fixture.pipeline.measure_bandwidth(fixture.device.address(), 8192, own) }.unwrap();
    assert!(bandwidth > 0.0);
    fixture.forward(own);
    fixture.pipeline.synchronize().unwrap();
}

#[test]
#[ignore = "run by `an_arena_pinned_in_chunks`"]
fn scenario_an_arena_pinned_in_chunks() {
    // GIVEN an arena of more than one chunk, and a unit across the border between two
    let chunk = memlab_paging::arena::PIN_GRANULE;
    let arena = Arc::new(Arena::new(chunk + (1 << 20)).unwrap());
    let weights = vec![9u8; 4096];
    // SAFETY: the vector outlives the call and is not written to.
    unsafe { arena.fill(chunk - 2048, weights.as_ptr() as u64, 4096) }.unwrap();
    assert!(!arena.is_pinned() && arena.pin_failure().is_none());
    // WHEN it is pinned, once or twice, THEN all of it is pinned
    assert!(arena.pin(0) && arena.pin(0) && arena.is_pinned());
    // AND the unit is loaded by copies that stay inside the chunks.
    let device = DeviceMemory::new(Some(0), 4096).unwrap();
    let pipeline = Pipeline::new(Arc::clone(&arena), Some(0), None).unwrap();
    let configuration = memlab_paging::Configuration {
        units: vec![vec![WeightRange { arena: ByteRange::new(chunk - 2048, 4096), device_address: device.address() }]],
        placements: vec![None],
        ..Default::default()
    };
    // SAFETY: the memory is dropped after the pipeline.
    unsafe { pipeline.configure(configuration, Stream(0)) }.unwrap();
    let mut bytes = vec![0; 4096];
    device.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, weights);
    // WHEN it is unpinned, THEN forked children inherit it, and it can be pinned again.
    drop(pipeline);
    assert!(!is_inherited(arena.address()));
    arena.unpin();
    assert!(is_inherited(arena.address()) && !arena.is_pinned());
    assert!(arena.pin(0));
}

/// Returns true if a forked child would inherit the memory (`dc` in the kernel's flags: do not copy).
fn is_inherited(address: u64) -> bool {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_here = false;
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let bound = |text| u64::from_str_radix(text, 16).ok();
        if let Some((start, end)) = range.and_then(|(start, end)| Some((bound(start)?, bound(end)?))) {
            is_here = (start..end).contains(&address);
        } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_here) {
            return !flags.split_whitespace().any(|flag| flag == "dc");
        }
    }
    panic!("{address:#x} is not mapped");
}

#[test]
#[ignore = "run by `pinning_refused`"]
fn scenario_pinning_refused() {
    // GIVEN a system that pins one chunk and fails at the second, WHEN an arena of two chunks is pinned, THEN the failure
    // contains a remedy
    let large = Arena::new(memlab_paging::arena::PIN_GRANULE + (1 << 20)).unwrap();
    assert!(!large.pin(0) && !large.is_pinned());
    let refused = large.pin_failure().unwrap();
    assert!(refused.contains("the system pins no more than") && refused.contains("ulimit -l"), "{refused}");
    assert!(refused.contains("cuMemHostRegister_v2 failed with CUDA_ERROR_OUT_OF_MEMORY"), "{refused}");
    // WHEN a model is in an arena without any pinned memory, THEN its forwards are right.
    let fixture = Fixture::new(six_layers(4096));
    assert!(fixture.arena.pin_failure().unwrap().contains("no more than 0 bytes"));
    assert!(fixture.pipeline.session().may_stall());
    fixture.forward(Stream(0));
    fixture.forward(Stream(0));
}

#[test]
#[ignore = "run by `a_call_that_fails`"]
fn scenario_a_call_that_fails() {
    // GIVEN a driver whose sixth copy fails
    let fixture = Fixture::new(six_layers(4096));
    let mut session = fixture.pipeline.session();
    let failed = (0..6).find_map(|key| enter(&mut session, key, Stream(0)).err()).unwrap().to_string();
    // WHEN a forward reaches it, THEN the error contains the call, its error and the operation
    assert!(
        failed.starts_with("cuMemcpyHtoDAsync_v2 failed with CUDA_ERROR_LAUNCH_FAILED, while copying 4.0 KiB"),
        "{failed}"
    );
    assert!(failed.contains("while loading unit"), "{failed}");
    // AND the next forward is right.
    leave(&mut session, Stream(0)).unwrap();
    fixture.forward(Stream(0));
}

#[test]
#[ignore = "run by `a_thread_that_has_another_context`"]
fn scenario_a_thread_that_has_another_context() {
    // GIVEN a thread without a current context, and a thread with one
    let fixture = Fixture::new(six_layers(4096));
    let device = Device::open(0).unwrap();
    // WHEN forwards run on each, THEN the current context is unchanged afterwards.
    fixture.forward(Stream(0));
    assert!(device.push().unwrap(), "no context was current before, and none is now");
    fixture.forward(Stream(0));
    assert!(!device.push().unwrap(), "it was current before, and is now");
    device.pop();
}

/// Looks up a driver function that only this test's captures need.
fn driver_function(name: &std::ffi::CStr) -> *mut std::ffi::c_void {
    // SAFETY: opens a loaded library, and looks up a name.
    let function = unsafe { libc::dlsym(libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!function.is_null(), "{name:?}");
    function
}

type BeginCapture = unsafe extern "C" fn(stream: u64, mode: i32) -> i32;
type EndCapture = unsafe extern "C" fn(stream: u64, graph: *mut u64) -> i32;
type GraphNodes = unsafe extern "C" fn(graph: u64, nodes: *mut u64, count: *mut usize) -> i32;

/// Captures work in the strictest mode.
///
/// Returns the number of nodes in its graph.
fn capture(stream: Stream, work: impl FnOnce()) -> usize {
    let (mut graph, mut nodes) = (0, 0);
    // SAFETY: signatures as in cuda.h; the results are written to locals.
    unsafe {
        let begin: BeginCapture = std::mem::transmute(driver_function(c"cuStreamBeginCapture_v2"));
        let end: EndCapture = std::mem::transmute(driver_function(c"cuStreamEndCapture"));
        let count: GraphNodes = std::mem::transmute(driver_function(c"cuGraphGetNodes"));
        assert_eq!(begin(stream.0, 0), 0);
        work();
        assert_eq!(end(stream.0, &mut graph), 0, "the capture could not be ended");
        assert_eq!(count(graph, std::ptr::null_mut(), &mut nodes), 0);
    }
    nodes
}

#[test]
#[ignore = "run by `a_captured_forward`"]
fn scenario_a_captured_forward() {
    // GIVEN a model that has run
    let fixture = Fixture::new(six_layers(4096));
    let device = Device::open(0).unwrap();
    let _current = device.make_current().unwrap();
    let stream = Stream(device.create_stream().unwrap());
    fixture.forward(stream);
    let before = fixture.pipeline.counters();
    // WHEN forwards are captured, THEN no call is forbidden, all streams are joined, and each graph has one copy per
    // streamed unit
    let mut session = fixture.pipeline.session();
    let mut forward = || {
        (0..6).for_each(|key| drop(enter(&mut session, key, stream).unwrap()));
        assert_eq!(leave(&mut session, stream).unwrap(), [5]);
    };
    assert_eq!(capture(stream, &mut forward), 5);
    assert_eq!(capture(stream, || (0..2).for_each(|_| forward())), 10);
    assert_eq!(fixture.pipeline.counters(), before);
    // AND uncaptured forwards are right again.
    fixture.forward(stream);
    fixture.forward(Stream(0));
    assert_eq!(fixture.pipeline.counters().on_demand, 0);
}
