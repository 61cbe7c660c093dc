//! Memory that the process holds from the driver, and its events in the trace.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use hashbrown::HashMap;
use memlab_trace::record::{DriverKind, Flags};
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;

use super::graph_captures;
use crate::attribution;
use crate::attribution::result::Attribution;
use crate::limit::card::{self, footprint};
use crate::recorder::Recorder;
use crate::recorder::session::{DriverBlock, Session};
use interpose_base::loaded_objects;
use interpose_base::locks;
use interpose_driver::caller;
use interpose_driver::calls;
use interpose_driver::device::{current_device, primary_context};

/// Kind of a handle or pointer: values of different kinds may be equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    Address,
    /// Host memory that was allocated without CUDA.
    Registered,
    Array,
}

impl Space {
    fn of(kind: DriverKind) -> Self {
        match kind {
            DriverKind::Registered => Self::Registered,
            DriverKind::Array => Self::Array,
            _ => Self::Address,
        }
    }
}

#[derive(Clone)]
struct DriverAllocation {
    device: i32,
    bytes: u64,
    kind: DriverKind,
    context: u64,
    call: &'static str,
    library: &'static str,
    attribution: Attribution,
    /// Capture of the CUDA graph for whose pool PyTorch took the memory; 0: none.
    graph: u64,
    /// PyTorch's number of the stream for which it took the memory; 0: the default stream.
    stream: u64,
    /// True if in host memory because the device's limit was reached.
    spilled: bool,
}

/// Memory from `cuMemCreate`.
///
/// It lives until no handle and no mapping refers to it.
struct DriverPhysical {
    allocation: DriverAllocation,
    handles: u32,
    mappings: u32,
}

/// The process's allocations from the driver.
struct DriverMemory {
    live: HashMap<(Space, u64), DriverAllocation, FxBuildHasher>,
    /// Keyed by memlab's number: the driver reuses handle values while mappings still exist.
    physical: HashMap<u64, DriverPhysical, FxBuildHasher>,
    physical_by_handle: HashMap<u64, u64, FxBuildHasher>,
    last_physical: u64,
    /// Call site → name of its library.
    ///
    /// One lookup can take a third of a millisecond.
    libraries: HashMap<usize, &'static str, FxBuildHasher>,
    /// Address → (bytes, physical).
    mappings: BTreeMap<u64, (u64, u64)>,
}

impl DriverMemory {
    const fn new() -> Self {
        Self {
            live: HashMap::with_hasher(FxBuildHasher),
            physical: HashMap::with_hasher(FxBuildHasher),
            physical_by_handle: HashMap::with_hasher(FxBuildHasher),
            last_physical: 0,
            libraries: HashMap::with_hasher(FxBuildHasher),
            mappings: BTreeMap::new(),
        }
    }
}

/// Segments are few and large, so one lock and maps suffice.
///
/// Only hooks wait for each other.
static MEMORY: Mutex<DriverMemory> = Mutex::new(DriverMemory::new());

/// Called in a forked child, which holds nothing on any device.
pub fn reset_in_child() {
    locks::reset_in_child(&MEMORY, DriverMemory::new());
}

/// An allocation removed from the table before the driver is asked to free it.
pub struct PendingFree {
    space: Space,
    address: u64,
    allocation: DriverAllocation,
}

/// Records that the driver allocated memory.
///
/// Called after the real function succeeded; its caller may hold any lock. Returns true if the allocation is in the table:
/// only then is it uncharged when it is freed.
pub fn allocated(kind: DriverKind, address: u64, bytes: u64, call: &'static str, caller: usize) -> bool {
    add(kind, address, bytes, call, caller, false)
}

/// Records memory that spilled to the host beyond its device's limit.
pub fn spilled(kind: DriverKind, address: u64, bytes: u64, call: &'static str, caller: usize) -> bool {
    add(kind, address, bytes, call, caller, true)
}

fn add(kind: DriverKind, address: u64, bytes: u64, call: &'static str, caller: usize, spilled: bool) -> bool {
    let (call, caller) = caller::outermost_call(call, caller);
    if address == 0 {
        return false;
    }
    let Some(mut session) = Recorder::enter() else { return false };
    let device = if is_host(kind) { -1 } else { current_device() };
    let allocation = DriverAllocation { spilled, ..describe(&mut session, device, bytes, kind, call, caller) };
    log_allocated(&session, address, &allocation);
    if spilled {
        card::spilled(device, bytes);
    }
    MEMORY.lock().live.insert((Space::of(kind), address), allocation);
    session.recorder.sampler.driver_memory_changed();
    true
}

