//! Stories with segments and events, and maps without a trace.

use std::sync::Arc;

use memlab_base::query::Detail;
use memlab_follow::snapshot::{DeviceSnapshot, ProcessSnapshot, ProcessState};
use memlab_trace::record::{Header, Phase};
use memlab_trace::{BlockView, Category, DeviceView, Segment, SegmentMap};
use memlab_tui::app::App;
use memlab_tui::screen::Screen;

use super::dashboard::app_on;
use super::{GIB, MIB, START, Story};

pub const BASE: u64 = 0x7f00_0000_0000;
pub const KIB: u64 = 1024;

/// A program with small segments, a large one with holes, and a completely free one.
pub fn mapped() -> Story {
    let mut story = Story::begin(4242, None);
    story.line(r#"{"thread":1,"name":"python"}"#);
    story.device(0, 141 * GIB);
    let mut builder = MapBuilder { story, time: 0, address: BASE };
    for layer in [11, 12, 21] {
        let at = builder.segment(2 * MIB);
        for block in 0..6 {
            builder.block(at + block * 300 * KIB, 200 * KIB, 3, layer, 5);
        }
    }
    let large = builder.segment(1536 * MIB);
    let mut at = large;
    for (bytes, stack, layer, flags) in [
        (256 * MIB, 1, 0, 64),
        (192 * MIB, 1, 0, 64),
        (96 * MIB, 6, 0, 0),
        (300 * MIB, 3, 11, 5),
        (4 * KIB, 4, 12, 5),
        (100 * MIB, 3, 21, 5),
        (200 * MIB, 4, 22, 18),
    ] {
        builder.block(at, bytes, stack, layer, flags);
        at += bytes;
    }
    builder.free(large + 448 * MIB);
    builder.free(large + 844 * MIB + 4 * KIB);
    let twenty = builder.segment(20 * MIB);
    builder.block(twenty + 12 * MIB, 8 * MIB, 5, 0, 3);
    builder.segment(64 * MIB);
    builder.story
}

pub struct MapBuilder {
    story: Story,
    time: u64,
    address: u64,
}

impl MapBuilder {
    fn pass(&mut self) -> u64 {
        self.time += 12_345_678;
        self.time
    }

    fn segment(&mut self, bytes: u64) -> u64 {
        let (time, address) = (self.pass(), self.address);
        self.address += bytes + 4 * MIB;
        self.story
            .line(&format!(r#"["d+",{time},1,0,{address},{bytes},"device","cudaMalloc","libc10_cuda.so",3,11,133]"#));
        address
    }

    fn block(&mut self, address: u64, bytes: u64, stack: u32, layer: u32, flags: u32) {
        let time = self.pass();
        self.story.line(&format!(r#"["a",{time},1,0,{address},{bytes},{stack},{layer},{flags}]"#));
    }

    fn free(&mut self, address: u64) {
        let time = self.pass();
        self.story.line(&format!(r#"["f",{time},1,0,{address}]"#));
    }
}

/// A program that allocates and frees, with events of every kind.
pub fn eventful() -> Story {
    let mut story = mapped();
    let time = 700_000_000;
    story.line(&format!(r#"["used",{time},0,{},{},{}]"#, 3 * GIB, 141 * GIB, 2 * GIB));
    story.line(&format!(r#"["step",{time},1,0]"#));
    story.line(&format!(r#"["a",{time},1,0,{},{},3,11,5]"#, BASE + 4 * GIB, 5 * MIB));
    story.line(&format!(r#"["f",{},1,0,{}]"#, time + 3_000_000, BASE + 4 * GIB));
    story.line(&format!(r#"["a",{},1,0,{},{},0,0,0]"#, time + 4_000_000, BASE + 4 * GIB, 7 * MIB));
    story.line(&format!(r#"["oom",{},1,0,{},{},{},4,22]"#, time + 5_000_000, 48 * GIB, GIB, 2 * GIB));
    story
}

pub fn on_segments(story: &Story, state: ProcessState) -> App {
    let mut app = app_on(vec![story.process_in(state, Detail::Segments)]);
    app.screen = Screen::Segments;
    app
}

pub fn on_events(story: &Story, state: ProcessState) -> App {
    let mut app = app_on(vec![story.process_in(state, Detail::Events)]);
    app.screen = Screen::Events;
    app
}

/// A dashboard on a synthetic map, without a trace.
pub fn on_map(map: Option<SegmentMap>) -> App {
    let totals = DeviceView { name: "NVIDIA H200".into(), ..DeviceView::default() };
    let device = DeviceSnapshot { totals, segments: map.map(Arc::new), ..DeviceSnapshot::default() };
    let header = Header { start_unix_ns: START, ..Header::default() };
    let process = ProcessSnapshot { header, devices: vec![device], events_read: 1, ..ProcessSnapshot::default() };
    let mut app = app_on(vec![process]);
    app.screen = Screen::Segments;
    app
}

/// A map of segments given as pieces: bytes, and true if free.
pub fn map_of(segments: &[Vec<(u64, bool)>]) -> SegmentMap {
    let mut map = SegmentMap::default();
    let mut address = BASE;
    for pieces in segments {
        let mut segment = Segment { address, ..Segment::default() };
        let mut hole = 0;
        for (index, (bytes, is_free)) in pieces.iter().enumerate() {
            let at = address + segment.bytes;
            segment.bytes += bytes;
            hole = if *is_free { hole + bytes } else { 0 };
            segment.largest_free_bytes = segment.largest_free_bytes.max(hole);
            if *is_free {
                segment.free_bytes += bytes;
            } else {
                let category = Category::ALL[index % 8];
                let time = index as u64 * 1_000_000;
                let (bytes, phase) = (*bytes, Phase::Forward);
                let block =
                    BlockView { address: at, bytes, category, stack: 0, layer: 0, owner: 0, range: 0, phase, time };
                segment.blocks.push(block);
            }
        }
        address += segment.bytes + 512;
        map.reserved_bytes += segment.bytes;
        map.free_bytes += segment.free_bytes;
        map.largest_free_bytes = map.largest_free_bytes.max(segment.largest_free_bytes);
        map.segments.push(segment);
    }
    if map.free_bytes > 0 {
        map.fragmentation_percent = 100.0 * (1.0 - map.largest_free_bytes as f64 / map.free_bytes as f64);
    }
    map
}
