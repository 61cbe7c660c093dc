//! Moments of the past, trees, filters and the mouse in the dashboard, on traces in files.

use crate::common::{GIB, MIB, Opened, START, Story, trained};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use memlab_base::theme::{Depth, Palette, Theme};
use memlab_tui::app::{self, App};
use memlab_tui::context::ShownMoment;
use memlab_tui::overlays::Overlay;
use memlab_tui::screen::Screen;
use memlab_tui::screens::layers::LayerItem;
use memlab_tui::screens::lines::{LineColumn, LineItem};
use memlab_tui::size_units::Units;
use memlab_tui::widgets::columns::Column;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

fn app() -> App {
    let mut app = App::new(Theme::new(Palette::Dark, Depth::True, true), "waiting…");
    app.on_tick(START + 7_000_000_000);
    app
}

fn ended(steps: u64) -> Story {
    let mut story = trained(steps);
    story.end("0", "null");
    story
}

fn press(app: &mut App, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '←' => KeyCode::Left,
            '→' => KeyCode::Right,
            '⎋' => KeyCode::Esc,
            key => KeyCode::Char(key),
        };
        app.on_key(KeyEvent::new(code, KeyModifiers::NONE));
    }
}

fn draw(app: &mut App) -> Vec<String> {
    draw_at(app, (120, 40))
}

fn draw_at(app: &mut App, (columns, rows): (u16, u16)) -> Vec<String> {
    let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
    app::draw(&mut buffer, app);
    memlab_report::export::text_picture(&buffer).lines().map(str::to_owned).collect()
}

/// The position of a text on the screen: column and row.
fn find(screen: &[String], words: &str) -> (u16, u16) {
    let row = screen.iter().position(|line| line.contains(words));
    let row = row.unwrap_or_else(|| panic!("no {words:?} on\n{}", screen.join("\n")));
    let byte = screen[row].find(words).expect("just found");
    (screen[row][..byte].chars().count() as u16, row as u16)
}

fn mouse(app: &mut App, kind: MouseEventKind, (column, row): (u16, u16)) {
    app.on_mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE });
}

fn click(app: &mut App, place: (u16, u16)) {
    mouse(app, MouseEventKind::Down(MouseButton::Left), place);
}

/// The sums of the tables: allocated, lines, layers and categories.
fn sums(app: &App) -> [u64; 4] {
    let device = app.context.device().expect("there is one");
    let lines = device.lines.iter().map(|row| row.own.live_bytes).sum();
    let layers = device.layers.iter().map(|row| row.live_bytes).sum();
    let categories = device.categories.iter().map(|view| view.bytes).sum();
    [device.totals.allocated_bytes, lines, layers, categories]
}

#[test]
fn every_screen_shows_the_moment_of_the_cursor() {
    // GIVEN a run of four steps
    let story = ended(4);
    let (mut opened, mut app) = (Opened::new(&[&story]), app());
    opened.show(&mut app);
    let [at_end, ..] = sums(&app);
    let steps = app.context.device().expect("there is one").steps.clone();
    let peak = app.context.device().expect("there is one").totals.peak_allocated_bytes;
    // WHEN the cursor moves to the end of a step
    press(&mut app, "tstep 1\n");
    assert!(app.is_seeking());
    opened.show(&mut app);
    // THEN the allocated bytes are those at the end of that step, and lines, layers and categories sum to them
    let [allocated, lines, layers, categories] = sums(&app);
    assert_eq!([allocated, lines, layers], [steps[1].allocated_bytes_at_end; 3]);
    assert_eq!(categories, app.context.device().expect("there is one").totals.used_bytes);
    assert_eq!(app.context.cursor_time(), Some(steps[1].end_time));
    // AND figures of the whole run are unchanged
    assert_eq!(app.context.device().expect("there is one").totals.peak_allocated_bytes, peak);
    assert_eq!(app.context.device().expect("there is one").steps, steps);
    // WHEN it moves a step forward and back THEN the same is shown
    press(&mut app, "n");
    opened.show(&mut app);
    assert_eq!(sums(&app)[0], steps[2].allocated_bytes_at_end);
    press(&mut app, "NN");
    opened.show(&mut app);
    assert_eq!(sums(&app)[0], steps[0].allocated_bytes_at_end);
    assert!(draw(&mut app)[1].contains(" at "), "{:?}", draw(&mut app)[1]);
    // WHEN the moment is left THEN the peak is shown again, as when the ended run was opened, AND the end on request
    press(&mut app, "⎋");
    opened.show(&mut app);
    assert_eq!(app.context.moment, ShownMoment::Peak);
    press(&mut app, "p");
    opened.show(&mut app);
    assert_eq!((app.context.moment, sums(&app)[0]), (ShownMoment::Now, at_end));
}

