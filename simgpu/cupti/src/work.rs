//! The records of work on the device.

use std::ffi::{CStr, c_char};

use simgpu_observer::{MemoryKind, Submitted, Task};

use crate::records::{CHANNEL_COMPUTE, CHANNEL_COPY, Copy, Fill, GraphTrace, Kernel, PeerCopy, Record, kind};
use crate::timeline::Span;
use crate::{ids, settings};

/// `CUPTI_ACTIVITY_MEMCPY_KIND_PTOP`.
const PEER: u8 = 10;

/// The records of the work of one call that are wanted.
pub fn records(work: &[(Submitted, Span)], correlation: u32) -> Vec<Record> {
    let of_a_graph = |(work, _): &&(Submitted, Span)| work.node.graph != 0;
    let graph_wanted = settings::is_wanted(kind::GRAPH_TRACE);
    let graph = work.iter().find(of_a_graph).filter(|_| graph_wanted).map(|(first, _)| {
        let spans = || work.iter().filter(of_a_graph).map(|(_, span)| span);
        let start = spans().map(|span| span.start).min().unwrap_or(0);
        let end = spans().map(|span| span.end).max().unwrap_or(0);
        graph_trace(first, Span { start, end }, correlation)
    });
    let single = work.iter().filter(|(work, _)| !graph_wanted || work.node.graph == 0);
    let mut records: Vec<Record> = single.filter_map(|(work, span)| record(work, *span, correlation)).collect();
    records.extend(graph);
    records
}

/// One record for all of a graph: it takes the place of those of its nodes.
fn graph_trace(work: &Submitted, span: Span, correlation: u32) -> Record {
    let context = ids::context(work.context);
    Record::GraphTrace(GraphTrace {
        kind: kind::GRAPH_TRACE,
        correlation,
        start: span.start,
        end: span.end,
        device: work.device,
        graph: ids::graph(work.node.graph),
        context,
        stream: ids::stream(work.stream),
        reserved: 0,
        end_device: work.device,
        end_context: context,
    })
}

/// The record of a piece of work; None if such are not wanted.
fn record(work: &Submitted, span: Span, correlation: u32) -> Option<Record> {
    match work.task {
        Task::Kernel { name, grid, block, shared, registers } => {
            let kind = [kind::CONCURRENT_KERNEL, kind::KERNEL].into_iter().find(|kind| settings::is_wanted(*kind))?;
            // SAFETY: the driver keeps the names of its functions.
            let name = ids::name(unsafe { CStr::from_ptr(name) }).as_ptr();
            Some(Record::Kernel(kernel(work, span, correlation, (kind, name, grid, block, shared, registers))))
        }
        Task::Copy { from, to, devices, bytes, is_async } if is_between_devices(from, to, devices) => {
            let kind = Some(kind::MEMCPY2).filter(|kind| settings::is_wanted(*kind))?;
            let context = ids::context(work.context);
            Some(Record::PeerCopy(PeerCopy {
                kind,
                copy_kind: PEER,
                from: from as u8,
                to: to as u8,
                flags: is_async.into(),
                bytes,
                start: span.start,
                end: span.end,
                device: work.device,
                context,
                stream: ids::stream(work.stream),
                from_device: devices[0],
                from_context: context,
                to_device: devices[1],
                to_context: context,
                correlation,
                reserved: 0,
                graph_node: ids::node(work.node.node),
                graph: ids::graph(work.node.graph),
                channel: 0,
                channel_type: [CHANNEL_COPY, 0],
            }))
        }
        Task::Copy { from, to, bytes, is_async, .. } => {
            let kind = Some(kind::MEMCPY).filter(|kind| settings::is_wanted(*kind))?;
            Some(Record::Copy(Copy {
                kind,
                copy_kind: copy_kind(from, to),
                from: from as u8,
                to: to as u8,
                flags: is_async.into(),
                bytes,
                start: span.start,
                end: span.end,
                device: work.device,
                context: ids::context(work.context),
                stream: ids::stream(work.stream),
                correlation,
                runtime_correlation: [0; 2],
                reserved: 0,
                graph_node: ids::node(work.node.node),
                graph: ids::graph(work.node.graph),
                channel: 0,
                channel_type: CHANNEL_COPY,
                device_launched: 0,
                copies: 1,
            }))
        }
        Task::Fill { bytes, value, is_async } => {
            let kind = Some(kind::MEMSET).filter(|kind| settings::is_wanted(*kind))?;
            Some(Record::Fill(Fill {
                kind,
                value,
                bytes,
                start: span.start,
                end: span.end,
                device: work.device,
                context: ids::context(work.context),
                stream: ids::stream(work.stream),
                correlation,
                flags: is_async.into(),
                memory: MemoryKind::Device as u16,
                pad: 0,
                reserved: 0,
                graph_node: ids::node(work.node.node),
                graph: ids::graph(work.node.graph),
                channel: 0,
                channel_type: CHANNEL_COMPUTE,
                device_launched: 0,
            }))
        }
    }
}

/// Kind of the record, name, grid, block, dynamic shared memory, registers.
type Launch = (u32, *const c_char, [u32; 3], [u32; 3], u32, u32);

fn kernel(work: &Submitted, span: Span, correlation: u32, launch: Launch) -> Kernel {
    let (kind, name, grid, block, shared, registers) = launch;
    Kernel {
        kind,
        cache: [0; 2],
        registers: registers as u16,
        partitioned_cache: [0; 2],
        start: span.start,
        end: span.end,
        completed: span.end,
        device: work.device,
        context: ids::context(work.context),
        stream: ids::stream(work.stream),
        grid,
        block,
        static_shared: 0,
        dynamic_shared: shared,
        local: [0; 2],
        correlation,
        grid_id: correlation.into(),
        name,
        reserved: 0,
        queued: 0,
        submitted: 0,
        launch: [0; 4],
        shared_executed: shared,
        graph_node: ids::node(work.node.node),
        shared_limit: 0,
        graph: ids::graph(work.node.graph),
        access_policy: 0,
        channel: 0,
        channel_type: CHANNEL_COMPUTE,
        cluster: [0; 4],
        local_total: 0,
        clusters: [0; 2],
        device_launched: 0,
        priority: [0; 2],
    }
}

fn is_host(kind: MemoryKind) -> bool {
    matches!(kind, MemoryKind::Pageable | MemoryKind::Pinned)
}

fn is_between_devices(from: MemoryKind, to: MemoryKind, devices: [u32; 2]) -> bool {
    !is_host(from) && !is_host(to) && devices[0] != devices[1]
}

/// `CUpti_ActivityMemcpyKind`.
fn copy_kind(from: MemoryKind, to: MemoryKind) -> u8 {
    match (is_host(from), is_host(to)) {
        (true, true) => 9,
        (true, false) => 1,
        (false, true) => 2,
        (false, false) => 8,
    }
}
