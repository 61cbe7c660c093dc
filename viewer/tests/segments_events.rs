//! The memory map and the events: snapshots, and the effects of keys, the mouse and new data.

mod common;

use std::sync::Arc;

use common::{GIB, MIB, Opened, START, Story, hostile};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use memlab_trace::record::{Header, Phase};
use memlab_trace::{BlockView, Category, DeviceView, Segment, SegmentMap};
use memlab_viewer::app::{self, App};
use memlab_viewer::context::ShownMoment;
use memlab_viewer::format::{Units, grouped, percent};
use memlab_viewer::overlays::Overlay;
use memlab_viewer::query::Detail;
use memlab_viewer::screen::Screen;
use memlab_viewer::screens::segments::pieces;
use memlab_viewer::snapshot::{DeviceSnapshot, ProcessSnapshot, Snapshot, State};
use memlab_viewer::theme::{Depth, Palette, Theme};
use memlab_viewer::{export, text};
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 60)];
const BASE: u64 = 0x7f00_0000_0000;
const KIB: u64 = 1024;

/// A program with small segments, a large one with holes, and a completely free one.
fn mapped() -> Story {
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

struct MapBuilder {
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

/// A program that allocates and frees: events of every kind.
fn eventful() -> Story {
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

fn app_on(processes: Vec<ProcessSnapshot>) -> App {
    let mut app = App::new(Theme::new(Palette::Dark, Depth::True, true), "waiting…");
    app.on_tick(START + 2_000_000_000);
    app.on_snapshot(Arc::new(Snapshot { processes, ..Snapshot::default() }));
    app
}

fn on_segments(story: &Story, state: State) -> App {
    let mut app = app_on(vec![story.process_in(state, Detail::Segments)]);
    app.screen = Screen::Segments;
    app
}

fn on_events(story: &Story, state: State) -> App {
    let mut app = app_on(vec![story.process_in(state, Detail::Events)]);
    app.screen = Screen::Events;
    app
}

/// A dashboard on a synthetic map, without a trace.
fn on_map(map: Option<SegmentMap>) -> App {
    let totals = DeviceView { name: "NVIDIA H200".into(), ..DeviceView::default() };
    let device = DeviceSnapshot { totals, segments: map.map(Arc::new), ..DeviceSnapshot::default() };
    let header = Header { start_unix_ns: START, ..Header::default() };
    let process = ProcessSnapshot { header, devices: vec![device], events_read: 1, ..ProcessSnapshot::default() };
    let mut app = app_on(vec![process]);
    app.screen = Screen::Segments;
    app
}

/// A map of segments given as pieces: bytes, and whether they are free.
fn map_of(segments: &[Vec<(u64, bool)>]) -> SegmentMap {
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
                let block = BlockView { address: at, bytes, category, stack: 0, layer: 0, owner: 0, phase, time };
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

fn press(app: &mut App, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '⎋' => KeyCode::Esc,
            '⇟' => KeyCode::PageDown,
            '⇞' => KeyCode::PageUp,
            key => KeyCode::Char(key),
        };
        app.on_key(KeyEvent::new(code, KeyModifiers::NONE));
    }
}

fn terminal(app: &mut App, (columns, rows): (u16, u16)) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a test backend does not fail");
    terminal.draw(|frame| app::draw(frame.buffer_mut(), app)).expect("a test backend does not fail");
    terminal
}

fn screen(app: &mut App) -> String {
    let mut buffer = Buffer::empty(Rect::new(0, 0, 200, 60));
    app::draw(&mut buffer, app);
    export::text_picture(&buffer)
}

fn assert_looks(name: &str, mut make: impl FnMut() -> App) {
    assert_looks_at(name, &SIZES, &mut make);
}

fn assert_looks_at(name: &str, sizes: &[(u16, u16)], mut make: impl FnMut() -> App) {
    insta::with_settings!({ snapshot_path => "screens", prepend_module_to_snapshot => false, omit_expression => true }, {
        for size in sizes {
            let terminal = terminal(&mut make(), *size);
            insta::assert_snapshot!(format!("{name}-{}x{}", size.0, size.1), terminal.backend());
        }
    });
}

const ENDED: State = State::Ended { code: Some(0), signal: None };

#[test]
fn the_map_of_a_running_program() {
    assert_looks("segments-live", || {
        let mut app = on_segments(&mapped(), State::Recording);
        press(&mut app, "jjjlll");
        app
    });
}

#[test]
fn the_map_at_the_end_with_the_cursor_on_a_hole() {
    assert_looks("segments-hole", || {
        let mut app = on_segments(&mapped(), ENDED);
        press(&mut app, "sFF");
        app
    });
}

#[test]
fn blocks_that_match_the_filter_are_highlighted() {
    assert_looks("segments-filtered", || {
        let mut app = on_segments(&mapped(), ENDED);
        press(&mut app, "/layer:h.0.mlp");
        press(&mut app, "\nl");
        app
    });
    // AND the cursor moves from each matching block to the next
    let mut app = on_segments(&mapped(), ENDED);
    app.context.set_filter("size>150MiB");
    let mut seen = Vec::new();
    for _ in 0..6 {
        press(&mut app, "l");
        seen.push(app.segments.selected_piece(&app.context).expect("a block").bytes / MIB);
    }
    assert_eq!(seen, [256, 192, 300, 200, 200, 200]);
    assert_eq!(app.context.notice.as_deref(), Some("no further block passes the filter"));
    press(&mut app, "hhh");
    assert_eq!(app.segments.selected_piece(&app.context).expect("a block").bytes, 256 * MIB);
}

#[test]
fn the_map_without_colours_and_without_unicode() {
    for (name, unicode) in [("segments-mono", true), ("segments-ascii", false)] {
        assert_looks(name, || {
            let mut app = on_segments(&mapped(), ENDED);
            app.context.theme = Theme::new(Palette::Mono, Depth::Ansi, unicode);
            press(&mut app, "jjjl");
            app
        });
    }
}

#[test]
fn a_missing_map_has_a_reason() {
    let size = [(80, 24)];
    assert_looks_at("segments-coming", &size, || on_map(None));
    assert_looks_at("segments-empty", &size, || on_map(Some(SegmentMap::default())));
    assert_looks_at("segments-async", &size, || {
        on_map(Some(SegmentMap { stray_blocks: 12_345, ..SegmentMap::default() }))
    });
}

#[test]
fn a_million_blocks_and_ten_thousand_segments() {
    let many_blocks = || {
        let pieces: Vec<(u64, bool)> = (0..1_000_000u64).map(|index| (512 << (index % 7), index % 13 == 5)).collect();
        on_map(Some(map_of(&[pieces])))
    };
    assert_looks_at("segments-million", &[(120, 40)], many_blocks);
    let many_segments = || {
        let segment = |index: u64| vec![(MIB, index.is_multiple_of(3)), (MIB, false), ((index % 10) * 2 * MIB, true)];
        let mut app = on_map(Some(map_of(&(0..10_000).map(segment).collect::<Vec<_>>())));
        press(&mut app, "G");
        app
    };
    assert_looks_at("segments-many", &[(120, 40)], many_segments);
}

#[test]
fn keys_move_over_the_map() {
    let mut app = on_segments(&mapped(), ENDED);
    screen(&mut app);
    let here = |app: &App| {
        let (index, _) = app.segments.selected_segment(&app.context).expect("a segment");
        let piece = app.segments.selected_piece(&app.context).expect("a piece");
        (index, piece.block.is_some(), piece.bytes / KIB)
    };
    // l goes from piece to piece and on into the next segment, h back
    press(&mut app, "ll");
    assert_eq!(here(&app), (0, true, 200));
    press(&mut app, &"l".repeat(10));
    assert_eq!(here(&app), (1, true, 200));
    press(&mut app, "h");
    assert_eq!(here(&app), (0, false, 348));
    // j and k go from segment to segment, G to the last one
    press(&mut app, "jjj");
    assert_eq!(here(&app), (3, true, 256 * KIB));
    press(&mut app, "G");
    assert_eq!(here(&app), (5, false, 64 * KIB));
    press(&mut app, "g");
    assert_eq!(here(&app), (0, true, 200));
    // f goes from hole to hole by address, and starts again after the last
    let map = app.context.segment_map().expect("it is there").clone();
    let holes = |segment| pieces(segment).filter(|piece| piece.block.is_none()).map(|piece| piece.address);
    let holes: Vec<u64> = map.segments.iter().flat_map(holes).collect();
    for hole in holes.iter().chain([&holes[0]]) {
        press(&mut app, "f");
        assert_eq!(app.segments.selected_piece(&app.context).map(|piece| piece.address), Some(*hole));
    }
    press(&mut app, "g");
    // F goes to the largest hole, then to the next smaller one
    press(&mut app, "F");
    assert_eq!(here(&app), (3, false, 392 * KIB - 4));
    press(&mut app, "F");
    assert_eq!(here(&app), (3, false, 100 * KIB));
    press(&mut app, "F");
    assert_eq!(here(&app), (3, false, 96 * KIB));
    // Enter shows the source of a block, and a notice for a hole
    press(&mut app, "\n");
    assert_eq!((app.context.notice.is_some(), &app.overlay), (true, &None));
    press(&mut app, "l\n");
    assert!(matches!(&app.overlay, Some(Overlay::Source(source)) if source.line.line == Some(58)), "{:?}", app.overlay);
}

#[test]
fn paging_moves_within_a_long_segment() {
    // GIVEN a segment of many pages at the largest zoom, most of it one block
    let mut app = on_map(Some(map_of(&[vec![(MIB, false), (GIB, false), (MIB, false)], vec![(MIB, false)]])));
    screen(&mut app);
    press(&mut app, &"+".repeat(30));
    screen(&mut app);
    // WHEN paging THEN the end is reached, and from there the start
    let mut presses = 0;
    while app.segments.selected_segment(&app.context).expect("a segment").0 == 0 && presses < 200 {
        press(&mut app, "⇟");
        screen(&mut app);
        presses += 1;
    }
    assert!((2..50).contains(&presses), "{presses}");
    for _ in 0..presses + 1 {
        press(&mut app, "⇞");
        screen(&mut app);
    }
    assert_eq!(app.segments.selected_piece(&app.context).expect("a piece").address, BASE);
}

#[test]
fn the_mouse_selects_pieces() {
    let mut app = on_segments(&mapped(), ENDED);
    let picture = screen(&mut app);
    let row = picture.lines().position(|line| line.contains("300 MiB")).expect("a label") as u16;
    let line = picture.lines().nth(usize::from(row)).expect("a row");
    let column = line[..line.find("300 MiB").expect("a label")].chars().count() as u16;
    app.on_mouse(MouseEvent {
        kind: MouseEventKind::Down(MouseButton::Left),
        column,
        row,
        modifiers: KeyModifiers::NONE,
    });
    assert_eq!(app.segments.selected_piece(&app.context).expect("a piece").bytes, 300 * MIB);
}

#[test]
fn the_cursor_stays_when_the_map_changes() {
    // GIVEN the cursor on a block
    let mut app = on_segments(&mapped(), State::Recording);
    press(&mut app, "jjjll");
    let address = app.segments.selected_piece(&app.context).expect("a piece").address;
    // WHEN it and the one before it are freed THEN the cursor is on the resulting hole
    let mut later = mapped();
    later.line(&format!(r#"["f",900000000,1,0,{}]"#, address - 192 * MIB));
    let process = later.process_in(State::Recording, Detail::Segments);
    app.on_snapshot(Arc::new(Snapshot { processes: vec![process], ..Snapshot::default() }));
    let piece = app.segments.selected_piece(&app.context).expect("a piece");
    assert_eq!((piece.block, piece.bytes), (None, 288 * MIB));
    assert!(screen(&mut app).contains("288 MiB free"));
}

#[test]
fn the_map_shows_the_selected_moment() {
    // GIVEN a program that has freed everything
    let mut story = mapped();
    story.free_all();
    story.end("0", "null");
    let mut opened = Opened::new(&[&story]);
    let mut app = app_on(Vec::new());
    app.screen = Screen::Segments;
    // WHEN it is opened THEN the map is that of the peak, with its blocks
    opened.show(&mut app);
    assert_eq!(app.context.moment, ShownMoment::Peak);
    let picture = screen(&mut app);
    assert!(picture.contains("Memory map at the peak") && picture.contains("256 MiB"), "{picture}");
    // AND at the end it has none
    press(&mut app, "p");
    opened.show(&mut app);
    assert!(screen(&mut app).contains("0 B in 0 blocks"));
}

#[test]
fn events_of_a_running_program() {
    assert_looks("events-live", || {
        let mut app = on_events(&eventful(), State::Recording);
        press(&mut app, "jj");
        app
    });
}

#[test]
fn events_at_the_end_filtered() {
    assert_looks("events-filtered", || {
        let mut app = on_events(&eventful(), ENDED);
        app.context.set_filter("kind:free");
        app
    });
}

#[test]
fn events_without_colours_and_without_unicode() {
    for (name, unicode) in [("events-mono", true), ("events-ascii", false)] {
        assert_looks(name, || {
            let mut app = on_events(&eventful(), ENDED);
            app.context.theme = Theme::new(Palette::Mono, Depth::Ansi, unicode);
            app
        });
    }
}

#[test]
fn missing_events_have_a_reason() {
    let mut app = on_map(None);
    app.screen = Screen::Events;
    assert!(screen(&mut app).contains("looking it up"));
    assert_looks_at("events-none", &[(80, 24)], || {
        let mut app = on_events(&eventful(), ENDED);
        app.context.set_filter("nobody");
        app
    });
}

/// The same with `count` more blocks, each a KiB larger.
fn with_more(count: u64) -> Story {
    let mut story = eventful();
    for index in 0..count {
        let time = 800_000_000 + index * 1_000_000;
        story.line(&format!(r#"["a",{time},1,0,{},{},3,11,5]"#, BASE + 8 * GIB + index * MIB, (index + 1) * KIB));
    }
    story
}

fn send(app: &mut App, story: &Story) {
    let process = story.process_in(State::Recording, Detail::Events);
    app.on_snapshot(Arc::new(Snapshot { processes: vec![process], ..Snapshot::default() }));
}

fn selected_number(app: &mut App) -> u64 {
    screen(app);
    app.events.items(&app.context)[app.events.table.selected].event.number
}

#[test]
fn the_newest_event_is_on_top_until_the_cursor_leaves_it() {
    let mut app = on_events(&with_more(5), State::Recording);
    let first = selected_number(&mut app);
    // GIVEN the cursor on the first row WHEN events come THEN it is on the newest
    send(&mut app, &with_more(8));
    assert_eq!(selected_number(&mut app), first + 3);
    assert!(screen(&mut app).contains("newest on top"));
    // GIVEN the cursor on another one WHEN events come THEN it stays there, and so does the screen
    press(&mut app, "jj");
    assert_eq!(selected_number(&mut app), first + 1);
    let row_of = |app: &mut App, words: &str| {
        let picture = screen(app);
        picture.lines().position(|line| line.contains(words)).unwrap_or_else(|| panic!("{picture}"))
    };
    let words = grouped(first + 1);
    press(&mut app, &"j".repeat(3));
    press(&mut app, &"k".repeat(3));
    let before = row_of(&mut app, &words);
    send(&mut app, &with_more(300));
    assert_eq!((selected_number(&mut app), row_of(&mut app, &words)), (first + 1, before));
    // AND it moves from there, also if new events have not been drawn yet
    send(&mut app, &with_more(500));
    press(&mut app, "k");
    assert_eq!(selected_number(&mut app), first + 2);
    // AND after sorting it is still on the same event
    press(&mut app, "S");
    assert_eq!(selected_number(&mut app), first + 2);
    press(&mut app, "S");
    // WHEN it moves back to the top THEN it follows again
    press(&mut app, "g");
    send(&mut app, &with_more(600));
    assert_eq!(selected_number(&mut app), first + 595);
}

#[test]
fn enter_goes_to_the_moment_of_the_event_under_the_cursor() {
    let mut app = on_events(&with_more(20), State::Recording);
    press(&mut app, "jjjj");
    let number = selected_number(&mut app);
    let time = app.events.items(&app.context)[app.events.table.selected].event.time;
    // GIVEN events that came since the last drawing WHEN Enter is pressed THEN the moment is that of the event on the
    // screen
    send(&mut app, &with_more(40));
    press(&mut app, "\n");
    assert_eq!((app.context.moment, app.context.cursor_time()), (ShownMoment::Then, Some(time)));
    assert_eq!(selected_number(&mut app), number);
}

#[test]
fn the_cursor_moves_to_the_oldest_event_when_its_event_is_dropped() {
    let mut app = on_events(&with_more(5), State::Recording);
    press(&mut app, "jjjj");
    let number = selected_number(&mut app);
    send(&mut app, &with_more(6_000));
    let oldest = app.events.items(&app.context).last().expect("events").event.number;
    assert!(oldest > number);
    assert_eq!(selected_number(&mut app), oldest);
    let picture = screen(&mut app);
    assert!(picture.contains("the latest 5,000") && picture.contains("no longer kept"), "{picture}");
}

#[test]
fn hostile_names_and_numbers_cannot_control_the_terminal() {
    for (screen, detail) in [(Screen::Segments, Detail::Segments), (Screen::Events, Detail::Events)] {
        let mut story = hostile();
        let max = u64::MAX;
        story.line(&format!(r#"["d+",5,1,3,{},{max},"device","cudaMalloc","libc10_cuda.so",20,30,128]"#, max - 5));
        story.line(&format!(r#"["d+",5,1,3,0,{},"device","\u001b[2J","libc10_cuda.so",20,30,128]"#, max / 2));
        story.line(&format!(r#"["a",5,1,3,{},{max},20,30,5]"#, max - 3));
        story.line(r#"["a",5,1,3,16384,0,20,30,5]"#);
        story.line(r#"["a",5,1,3,20000,100000,20,30,5]"#);
        story.line(r#"["a",5,1,3,20100,100,20,30,5]"#);
        let mut app = app_on(vec![story.process_in(State::Recording, detail)]);
        app.screen = screen;
        for size in SIZES {
            for keys in ["", "l", "j", "fF", "G", "k", "++++", "h", "⇟"] {
                press(&mut app, keys);
                let terminal = terminal(&mut app, size);
                for cell in &terminal.backend().buffer().content {
                    assert!(!cell.symbol().chars().any(text::is_unsafe), "{:?}", cell.symbol());
                }
            }
        }
    }
}

fn any_app(state: usize) -> App {
    match state {
        0 => on_segments(&mapped(), State::Recording),
        1 => on_events(&eventful(), State::Recording),
        2 => on_map(None),
        3 => on_map(Some(SegmentMap { stray_blocks: 3, ..SegmentMap::default() })),
        4 => app_on(vec![hostile().process_in(State::Recording, Detail::Events)]),
        _ => app_on(vec![hostile().process_in(State::Recording, Detail::Segments)]),
    }
}

#[test]
fn small_screens_do_not_panic() {
    for state in 0..6 {
        let mut app = any_app(state);
        for screen in [Screen::Segments, Screen::Events] {
            app.screen = screen;
            for columns in 1..=50 {
                for rows in 1..=26 {
                    app::draw(&mut Buffer::empty(Rect::new(0, 0, columns, rows)), &mut app);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_size_and_any_keys_do_not_panic(
        state in 0usize..6,
        keys in "[46hjklfsSguGTpd+=0\n⇟⇞ -]{0,14}",
        filter in prop_oneof![Just(""), Just("size>1MiB"), Just("layer:h.0"), Just("!alloc"), Just("nothing")],
        columns in 1u16..260,
        rows in 1u16..90,
    ) {
        let mut app = any_app(state);
        app.context.set_filter(filter);
        for key in keys.chars() {
            press(&mut app, &key.to_string());
            app::draw(&mut Buffer::empty(Rect::new(0, 0, columns, rows)), &mut app);
        }
    }

    #[test]
    fn the_shown_figures_are_those_of_the_model(
        segments in proptest::collection::vec(
            proptest::collection::vec((1u64..4000, any::<bool>()), 1..8), 1..40),
        keys in "[hjklfs]{0,6}",
    ) {
        // GIVEN any map
        let segments: Vec<Vec<(u64, bool)>> =
            segments.iter().map(|pieces| pieces.iter().map(|(kib, free)| (kib * KIB, *free)).collect()).collect();
        let map = map_of(&segments);
        let mut app = on_map(Some(map.clone()));
        app.context.units = Units::Bytes;
        press(&mut app, &keys);
        // WHEN it is drawn THEN the figures are those of the model
        let picture = screen(&mut app);
        let blocks: usize = map.segments.iter().map(|segment| segment.blocks.len()).sum();
        let plural = |count: usize, word: &str| format!("{} {word}{}", grouped(count as u64), if count == 1 { "" } else { "s" });
        let mut facts = vec![
            format!("{} reserved in {}", grouped(map.reserved_bytes), plural(map.segments.len(), "segment")),
            format!("{} in {}", grouped(map.reserved_bytes - map.free_bytes), plural(blocks, "block")),
            format!("{} free, {} of it", grouped(map.free_bytes), percent(map.free_bytes, map.reserved_bytes)),
        ];
        if map.free_bytes > 0 {
            facts.push(format!("{} largest free block", grouped(map.largest_free_bytes)));
        }
        for fact in facts {
            prop_assert!(picture.contains(&fact), "no {fact:?} on\n{picture}");
        }
        // AND the pieces that the cursor can reach sum to the segments
        for segment in &map.segments {
            prop_assert_eq!(pieces(segment).map(|piece| piece.bytes).sum::<u64>(), segment.bytes);
        }
        // AND the margin's sizes sum to the reserved bytes
        let rows: u64 = app.segments.drawn().parts.iter().filter(|(stretch, _)| stretch.from == 0)
            .map(|(stretch, _)| app.segments.in_order(&app.context)[stretch.segment].bytes).sum();
        if app.segments.drawn().layout.rows() <= app.segments.page {
            prop_assert_eq!(rows, map.reserved_bytes);
        }
    }
}