#[test]
fn the_memory_map_at_the_peak_has_the_blocks_of_the_peak() {
    // GIVEN a run whose addresses, each used only once here, are all in its segment
    let mut story = ended(4);
    story.text = story.text.replace(&(30 * GIB).to_string(), &(300 * GIB).to_string());
    let (mut opened, mut app) = (Opened::new(&[&story]), app());
    opened.show(&mut app);
    press(&mut app, "4");
    opened.show(&mut app);
    let map = app.context.segment_map().expect("it has come");
    let blocks: u64 = map.segments.iter().flat_map(|segment| &segment.blocks).map(|block| block.bytes).sum();
    assert_eq!(blocks, app.context.device().expect("there is one").totals.peak_allocated_bytes);
    // AND the shown events precede the moment
    press(&mut app, "6");
    opened.show(&mut app);
    let peak_time = app.context.device().expect("there is one").totals.peak_time;
    assert!(app.events.items(&app.context).iter().all(|item| item.event.time <= peak_time));
    assert!(app.events.items(&app.context).iter().any(|item| item.event.time == peak_time));
}

#[test]
fn a_moment_can_be_typed_and_errors_are_reported() {
    let story = ended(4);
    let (mut opened, mut app) = (Opened::new(&[&story]), app());
    opened.show(&mut app);
    press(&mut app, "t1.5s\n");
    assert_eq!(app.context.cursor_time(), Some(1_500_000_000));
    press(&mut app, "tpeak\n");
    assert_eq!((app.context.moment, app.context.cursor_time()), (ShownMoment::Peak, None));
    press(&mut app, "tstep 99\n");
    let error = app.prompt.as_ref().and_then(|prompt| prompt.error.clone());
    assert_eq!(error.as_deref(), Some("this trace has no step 99: its steps are 0–3"));
    press(&mut app, "⎋tnoon\n");
    let error = app.prompt.as_ref().and_then(|prompt| prompt.error.clone()).expect("noon is no moment");
    assert!(error.contains("12.5s"), "{error}");
    // AND moments after the end of the run are refused
    press(&mut app, "⎋t99:00\n");
    let error = app.prompt.as_ref().and_then(|prompt| prompt.error.clone()).expect("the run is shorter");
    assert!(error.contains("is after the end"), "{error}");
    press(&mut app, "⎋");
    assert_eq!(app.context.moment, ShownMoment::Peak);
}

#[test]
fn arrows_move_by_columns_and_clicks_set_the_moment() {
    let story = ended(4);
    let (mut opened, mut app) = (Opened::new(&[&story]), app());
    opened.show(&mut app);
    draw(&mut app);
    let scale = app.context.hit_targets.time_scale().expect("the chart was drawn");
    let width = scale.edges[1] - scale.edges[0];
    press(&mut app, "←");
    let first = app.context.cursor_time().expect("there is a cursor");
    press(&mut app, "←←→");
    assert_eq!(app.context.cursor_time(), Some(first - width));
    // WHEN the mouse clicks into the chart, and drags
    click(&mut app, (scale.left + 30, 10));
    let clicked = app.context.cursor_time().expect("there is a cursor");
    mouse(&mut app, MouseEventKind::Drag(MouseButton::Left), (scale.left + 40, 10));
    assert_eq!(app.context.cursor_time(), Some(clicked + 10 * width));
    opened.show(&mut app);
    assert_eq!(sums(&app)[0], sums(&app)[1]);
    // AND the same happens in the strip of another screen
    press(&mut app, "2");
    opened.show(&mut app);
    let screen = draw(&mut app);
    click(&mut app, (60, screen.len() as u16 - 2));
    let there = app.context.cursor_time().expect("there is a cursor");
    assert!(there > 2_000_000_000 && there < 4_000_000_000, "{there}");
}

