//! Arbitrary names, sizes, keys and figures on the memory map and the events.

use crate::common::dashboard::{SIZES, app_on, press, terminal};
use crate::common::hostile;
use crate::common::map::{eventful, mapped, on_events, on_map, on_segments};
use memlab_base::query::Detail;
use memlab_base::text;
use memlab_follow::snapshot::ProcessState;
use memlab_trace::SegmentMap;
use memlab_tui::app::{self, App};
use memlab_tui::screen::Screen;
use proptest::prelude::*;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

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
        let mut app = app_on(vec![story.process_in(ProcessState::Recording, detail)]);
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
        0 => on_segments(&mapped(), ProcessState::Recording),
        1 => on_events(&eventful(), ProcessState::Recording),
        2 => on_map(None),
        3 => on_map(Some(SegmentMap { stray_blocks: 3, ..SegmentMap::default() })),
        4 => app_on(vec![hostile().process_in(ProcessState::Recording, Detail::Events)]),
        _ => app_on(vec![hostile().process_in(ProcessState::Recording, Detail::Segments)]),
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
        app.context.set_filter(filter).unwrap();
        for key in keys.chars() {
            press(&mut app, &key.to_string());
            app::draw(&mut Buffer::empty(Rect::new(0, 0, columns, rows)), &mut app);
        }
    }
}
