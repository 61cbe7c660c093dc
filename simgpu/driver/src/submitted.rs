//! Work as reported to an observer.

use simgpu_cards::{Model, Rates};
use simgpu_observer::{GraphNode, MemoryKind, Speeds, Submitted, Task, UNITS, Unit};

use crate::current::current_handle;
use crate::observed::OBSERVER;
use crate::space::Kind;
use crate::state::DriverState;

/// Describes work on a stream, to be reported once the state is unlocked. Returns `None` without an observer.
pub fn on_stream(state: &DriverState, task: Task, stream: usize, node: GraphNode) -> Option<Submitted> {
    OBSERVER.observer()?;
    let context = state.streams.get(&stream).map_or_else(current_handle, |stream| stream.context);
    let model = state.cards.model();
    Some(Submitted {
        task,
        device: state.contexts.get(&context)?.device as u32,
        context,
        stream,
        node,
        speeds: speeds(model),
    })
}

fn speeds(model: &Model) -> Speeds {
    let Rates { single, double, tensor_single, tensor_half, tensor_byte } = model.rates();
    let mut arithmetic = [0; UNITS];
    for (unit, rate) in [
        (Unit::Single, single),
        (Unit::Double, double),
        (Unit::TensorSingle, tensor_single),
        (Unit::TensorHalf, tensor_half),
        (Unit::TensorByte, tensor_byte),
    ] {
        arithmetic[unit as usize] = rate;
    }
    Speeds { memory: model.memory_bandwidth(), link: model.link_bandwidth(), arithmetic }
}

/// Reports work. Must not be called with the state locked: the observer can call the program.
pub fn notify(work: impl IntoIterator<Item = Submitted>) {
    work.into_iter().for_each(|work| OBSERVER.submit(&work));
}

/// Describes a copy between two addresses.
pub fn copy(state: &DriverState, to: u64, from: u64, bytes: u64, is_async: bool) -> Task {
    let side = |address| match state.space.find(address) {
        None => (MemoryKind::Pageable, 0),
        Some(block) if block.is_host() => (MemoryKind::Pinned, 0),
        Some(block) if block.kind == Kind::Managed => (MemoryKind::Managed, block.device as u32),
        Some(block) => (MemoryKind::Device, block.device as u32),
    };
    let ((from, from_device), (to, to_device)) = (side(from), side(to));
    Task::Copy { from, to, devices: [from_device, to_device], bytes, is_async }
}