#[test]
fn the_chart_zooms_around_the_moment_shown() {
    let story = ended(4);
    let (mut opened, mut app) = (Opened::new(&[&story]), app());
    opened.show(&mut app);
    let (peak, end) =
        (app.context.device().expect("there is one").totals.peak_time, app.context.process().expect("one").time);
    let span = |app: &mut App| {
        let screen = draw(app);
        let scale = app.context.hit_targets.time_scale().expect("the chart was drawn");
        let last = scale.left + 107;
        assert!(screen.len() == 40);
        (scale.time_at(scale.left), scale.time_at(last))
    };
    // GIVEN the peak WHEN the chart zooms in
    press(&mut app, "++");
    let (from, to) = span(&mut app);
    // THEN a quarter of the run is shown, including the peak
    assert!(from < peak && peak < to && (to - from) / 1000 <= end / 4000 + 1, "{from} {peak} {to} of {end}");
    // AND a click inside does not scroll the chart, and a cursor that leaves it does
    click(&mut app, (60, 10));
    assert_eq!(span(&mut app), (from, to));
    press(&mut app, "t0.1s\n");
    opened.show(&mut app);
    let (from, to) = span(&mut app);
    assert!(from <= 100_000_000 && 100_000_000 <= to && to < peak, "{from} {to}");
    // WHEN it zooms out THEN the whole run is shown again
    press(&mut app, "--");
    assert_eq!(app.context.chart_span(), None);
    press(&mut app, "+++0");
    assert_eq!(app.context.chart_span(), None);
}

#[test]
fn the_mouse_selects_tabs_rows_and_headings() {
    let story = ended(3);
    let (mut opened, mut app) = (Opened::new(&[&story]), app());
    opened.show(&mut app);
    let screen = draw(&mut app);
    click(&mut app, find(&screen, "Lines"));
    assert_eq!(app.screen, Screen::Lines);
    opened.show(&mut app);
    let screen = draw(&mut app);
    let place = find(&screen, "model.py:74");
    click(&mut app, place);
    let row = app.lines.table.selected;
    assert!(app.lines.items(&app.context)[row].line().is_some_and(|line| line.line == Some(74)));
    // WHEN the row is clicked again THEN its source is shown
    click(&mut app, place);
    assert!(matches!(&app.overlay, Some(Overlay::Source(source)) if source.line.line == Some(74)));
    // AND a click outside the overlay closes it
    draw(&mut app);
    click(&mut app, (0, 0));
    assert_eq!(app.overlay, None);
    // WHEN a heading is clicked THEN the table is sorted by it
    let screen = draw(&mut app);
    click(&mut app, find(&screen, "own peak"));
    let most = |app: &App| {
        app.lines.items(&app.context).iter().map(|item| item.figures.own.peak_live_bytes).collect::<Vec<_>>()
    };
    assert!(most(&app).is_sorted_by(|a, b| a >= b));
    click(&mut app, find(&screen, "own peak"));
    assert!(most(&app).is_sorted());
    // AND the wheel moves the cursor
    app.lines.table.selected = 0;
    mouse(&mut app, MouseEventKind::ScrollDown, (30, 10));
    assert_eq!(app.lines.table.selected, 3);
}

