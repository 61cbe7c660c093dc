//! The memory map.

use std::sync::Arc;

use crate::common::dashboard::{ENDED, app_on, assert_looks, assert_looks_at, press, screen};
use crate::common::map::{BASE, KIB, map_of, mapped, on_map, on_segments};
use crate::common::{GIB, MIB, Opened};
use crossterm::event::{KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use memlab_base::query::Detail;
use memlab_base::theme::{Depth, Palette, Theme};
use memlab_follow::snapshot::{ProcessState, Snapshot};
use memlab_trace::SegmentMap;
use memlab_tui::app::App;
use memlab_tui::context::ShownMoment;
use memlab_tui::overlays::Overlay;
use memlab_tui::screen::Screen;
use memlab_tui::screens::segments::pieces;
use memlab_tui::size_units::Units;
use memlab_units::format::{grouped, percent};
use proptest::prelude::*;

#[test]
fn the_map_of_a_running_program() {
    assert_looks("segments-live", || {
        let mut app = on_segments(&mapped(), ProcessState::Recording);
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
    app.context.set_filter("size>150MiB").unwrap();
    let mut seen = Vec::new();
    for _ in 0..6 {
        press(&mut app, "l");
        seen.push(app.segments.selected_piece(&app.context).expect("a block").bytes / MIB);
    }
    assert_eq!(seen, [256, 192, 300, 200, 200, 200]);
    assert_eq!(app.context.notice.as_deref(), Some("no other block matches the filter"));
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
    // f goes from hole to hole by address, and wraps around after the last
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
    let mut app = on_segments(&mapped(), ProcessState::Recording);
    press(&mut app, "jjjll");
    let address = app.segments.selected_piece(&app.context).expect("a piece").address;
    // WHEN it and the previous block are freed THEN the cursor is on the resulting hole
    let mut later = mapped();
    later.line(&format!(r#"["f",900000000,1,0,{}]"#, address - 192 * MIB));
    let process = later.process_in(ProcessState::Recording, Detail::Segments);
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
    // WHEN it is opened THEN the map shows the peak, with its blocks
    opened.show(&mut app);
    assert_eq!(app.context.moment, ShownMoment::Peak);
    let picture = screen(&mut app);
    assert!(picture.contains("Memory map at the peak") && picture.contains("256 MiB"), "{picture}");
    // AND at the end it has no blocks
    press(&mut app, "p");
    opened.show(&mut app);
    assert!(screen(&mut app).contains("0 B in 0 blocks"));
}

proptest! {
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
        // WHEN it is drawn THEN the figures equal those of the model
        let picture = screen(&mut app);
        let blocks: usize = map.segments.iter().map(|segment| segment.blocks.len()).sum();
        let plural = |count: usize, word: &str| format!("{} {word}{}", grouped(count as u64), if count == 1 { "" } else { "s" });
        let mut facts = vec![
            format!("{} reserved in {}", grouped(map.reserved_bytes), plural(map.segments.len(), "segment")),
            format!("{} in {}", grouped(map.reserved_bytes - map.free_bytes), plural(blocks, "block")),
            format!("{} free, {} of reserved", grouped(map.free_bytes), percent(map.free_bytes, map.reserved_bytes)),
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