/// Records a segment of PyTorch's caching allocator from before memlab was loaded, found by the agent.
pub fn found_segment(device: i32, address: u64, bytes: u64) {
    let Some(session) = Recorder::enter_if_recording() else { return };
    let key = (Space::Address, address);
    if address == 0 || MEMORY.lock().live.contains_key(&key) {
        return; // Allocated after memlab was loaded, and before the agent queried PyTorch.
    }
    session.recorder.define_device(device);
    let attribution = Attribution { flags: Flags::SEGMENT | Flags::BEFORE, ..Attribution::default() };
    let (kind, context) = (DriverKind::Device, primary_context(device));
    let (call, library) = ("cudaMalloc", "libc10_cuda.so");
    let allocation = DriverAllocation {
        device,
        bytes,
        kind,
        context,
        call,
        library,
        attribution,
        graph: 0,
        stream: 0,
        spilled: false,
    };
    log_allocated(&session, address, &allocation);
    MEMORY.lock().live.insert(key, allocation);
    card::taken(device, footprint(kind, bytes));
    session.recorder.sampler.driver_memory_changed();
}

/// Uncharges memory returned to the card or the host: it no longer counts towards a limit.
fn uncharge(allocation: &DriverAllocation) {
    if allocation.spilled {
        card::unspilled(allocation.device, allocation.bytes);
    } else {
        card::released(allocation.device, footprint(allocation.kind, allocation.bytes));
    }
}

/// Removes memory that the driver is about to free.
pub fn freeing(space: Space, address: u64) -> Option<PendingFree> {
    let session = Recorder::enter_if_recording()?;
    let allocation = MEMORY.lock().live.remove(&(space, address))?;
    log_freed(&session, address, &allocation);
    session.recorder.sampler.driver_memory_changed();
    Some(PendingFree { space, address, allocation })
}

/// Records that the driver has freed the memory.
pub fn freed(freed: Option<PendingFree>) {
    if let Some(freed) = freed {
        uncharge(&freed.allocation);
    }
}

/// Name of the library that contains an address; empty if it is not known.
pub fn library_at(address: usize) -> &'static str {
    if Recorder::current().is_none() {
        return "";
    }
    let known = MEMORY.lock().libraries.get(&address).copied();
    known.unwrap_or_else(|| {
        let name: &'static str = loaded_objects::library_of(address).unwrap_or_default().leak();
        MEMORY.lock().libraries.insert(address, name);
        name
    })
}

/// Bytes that the process holds on devices in driver allocations, without memory from `cuMemCreate`.
pub fn held_bytes() -> u64 {
    let memory = MEMORY.lock();
    let on_devices = memory.live.values().filter(|allocation| allocation.kind.on_device());
    on_devices.map(|allocation| allocation.bytes).sum()
}

/// Restores memory that the driver refused to free.
pub fn not_freed(freed: Option<PendingFree>) {
    let (Some(freed), Some(session)) = (freed, Recorder::enter_if_recording()) else { return };
    log_allocated(&session, freed.address, &freed.allocation);
    MEMORY.lock().live.insert((freed.space, freed.address), freed.allocation);
}

/// Records a successful `cuMemCreate`, for a device or for the host.
///
/// `spilled` means in host memory instead of on the device. Returns true if it is in the table.
pub fn created(handle: u64, bytes: u64, device: Option<i32>, spilled: bool, caller: usize) -> bool {
    let Some(mut session) = Recorder::enter() else { return false };
    let (device, kind) = device.map_or((-1, DriverKind::Pinned), |device| (device, DriverKind::Physical));
    let allocation = describe(&mut session, device, bytes, kind, "cuMemCreate", caller);
    if spilled {
        card::spilled(device, bytes);
    }
    add_physical(&session, handle, DriverAllocation { spilled, ..allocation });
    true
}

/// Records another process's memory, opened by its handle.
///
/// The driver does not report its size.
pub fn imported_handle(handle: u64, caller: usize) {
    let Some(mut session) = Recorder::enter() else { return };
    let device = current_device();
    let allocation = describe(&mut session, device, 0, DriverKind::Imported, "cuMemImportFromShareableHandle", caller);
    add_physical(&session, handle, allocation);
}

fn add_physical(session: &Session, handle: u64, allocation: DriverAllocation) {
    let mut memory = MEMORY.lock();
    memory.last_physical += 1;
    let number = memory.last_physical;
    log_allocated(session, number, &allocation);
    memory.physical.insert(number, DriverPhysical { allocation, handles: 1, mappings: 0 });
    memory.physical_by_handle.insert(handle, number);
    session.recorder.sampler.driver_memory_changed();
}

/// Counts one more reference to a handle.
pub fn retained(handle: u64) {
    let Some(_session) = Recorder::enter_if_recording() else { return };
    let memory = &mut *MEMORY.lock();
    if let Some(physical) = memory.physical_by_handle.get(&handle).and_then(|number| memory.physical.get_mut(number)) {
        physical.handles += 1;
    }
}