#[test]
fn lines_open_to_callers_and_the_tree_to_callees() {
    // GIVEN a line that two lines called
    let mut story = Story::begin(4242, None);
    story.device(0, 8 << 30);
    for (stack, parent, frame) in [(51, 1, 4), (52, 5, 4)] {
        story.line(&format!(r#"{{"stack":{stack},"parent":{parent},"frame":{frame}}}"#));
    }
    story.alloc(0, 3 * MIB, 51, 0, 0);
    story.alloc(0, 5 * MIB, 52, 0, 0);
    let (mut opened, mut app) = (Opened::new(&[&story]), app());
    app.screen = Screen::Lines;
    opened.show(&mut app);
    let shown = |app: &App| -> Vec<(u16, u32, u64)> {
        let row = |item: &LineItem| {
            (item.depth, item.line().and_then(|line| line.line).unwrap_or(0), item.live_bytes() / MIB)
        };
        app.lines.items(&app.context).iter().map(row).collect()
    };
    assert_eq!(shown(&app), [(0, 74, 8)]);
    // WHEN it is opened THEN each caller has its share
    press(&mut app, "l");
    assert_eq!(shown(&app), [(0, 74, 8), (1, 88, 5), (1, 12, 3)]);
    press(&mut app, "jh");
    assert_eq!(app.lines.table.selected, 0);
    press(&mut app, "h");
    assert_eq!(shown(&app).len(), 1);
    // WHEN the call tree is shown THEN it goes from the outermost call to the innermost
    press(&mut app, "c");
    let tree = shown(&app);
    assert_eq!(tree[0], (0, 12, 8));
    assert!(tree.contains(&(1, 74, 3)), "{tree:?}");
    // AND a filter keeps the callers of matching lines
    press(&mut app, "/line:88\n");
    assert!(shown(&app).iter().any(|row| row.1 == 88) && shown(&app)[0].1 == 12, "{:?}", shown(&app));
    assert!(!shown(&app).contains(&(1, 74, 3)));
}

#[test]
fn calls_have_the_figures_of_lines() {
    // GIVEN a line that keeps 4 MiB more after every step, called from one place, and another line called from two places
    let mut story = Story::begin(4242, None);
    story.device(0, 8 << 30);
    for (stack, parent, frame) in [(51, 1, 4), (52, 5, 4), (53, 1, 6)] {
        story.line(&format!(r#"{{"stack":{stack},"parent":{parent},"frame":{frame}}}"#));
    }
    for step in 0..6 {
        story.alloc(0, 4 * MIB, 53, 0, 0);
        for stack in [51, 52] {
            story.alloc(0, MIB, stack, 0, 0);
        }
        story.line(&format!(r#"["step",{},1,{step}]"#, (step + 1) * 1_000_000));
    }
    let (mut opened, mut app) = (Opened::new(&[&story]), app());
    app.screen = Screen::Lines;
    opened.show(&mut app);
    let figures = |app: &App| -> Vec<(u32, u64, String)> {
        let growth = |item: &LineItem| LineColumn::Growth.text(item, Units::Auto);
        let row = |item: &LineItem| {
            (item.line().and_then(|line| line.line).unwrap_or(0), item.held().live_blocks, growth(item))
        };
        app.lines.items(&app.context).iter().map(row).collect()
    };
    let rows = |rows: &[(u32, u64, &str)]| -> Vec<(u32, u64, String)> {
        rows.iter().map(|(line, blocks, growth)| (*line, *blocks, (*growth).to_owned())).collect()
    };
    assert_eq!(figures(&app), rows(&[(140, 6, "+4.00 MiB"), (74, 12, "+2.00 MiB")]));
    // WHEN the call tree is shown THEN calls have blocks, and the growth of their lines if no other call shares them
    press(&mut app, "c");
    let expected = [(12, 18, "+6.00 MiB"), (140, 6, "+4.00 MiB"), (74, 6, ""), (88, 6, ""), (74, 6, "")];
    assert_eq!(figures(&app), rows(&expected));
    let screen = draw(&mut app).join("\n");
    assert!(screen.contains("no allocations of its own; with callees: now 36.0 MiB in 18 blocks"), "{screen}");
    // AND a moment of the past has the same
    press(&mut app, "tstep 2\n");
    opened.show(&mut app);
    assert_eq!(figures(&app)[0], rows(&[(12, 9, "+6.00 MiB")])[0]);
    // AND callers have the same
    press(&mut app, "⎋cj");
    opened.show(&mut app);
    press(&mut app, "l");
    assert_eq!(figures(&app)[1..], rows(&[(74, 12, "+2.00 MiB"), (12, 6, ""), (88, 6, "")]));
}

#[test]
fn filters_find_lines_by_layer_and_category_and_layers_by_line() {
    let story = trained(2);
    let (mut opened, mut app) = (Opened::new(&[&story]), app());
    opened.show(&mut app);
    let mut found = |screen: Screen, filter: &str| -> Vec<String> {
        app.screen = screen;
        assert_eq!(app.context.set_filter(filter), Ok(()), "{filter}");
        opened.show(&mut app);
        let line = |item: &LineItem| item.line().and_then(|line| line.line).unwrap_or(0).to_string();
        let mut names: Vec<String> = match screen {
            Screen::Layers => app.layers.items(&app.context).iter().map(|item| item.name().to_owned()).collect(),
            // The table of the overview is the same.
            _ => app.lines.items(&app.context).iter().map(line).collect(),
        };
        names.sort();
        names
    };
    for screen in [Screen::Lines, Screen::Overview] {
        assert_eq!(found(screen, "category:optimizer"), ["88"]);
        assert_eq!(found(screen, "category:parameters"), ["12"]);
        assert_eq!(found(screen, "class:MLP"), ["12", "74", "88"]);
        assert_eq!(found(screen, "layer:h.2.attn category:activation"), ["58"]);
    }
    assert_eq!(found(Screen::Layers, "line:model.py:58 layer:h.2"), ["h.2.attn"]);
    assert_eq!(found(Screen::Layers, "function:MLP.forward !layer:h.0"), ["h.1.mlp", "h.2.mlp", "h.3.mlp"]);
    // WHEN an unknown category is entered THEN the error lists the known ones
    let error = app.context.set_filter("category:weights").expect_err("there is none");
    assert!(error.contains("optimizer_state, buffer"), "{error}");
    press(&mut app, "⎋/category:");
    let screen = draw(&mut app).join("\n");
    assert!(screen.contains("parameter, gradient, optimizer_state, buffer"), "{screen}");
}

#[test]
fn the_moment_shown_is_always_in_the_header() {
    let story = ended(4);
    let (mut opened, mut app) = (Opened::new(&[&story]), app());
    opened.show(&mut app);
    for (keys, words) in [("pp", "at the peak"), ("t2.5s\n", "at 2.50 s"), ("tstep 1\n", "at ")] {
        press(&mut app, keys);
        for columns in [60, 80, 100, 120, 200] {
            // Also while loading.
            let screen = draw_at(&mut app, (columns, 24));
            assert!(screen[..2].iter().any(|row| row.contains(words)), "{columns}: {}", screen[..2].join("\n"));
        }
        opened.show(&mut app);
    }
    assert!(draw_at(&mut app, (28, 7))[0].contains(" at "), "{:?}", draw_at(&mut app, (28, 7)));
}

#[test]
fn the_tree_of_modules_opens_and_adds_up() {
    let story = trained(2);
    let (mut opened, mut app) = (Opened::new(&[&story]), app());
    app.screen = Screen::Layers;
    opened.show(&mut app);
    let names =
        |app: &App| app.layers.items(&app.context).iter().map(|item| item.name().to_owned()).collect::<Vec<_>>();
    let live = |app: &App, of: fn(&LayerItem) -> u64| app.layers.items(&app.context).iter().map(of).sum::<u64>();
    // GIVEN the outermost module open, and its equal children as one closed row
    assert_eq!(names(&app), ["GPT", "h.0–3", "(outside any layer)"]);
    let items = app.layers.items(&app.context);
    let (outermost, group, outside) = (&items[0], &items[1], &items[2]);
    // THEN each figure includes inner layers, with the part of the layer alone beside it
    assert_eq!(outermost.figures().live_bytes + outside.figures().live_bytes, sums(&app)[0]);
    assert_eq!(outermost.figures().live_bytes, outermost.own_bytes + group.figures().live_bytes);
    let closed = group.figures().live_bytes;
    // WHEN the group is opened THEN its layers sum to it
    press(&mut app, "jl");
    let names_inside = names(&app);
    assert_eq!(names_inside[2..6], ["h.0", "h.1", "h.2", "h.3"]);
    let inside: u64 = app.layers.items(&app.context)[2..6].iter().map(|item| item.figures().live_bytes).sum();
    assert_eq!(inside, closed);
    // AND after opening all, what each layer holds alone sums to all allocated memory
    press(&mut app, "z");
    let without_groups = |item: &LayerItem| if item.group.is_some() { 0 } else { item.own_bytes };
    assert_eq!(live(&app, without_groups), sums(&app)[0]);
}

#[test]
fn a_finding_leads_to_its_line_and_moment() {
    // GIVEN a run with an out-of-memory error
    let mut story = trained(6);
    story.out_of_memory(0);
    story.end("1", "null");
    let (mut opened, mut app) = (Opened::new(&[&story]), app());
    opened.show(&mut app);
    // THEN the number of findings is beside the tabs, and a click on it lists them
    let screen = draw(&mut app);
    click(&mut app, find(&screen, "! 1"));
    assert!(matches!(app.overlay, Some(Overlay::Findings(_))));
    // WHEN the finding under the cursor is chosen THEN its line and its moment are shown
    draw(&mut app);
    press(&mut app, "\n");
    opened.show(&mut app);
    let oom = app.context.process().expect("one").ooms[0].time;
    assert_eq!((app.screen, app.context.cursor_time(), app.overlay.is_none()), (Screen::Lines, Some(oom), true));
    draw(&mut app);
    let row = app.lines.table.selected;
    assert!(app.lines.items(&app.context)[row].line().is_some_and(|line| line.line == Some(74)));
    // AND Esc goes back to the peak
    press(&mut app, "⎋");
    assert_eq!(app.context.moment, ShownMoment::Peak);
}

#[test]
fn a_click_on_a_hint_of_the_footer_presses_its_key() {
    let story = ended(3);
    let (mut opened, mut app) = (Opened::new(&[&story]), app());
    opened.show(&mut app);
    let screen = draw(&mut app);
    let last = screen.len() - 1;
    click(&mut app, (find(&screen[last..], "? help").0, last as u16));
    assert!(matches!(app.overlay, Some(Overlay::Help(_))));
    // AND an overlay covers the hints
    click(&mut app, (find(&screen[last..], "q quit").0, last as u16));
    assert!(app.overlay.is_none());
}

#[test]
fn several_ranks_show_the_same_moment() {
    // GIVEN two ranks, the second started a second later
    let mut first = Story::begin(4242, Some((0, 2)));
    first.train(0, 3);
    let mut second = Story::begin(4243, Some((1, 2)));
    second.train(0, 3);
    second.text = second.text.replace(&START.to_string(), &(START + 1_000_000_000).to_string());
    let (mut opened, mut app) = (Opened::new(&[&first, &second]), app());
    opened.show(&mut app);
    // WHEN the cursor is set on the first
    press(&mut app, "t2.5s\n");
    opened.show(&mut app);
    // THEN the second shows the same moment in its own time
    let [first, second] = &app.context.snapshot.processes[..] else { panic!("two processes") };
    let time = |process: &memlab_follow::snapshot::ProcessSnapshot| process.shown_at.expect("a moment").time;
    assert!(time(first) <= 2_500_000_000 && time(first) > 2_200_000_000);
    assert!(time(second) <= 1_500_000_000 && time(second) > 1_200_000_000);
}

#[test]
fn a_paused_display_follows_the_cursor() {
    let story = ended(4);
    let (mut opened, mut app) = (Opened::new(&[&story]), app());
    opened.show(&mut app);
    press(&mut app, " tstep 0\n");
    opened.show(&mut app);
    let step = app.context.device().expect("there is one").steps[0];
    assert_eq!(sums(&app)[0], step.allocated_bytes_at_end);
}

#[test]
fn a_paused_display_loads_the_data_of_other_screens() {
    // GIVEN a display paused at the end of the second step, while the run continues
    let mut story = trained(2);
    story.text = story.text.replace(&(30 * GIB).to_string(), &(300 * GIB).to_string());
    let (mut opened, mut app) = (Opened::new(&[&story]), app());
    opened.show(&mut app);
    press(&mut app, " ");
    let [allocated, ..] = sums(&app);
    story.alloc(0, 5 * GIB, 3, 11, 5);
    opened.rewrite(&[&story]);
    opened.show(&mut app);
    assert_eq!(sums(&app)[0], allocated);
    // WHEN the memory map is shown THEN it is that of the paused moment
    press(&mut app, "4");
    opened.show(&mut app);
    let map = app.context.segment_map().expect("it was looked up");
    let blocks: u64 = map.segments.iter().flat_map(|segment| &segment.blocks).map(|block| block.bytes).sum();
    assert_eq!((blocks, sums(&app)[0]), (allocated, allocated));
    // AND when the display continues, the map has the new block
    press(&mut app, " ");
    opened.show(&mut app);
    assert_eq!(sums(&app)[0], allocated + 5 * GIB);
}

#[test]
fn unordered_times_do_not_move_a_moment() {
    // GIVEN a thread whose allocation has a later time than the step end that follows it in the trace
    let mut story = Story::begin(4242, None);
    story.device(0, 8 << 30);
    story.line(r#"["a",1000000,1,0,4096,1048576,1,0,0]"#);
    story.line(r#"["a",2000400,2,0,2097152,7340032,1,0,0]"#);
    story.line(r#"["step",2000000,1,0]"#);
    story.line(r#"["f",2500000,2,0,2097152]"#);
    story.line(r#"["a",3000000,1,0,33554432,1048576,1,0,0]"#);
    story.line(r#"["step",4000000,1,1]"#);
    let (mut opened, mut app) = (Opened::new(&[&story]), app());
    opened.show(&mut app);
    // WHEN the step's end is shown THEN its figures equal those in the table of steps
    press(&mut app, "tstep 0\n");
    opened.show(&mut app);
    let kept = app.context.device().expect("there is one").steps[0].allocated_bytes_at_end;
    assert_eq!((sums(&app)[0], kept), (8 * MIB, 8 * MIB));
    // AND so do those of the comparison with the next step
    press(&mut app, "5");
    opened.show(&mut app);
    let comparison = app.steps.comparison(&app.context).expect("it has come");
    let sum =
        |holdings: &memlab_base::query::MomentHoldings| holdings.lines.iter().map(|line| line.live_bytes).sum::<u64>();
    assert_eq!((sum(&comparison.before), sum(&comparison.after)), (8 * MIB, 2 * MIB));
}

#[test]
fn the_source_is_shown_with_bytes_in_its_margin() {
    // GIVEN a trace of a script that exists on this machine
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = folder.path().join("train.py");
    let source: String = (1..=100).map(|line| format!("line_{line} = {line}\n")).collect();
    std::fs::write(&script, source).expect("written");
    let mut story = trained(2);
    story.text = story.text.replace("/home/ada/gpt/train.py", &script.to_string_lossy());
    let (mut opened, mut app) = (Opened::new(&[&story]), app());
    app.screen = Screen::Lines;
    opened.show(&mut app);
    press(&mut app, "\n");
    let screen = draw(&mut app);
    let (_, row) = find(&screen, "line_88 = 88");
    assert!(screen[usize::from(row)].contains("GiB"), "{}", screen.join("\n"));
    // WHEN the file is edited THEN the view reports the change, and shows the lines from the trace
    press(&mut app, "⎋");
    story.line(&format!(r#"{{"source":"{}","line":88,"text":"loss.backward()"}}"#, script.to_string_lossy()));
    std::fs::write(&script, "# nothing is where it was\n".repeat(90)).expect("written");
    opened.rewrite(&[&story]);
    opened.show(&mut app);
    let screen = draw(&mut app).join("\n");
    assert!(screen.contains("train.py:88  loss.backward()"), "{screen}");
    press(&mut app, "\n");
    let screen = draw(&mut app).join("\n");
    assert!(screen.contains("88  loss.backward()") && screen.contains("the file was edited since"), "{screen}");
    std::fs::remove_file(&script).expect("it is there");
    press(&mut app, "⎋\n");
    let screen = draw(&mut app).join("\n");
    assert!(screen.contains("88  loss.backward()") && screen.contains("these lines come from the trace"), "{screen}");
    // AND a missing file is reported
    press(&mut app, "⎋/model.py:74\n\n");
    assert!(draw(&mut app).join("\n").contains("not on this machine"));
}

#[test]
fn an_out_of_memory_is_found() {
    let mut story = trained(2);
    story.out_of_memory(0);
    let (mut opened, mut app) = (Opened::new(&[&story]), app());
    opened.show(&mut app);
    press(&mut app, "O");
    assert_eq!(app.context.cursor_time(), app.context.process().map(|process| process.ooms[0].time));
    let story = trained(1);
    let (mut opened, mut app) = (Opened::new(&[&story]), self::app());
    opened.show(&mut app);
    press(&mut app, "O");
    assert_eq!(app.context.notice.as_deref(), Some("no out-of-memory error"));
}
