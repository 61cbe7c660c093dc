//! Records of work on the device.

use std::ffi::{CStr, c_char};

use simgpu_observer::{MemoryKind, Submitted, Task};

use crate::records::{CHANNEL_COMPUTE, CHANNEL_COPY, Copy, Fill, GraphTrace, Kernel, PeerCopy, Record, kind};
use crate::timeline::Span;
use crate::{ids, settings};

/// `CUPTI_ACTIVITY_MEMCPY_KIND_PTOP`.
const PEER: u8 = 10;

/// Returns the enabled records of one call's work.
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

/// Returns one record for a whole graph, in place of those of its nodes.
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

/// Returns the record of a piece of work, or `None` if its kind is disabled.
fn record(work: &Submitted, span: Span, correlation: u32) -> Option<Record> {
    match work.task {
        Task::Kernel { name, grid, block, shared, registers, .. } => {
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

#[cfg(test)]
mod tests {
    use simgpu_observer::{Arithmetic, GraphNode, Speeds, UNITS};

    use super::*;

    const SPAN: Span = Span { start: 5, end: 9 };

    fn submitted(task: Task, node: GraphNode) -> Submitted {
        Submitted {
            task,
            device: 0,
            context: 64,
            stream: 0,
            node,
            speeds: Speeds { memory: 1, link: 1, arithmetic: [1; UNITS] },
        }
    }

    fn copy(from: MemoryKind, to: MemoryKind, devices: [u32; 2]) -> Task {
        Task::Copy { from, to, devices, bytes: 100, is_async: true }
    }

    #[test]
    fn the_wanted_kinds_have_records() {
        // GIVEN a copy between devices, one on a device, and two kernels of a graph
        let (name, arithmetic) = (c"k".as_ptr(), Arithmetic::default());
        let kernel = |block| Task::Kernel { name, grid: [1; 3], block, shared: 0, registers: 32, arithmetic };
        let alone = GraphNode::default();
        let mut work = vec![
            (submitted(copy(MemoryKind::Device, MemoryKind::Device, [0, 1]), alone), SPAN),
            (submitted(copy(MemoryKind::Device, MemoryKind::Device, [1, 1]), alone), SPAN),
        ];
        let of_graph = |node| GraphNode { graph: 640, node };
        work.push((submitted(kernel([1; 3]), of_graph(1)), Span { start: 10, end: 20 }));
        work.push((submitted(kernel([2, 1, 1]), of_graph(2)), Span { start: 20, end: 30 }));
        // WHEN nothing is enabled, THEN no records are made
        assert!(records(&work, 3).is_empty());
        // WHEN copies and kernels are enabled, THEN each has a record of its kind and the number of the call
        [kind::MEMCPY, kind::MEMCPY2, kind::CONCURRENT_KERNEL].into_iter().for_each(|kind| settings::want(kind, true));
        let [Record::PeerCopy(peer), Record::Copy(copy), Record::Kernel(first), Record::Kernel(second)] =
            records(&work, 3)[..]
        else {
            panic!("other records");
        };
        assert_eq!((peer.copy_kind, peer.from_device, peer.to_device, peer.correlation), (PEER, 0, 1, 3));
        assert_eq!((copy.copy_kind, copy.bytes, copy.start, copy.end), (8, 100, 5, 9));
        assert_eq!((first.graph, second.graph, first.correlation), (second.graph, first.graph, second.correlation));
        assert!(first.graph != 0 && first.graph_node != second.graph_node && copy.graph == 0);
        // WHEN graphs are enabled as a whole, THEN the graph has one record in place of its nodes
        settings::want(kind::GRAPH_TRACE, true);
        let [Record::PeerCopy(_), Record::Copy(_), Record::GraphTrace(whole)] = records(&work, 3)[..] else {
            panic!("other records");
        };
        assert_eq!((whole.start, whole.end, whole.graph, whole.correlation), (10, 30, first.graph, 3));
    }
}