/// Records that a reference to a handle is about to be dropped.
///
/// Returns true if memlab knows the handle.
pub fn releasing(handle: u64) -> bool {
    let Some(session) = Recorder::enter_if_recording() else { return false };
    let memory = &mut *MEMORY.lock();
    let Some(&number) = memory.physical_by_handle.get(&handle) else { return false };
    if let Some(physical) = memory.physical.get_mut(&number) {
        physical.handles = physical.handles.saturating_sub(1);
    }
    drop_unused(&session, memory, number);
    true
}

pub fn mapped(address: u64, bytes: u64, handle: u64) {
    let Some(session) = Recorder::enter_if_recording() else { return };
    let memory = &mut *MEMORY.lock();
    let Some(&number) = memory.physical_by_handle.get(&handle) else { return };
    let Some(physical) = memory.physical.get_mut(&number) else { return };
    physical.mappings += 1;
    memory.mappings.insert(address, (bytes, number));
    session.driver_mapped(physical.allocation.device, address, bytes, number);
}

pub fn unmapped(address: u64, bytes: u64) {
    let Some(session) = Recorder::enter_if_recording() else { return };
    let memory = &mut *MEMORY.lock();
    let end = address.saturating_add(bytes);
    let gone: Vec<u64> = memory.mappings.range(address..end).map(|(&start, _)| start).collect();
    for start in gone {
        let Some((bytes, number)) = memory.mappings.remove(&start) else { continue };
        let Some(physical) = memory.physical.get_mut(&number) else { continue };
        physical.mappings -= 1;
        session.driver_unmapped(physical.allocation.device, start, bytes);
        drop_unused(&session, memory, number);
    }
}

fn drop_unused(session: &Session, memory: &mut DriverMemory, number: u64) {
    let unused = memory.physical.get(&number).is_some_and(|physical| physical.handles == 0 && physical.mappings == 0);
    if unused && let Some(physical) = memory.physical.remove(&number) {
        memory.physical_by_handle.retain(|_, known| *known != number);
        let allocation = physical.allocation;
        log_freed(session, number, &allocation);
        uncharge(&allocation);
        session.recorder.sampler.driver_memory_changed();
    }
}

/// Forgets all memory allocated in a context that was destroyed.
pub fn context_destroyed(context: u64) {
    let Some(session) = Recorder::enter_if_recording() else { return };
    if context == 0 {
        return;
    }
    let mut memory = MEMORY.lock();
    let gone: Vec<_> = memory.live.extract_if(|_, allocation| allocation.context == context).collect();
    for ((_, address), allocation) in gone {
        log_freed(&session, address, &allocation);
        uncharge(&allocation);
    }
    session.recorder.sampler.driver_memory_changed();
}

fn is_host(kind: DriverKind) -> bool {
    matches!(kind, DriverKind::Pinned | DriverKind::Registered)
}

fn describe(
    session: &mut Session,
    device: i32,
    bytes: u64,
    kind: DriverKind,
    call: &'static str,
    caller: usize,
) -> DriverAllocation {
    if device >= 0 {
        session.recorder.define_device(device);
    }
    let mut attribution = attribution::here(session.recorder, session.thread);
    let library = library_at(caller);
    // PyTorch's caching allocator is the only caller in this library that uses these kinds.
    let segment = matches!(kind, DriverKind::Device | DriverKind::Physical) && library.starts_with("libc10_cuda");
    if segment {
        attribution.flags |= if kind == DriverKind::Device && is_uncached() { Flags::BLOCK } else { Flags::SEGMENT };
    }
    DriverAllocation {
        device,
        bytes,
        kind,
        context: calls::current_context(),
        call,
        library,
        attribution,
        graph: if segment { graph_captures::taking(session.thread.capture) } else { 0 },
        stream: if segment { graph_captures::current_stream(device) } else { 0 },
        spilled: false,
    }
}

/// Returns true if PyTorch's caching allocator is disabled: each block comes straight from the driver, and none is reported.
///
/// Like PyTorch, checks only that the variable is set, and at the same moment: at the first allocation.
fn is_uncached() -> bool {
    static UNCACHED: OnceLock<bool> = OnceLock::new();
    *UNCACHED.get_or_init(|| std::env::var_os("PYTORCH_NO_CUDA_MEMORY_CACHING").is_some())
}

fn log_allocated(session: &Session, address: u64, allocation: &DriverAllocation) {
    let &DriverAllocation { device, bytes, kind, call, library, attribution, graph, stream, .. } = allocation;
    session.driver_allocated(address, &DriverBlock { device, bytes, kind, call, library, attribution, graph, stream });
}

fn log_freed(session: &Session, address: u64, allocation: &DriverAllocation) {
    session.driver_freed(allocation.device, address, allocation.kind);
}
