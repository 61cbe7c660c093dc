//! The events screen.

use std::sync::Arc;

use crate::common::dashboard::{ENDED, assert_looks, assert_looks_at, press, screen};
use crate::common::map::{BASE, KIB, eventful, on_events, on_map};
use crate::common::{GIB, MIB, Story};
use memlab_base::query::Detail;
use memlab_base::theme::{Depth, Palette, Theme};
use memlab_follow::snapshot::{ProcessState, Snapshot};
use memlab_tui::app::App;
use memlab_tui::context::ShownMoment;
use memlab_tui::screen::Screen;
use memlab_units::format::grouped;

#[test]
fn events_of_a_running_program() {
    assert_looks("events-live", || {
        let mut app = on_events(&eventful(), ProcessState::Recording);
        press(&mut app, "jj");
        app
    });
}

#[test]
fn events_at_the_end_filtered() {
    assert_looks("events-filtered", || {
        let mut app = on_events(&eventful(), ENDED);
        app.context.set_filter("kind:free").unwrap();
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
    assert!(screen(&mut app).contains("loading"));
    assert_looks_at("events-none", &[(80, 24)], || {
        let mut app = on_events(&eventful(), ENDED);
        app.context.set_filter("nobody").unwrap();
        app
    });
}

/// The same with `count` more blocks, each a KiB larger than the previous one.
fn with_more(count: u64) -> Story {
    let mut story = eventful();
    for index in 0..count {
        let time = 800_000_000 + index * 1_000_000;
        story.line(&format!(r#"["a",{time},1,0,{},{},3,11,5]"#, BASE + 8 * GIB + index * MIB, (index + 1) * KIB));
    }
    story
}

fn send(app: &mut App, story: &Story) {
    let process = story.process_in(ProcessState::Recording, Detail::Events);
    app.on_snapshot(Arc::new(Snapshot { processes: vec![process], ..Snapshot::default() }));
}

fn selected_number(app: &mut App) -> u64 {
    screen(app);
    app.events.items(&app.context)[app.events.table.selected].event.number
}

#[test]
fn the_newest_event_is_on_top_until_the_cursor_leaves_it() {
    let mut app = on_events(&with_more(5), ProcessState::Recording);
    let first = selected_number(&mut app);
    // GIVEN the cursor on the first row WHEN events arrive THEN it is on the newest
    send(&mut app, &with_more(8));
    assert_eq!(selected_number(&mut app), first + 3);
    assert!(screen(&mut app).contains("newest on top"));
    // GIVEN the cursor on another row WHEN events arrive THEN it stays there, and so does the screen
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
    // AND it moves from there, even if new events have not been drawn yet
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
    let mut app = on_events(&with_more(20), ProcessState::Recording);
    press(&mut app, "jjjj");
    let number = selected_number(&mut app);
    let time = app.events.items(&app.context)[app.events.table.selected].event.time;
    // GIVEN events that arrived since the last drawing WHEN Enter is pressed THEN the moment is that of the event on the
    // screen
    send(&mut app, &with_more(40));
    press(&mut app, "\n");
    assert_eq!((app.context.moment, app.context.cursor_time()), (ShownMoment::Cursor, Some(time)));
    assert_eq!(selected_number(&mut app), number);
}

#[test]
fn the_cursor_moves_to_the_oldest_event_when_its_event_is_dropped() {
    let mut app = on_events(&with_more(5), ProcessState::Recording);
    press(&mut app, "jjjj");
    let number = selected_number(&mut app);
    send(&mut app, &with_more(6_000));
    let oldest = app.events.items(&app.context).last().expect("events").event.number;
    assert!(oldest > number);
    assert_eq!(selected_number(&mut app), oldest);
    let picture = screen(&mut app);
    assert!(picture.contains("the latest 5,000") && picture.contains("no longer kept"), "{picture}");
}
