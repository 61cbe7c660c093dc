//! The Steps and Ranks screens, and their parts on the overview.

use std::sync::Arc;

use crate::common::{GIB, MIB, Opened, START, Story, hostile, trained};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use memlab_base::text;
use memlab_base::theme::{Depth, Palette, Theme};
use memlab_follow::snapshot::{ProcessSnapshot, ProcessState, Snapshot};
use memlab_tui::app::{self, App};
use memlab_tui::context::ShownMoment;
use memlab_tui::screen::Screen;
use memlab_tui::screens::screen_state::ScreenState;
use memlab_tui::screens::steps::StepsScreen;
use memlab_tui::screens::steps::changes::{Changes, total};
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 60)];
const SECOND: u64 = 1_000_000_000;

fn app() -> App {
    App::new(Theme::new(Palette::Dark, Depth::True, true), "waiting")
}

/// A dashboard on traces in files, with answers to its queries.
fn opened(screen: Screen, stories: &[&Story]) -> (App, Opened) {
    let mut app = app();
    app.screen = screen;
    app.on_tick(START + (1 + stories.iter().map(|story| story.seconds()).max().unwrap_or(0)) * SECOND);
    let mut opened = Opened::new(stories);
    opened.show(&mut app);
    (app, opened)
}

/// A dashboard on these snapshots of processes, a minute after their start.
fn app_on(screen: Screen, processes: Vec<ProcessSnapshot>) -> App {
    let mut app = app();
    app.screen = screen;
    app.on_snapshot(Arc::new(Snapshot { processes, ..Snapshot::default() }));
    app.on_tick(START + 60 * SECOND);
    app
}

/// A run in which every step leaves memory from `data/loader.py`, more each time.
fn leaking(steps: u64) -> Story {
    leaving(steps, |index| (index + 1) * 16 * MIB)
}

/// A run in which every step leaves this many bytes.
fn leaving(steps: u64, left: impl Fn(u64) -> u64) -> Story {
    let mut story = trained(steps);
    let mut text = String::new();
    for line in story.text.lines() {
        if let Some((time, index)) =
            line.strip_prefix(r#"["step","#).and_then(|rest| rest.trim_end_matches(']').split_once(",1,"))
        {
            let index: u64 = index.parse().expect("a number");
            let (address, bytes) = (0x6000_0000_0000 + index * GIB, left(index));
            text += &format!("[\"a\",{time},1,0,{address},{bytes},6,0,0]\n");
        }
        text += line;
        text.push('\n');
    }
    story.text = text;
    story
}

/// Inserts a line into the trace before the end of a step.
fn before_step(story: &mut Story, step: u64, line: impl Fn(&str) -> String) {
    let ends = story.text.lines().find(|line| line.starts_with("[\"step\"") && line.ends_with(&format!(",{step}]")));
    let ends = ends.expect("the step").to_owned();
    let time = ends.split(',').nth(1).expect("its time");
    story.text = story.text.replace(&ends, &format!("{}\n{ends}", line(time)));
}

fn press(app: &mut App, keys: &str) {
    for key in keys.chars() {
        app.on_key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE));
    }
}

fn click(app: &mut App, column: u16, row: u16) {
    let kind = MouseEventKind::Down(MouseButton::Left);
    app.on_mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE });
}

fn draw(app: &mut App, (columns, rows): (u16, u16)) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a test backend does not fail");
    terminal.draw(|frame| app::draw(frame.buffer_mut(), app)).expect("a test backend does not fail");
    terminal
}

/// The rows of the screen as text.
fn screen(app: &mut App, size: (u16, u16)) -> Vec<String> {
    let terminal = draw(app, size);
    let buffer = terminal.backend().buffer();
    let row = |y| (0..size.0).map(|x| buffer[(x, y)].symbol()).collect();
    (0..size.1).map(row).collect()
}

/// The position of a text on the screen.
fn find(rows: &[String], wanted: &str) -> (u16, u16) {
    let hit = rows.iter().enumerate().find_map(|(y, row)| Some((row[..row.find(wanted)?].chars().count(), y)));
    let (x, y) = hit.unwrap_or_else(|| panic!("{wanted:?} is not in\n{}", rows.join("\n")));
    (x as u16, y as u16)
}

/// Compares the screen at all three sizes with its snapshots.
fn assert_looks(name: &str, app: &mut App) {
    insta::with_settings!({ snapshot_path => "screens", prepend_module_to_snapshot => false, omit_expression => true }, {
        for size in SIZES {
            let terminal = draw(app, size);
            insta::assert_snapshot!(format!("{name}-{}x{}", size.0, size.1), terminal.backend());
        }
    });
}

#[test]
fn no_step_has_ended() {
    let mut story = Story::begin(4242, None);
    story.device(0, 141 * GIB);
    story.alloc(0, GIB, 3, 11, 5);
    assert_looks("steps-none", &mut opened(Screen::Steps, &[&story]).0);
}

#[test]
fn steps_of_a_live_run() {
    assert_looks("steps-live", &mut opened(Screen::Steps, &[&leaking(40)]).0);
}

/// A run of two models in turn, whose training records all its steps but the last.
fn told(steps: u64) -> Story {
    let mut story = leaking(steps);
    for step in 0..steps - 1 {
        let (epoch, batch) = (step / 16, step % 16);
        let loss = if step == 20 { "\"NaN\"".to_owned() } else { format!("{}", 2.5 / (step + 1) as f64) };
        let phase = if step % 2 == 0 { "discriminator" } else { "generator" };
        let offloaded = step % 4 * GIB;
        story.line(&format!(
            r#"{{"trained":{step},"epoch":{epoch},"batch":{batch},"samples":512,"duration":{},"loss":{loss},"phase":"{phase}","way":"micro-batches","pieces":8,"offloaded":{offloaded}}}"#,
            81_250_000 + step * 1_000_000
        ));
    }
    story
}

#[test]
fn a_training_reports_its_steps() {
    let (mut app, mut files) = opened(Screen::Steps, &[&told(40)]);
    press(&mut app, "j");
    files.show(&mut app);
    assert_looks("steps-training", &mut app);
    // WHEN sorted by the loss, the largest first THEN a loss that is not a number comes first, and an unknown one last
    let rows = screen(&mut app, (120, 40));
    let (x, y) = find(&rows, "loss");
    click(&mut app, x, y);
    let sorted: Vec<_> = app.steps.items(&app.context).iter().map(|item| item.step.index).collect();
    assert_eq!((sorted[0], sorted[1], sorted[39]), (20, 0, 39));
    // AND a file of the rows has these columns
    let file = app.steps.rows(&app.context).expect("a table").json();
    assert!(file.contains("\"loss\":") && file.contains("\"samples_per_second\":"), "{file}");
    // BUT without such a training nothing changes
    let (app, _files) = opened(Screen::Steps, &[&leaking(4)]);
    let file = app.steps.rows(&app.context).expect("a table").json();
    assert!(!file.contains("loss") && !file.contains("samples") && !file.contains("offloaded"), "{file}");
}

#[test]
fn growth_keeps_its_colour_as_a_leak_grows() {
    // GIVEN a leak of the same size after every step
    let (mut app, _files) = opened(Screen::Steps, &[&leaving(40, |_| 96 * MIB)]);
    // THEN each step's growth looks the same, even if it is small compared to the total
    let rows = screen(&mut app, (120, 40));
    let (x, y) = find(&rows, "+96.0 MiB");
    let terminal = draw(&mut app, (120, 40));
    let looks: Vec<_> = (y + 1..y + 10).map(|y| terminal.backend().buffer()[(x, y)].fg).collect();
    assert!(looks.iter().all(|look| *look != app.context.theme.dim.fg.expect("it has a colour")), "{looks:?}");
}

#[test]
fn steps_before_the_comparison_is_loaded() {
    let ended = ProcessState::Ended { code: Some(0), signal: None };
    assert_looks("steps-ended", &mut app_on(Screen::Steps, vec![leaking(6).process(ended)]));
}

#[test]
fn two_marked_steps_are_compared() {
    // GIVEN two marked steps, the later one first
    let (mut app, mut files) = opened(Screen::Steps, &[&leaking(12)]);
    press(&mut app, "jmjjjjm");
    files.show(&mut app);
    assert_looks("steps-marked", &mut app);
    // THEN the comparison is of the two, the earlier one first
    let (before, after) = app.steps.compared_steps(&app.context).expect("two steps");
    assert_eq!((before.map(|before| before.index), after.index), (Some(6), 10));
    // AND without marks it is between the step under the cursor and the previous one
    press(&mut app, "M");
    let (before, after) = app.steps.compared_steps(&app.context).expect("two steps");
    assert_eq!((before.map(|before| before.index), after.index), (Some(5), 6));
}

#[test]
fn the_steps_follow_the_chosen_moment() {
    // GIVEN the steps of a run at its end, with the cursor on the latest
    let (mut app, _files) = opened(Screen::Steps, &[&leaking(12)]);
    app.context.show(ShownMoment::Now);
    app.steps = StepsScreen::default();
    draw(&mut app, (120, 40));
    let compared = |app: &App| app.steps.compared_steps(&app.context).expect("two steps").1.index;
    assert_eq!(compared(&app), 11);
    // WHEN a moment of an earlier step is chosen THEN the cursor and the comparison are on that step
    let step = app.context.device().expect("a device").steps[4];
    app.context.go_to_event(step.end_event, step.end_time);
    draw(&mut app, (120, 40));
    assert_eq!(compared(&app), 4);
    // AND the cursor can leave it
    press(&mut app, "j");
    draw(&mut app, (120, 40));
    assert_eq!(compared(&app), 3);
    // AND the peak is also a moment, which every screen describes with the same words
    app.context.show(ShownMoment::Peak);
    let rows = screen(&mut app, (120, 40)).join("\n");
    let peak = app.steps.items(&app.context).into_iter().find(|item| item.is_shown).expect("it is shown");
    assert!(peak.has_peak && compared(&app) == peak.step.index, "{}", peak.step.index);
    assert!(
        rows.matches(&format!("in step {}", peak.step.index)).count() >= 2 && !rows.contains("after step"),
        "{rows}"
    );
}

#[test]
fn the_first_step_is_compared_with_the_start() {
    let (mut app, mut files) = opened(Screen::Steps, &[&leaking(5)]);
    press(&mut app, "G");
    draw(&mut app, (120, 40));
    files.show(&mut app);
    assert_looks("steps-first", &mut app);
    let comparison = app.steps.comparison(&app.context).expect("it came");
    assert_eq!(total(&Changes::between(&comparison.before, &comparison.after).lines).before, 0);
}

#[test]
fn an_out_of_memory_is_shown_at_its_step() {
    // GIVEN an out-of-memory error caught in step 2, and one that ended the run in a step without an end
    let mut story = trained(4);
    before_step(&mut story, 2, |time| format!(r#"["oom",{time},1,0,{},{},{},4,22]"#, 130 * GIB, 29 * GIB, 30 * GIB));
    story.out_of_memory(0);
    let (mut app, mut files) = opened(Screen::Steps, &[&story]);
    press(&mut app, "j");
    // WHEN the cursor is on step 2 and the moment shown is the end of step 1
    let end = app.context.device().expect("a device").steps[1].end_time;
    app.context.go_to_time(end);
    files.show(&mut app);
    assert_looks("steps-oom", &mut app);
}

#[test]
fn steps_without_colours_and_without_unicode() {
    for (name, unicode) in [("steps-mono", true), ("steps-ascii", false)] {
        let (mut app, mut files) = opened(Screen::Steps, &[&leaking(12)]);
        press(&mut app, "jmjjjm");
        files.show(&mut app);
        app.context.theme = Theme::new(Palette::Mono, Depth::Ansi, unicode);
        assert_looks(name, &mut app);
        for screen in [Screen::Steps, Screen::Ranks, Screen::Overview] {
            app.screen = screen;
            let beyond = |row: &String| !unicode && !row.is_ascii();
            assert!(!self::screen(&mut app, (120, 40)).iter().any(beyond));
        }
    }
}

#[test]
fn changes_sum_to_the_models_figures() {
    // GIVEN a run that leaks
    let (mut app, mut files) = opened(Screen::Steps, &[&leaking(9)]);
    for row in 0..9 {
        // WHEN two consecutive steps are compared
        app.screen = Screen::Steps;
        app.steps.table.selected = row;
        draw(&mut app, (120, 40));
        files.show(&mut app);
        let (before, after) = app.steps.compared_steps(&app.context).expect("two steps");
        let comparison = app.steps.comparison(&app.context).expect("it came");
        let changes = Changes::between(&comparison.before, &comparison.after);
        let (lines, layers, categories) = (total(&changes.lines), total(&changes.layers), total(&changes.categories));
        // THEN lines and layers sum to the allocated bytes at the ends of the steps
        let allocated = (before.map_or(0, |before| before.allocated_bytes_at_end), after.allocated_bytes_at_end);
        assert_eq!((lines.before, lines.after), allocated);
        assert_eq!((layers.before, layers.after), allocated);
        // AND categories sum to the used bytes, as on the overview at that moment
        app.context.go_to_time(after.end_time);
        app.screen = Screen::Overview;
        files.show(&mut app);
        let totals = &app.context.device().expect("a device").totals;
        assert_eq!((totals.allocated_bytes, totals.used_bytes), (lines.after, categories.after));
        app.context.show(ShownMoment::Now);
    }
}

#[test]
fn the_cursor_stays_on_its_step_while_others_end() {
    let at = |steps: u64| {
        Arc::new(Snapshot { processes: vec![trained(steps).process(ProcessState::Recording)], ..Snapshot::default() })
    };
    let mut app = app();
    app.screen = Screen::Steps;
    let selected = |app: &mut App| {
        draw(app, (120, 40));
        app.steps.compared_steps(&app.context).map(|(_, after)| after.index)
    };
    // GIVEN a cursor on top THEN it stays on the latest step
    app.on_snapshot(at(5));
    assert_eq!(selected(&mut app), Some(4));
    app.on_snapshot(at(7));
    assert_eq!(selected(&mut app), Some(6));
    // GIVEN the cursor on a step WHEN others end THEN it stays there
    press(&mut app, "jj");
    assert_eq!(selected(&mut app), Some(4));
    app.on_snapshot(at(20));
    assert_eq!(app.steps.compared_steps(&app.context).map(|(_, after)| after.index), Some(4), "before it is drawn");
    assert_eq!(selected(&mut app), Some(4));
    // AND it stays when the steps are sorted by another column
    press(&mut app, "S");
    assert_eq!(selected(&mut app), Some(4));
    press(&mut app, "j");
    assert_eq!(selected(&mut app), Some(5));
}

#[test]
fn enter_goes_to_the_end_of_the_step() {
    let (mut app, _files) = opened(Screen::Steps, &[&leaking(6)]);
    press(&mut app, "jj");
    app.on_key(KeyCode::Enter.into());
    assert_eq!(app.context.cursor_time(), Some(app.context.device().expect("a device").steps[3].end_time));
}

#[test]
fn a_comparison_stays_until_the_next_is_loaded() {
    // GIVEN a comparison on the screen
    let mut other = Story::begin(4243, None);
    other.train(0, 3);
    let (mut app, mut files) = opened(Screen::Steps, &[&leaking(6), &other]);
    find(&screen(&mut app, (120, 40)), "Growth: step 4 → step 5");
    // WHEN the cursor moves THEN it stays under its title, and the screen shows that the next one is loading
    press(&mut app, "jj");
    let rows = screen(&mut app, (120, 40));
    find(&rows, "Growth: step 4 → step 5");
    find(&rows, "loading step 3");
    find(&rows, "18.3 GiB → 18.4 GiB  By line");
    // AND then the next one is shown
    files.show(&mut app);
    let rows = screen(&mut app, (120, 40));
    find(&rows, "Growth: step 2 → step 3");
    assert!(!rows.iter().any(|row| row.contains("loading")));
    // AND nothing of it is shown for another process
    press(&mut app, "d");
    let rows = screen(&mut app, (120, 40));
    find(&rows, "loading…");
}

#[test]
fn comparisons_load_while_paused() {
    // GIVEN a paused dashboard WHEN another step is selected THEN its growth is still looked up
    let (mut app, mut files) = opened(Screen::Steps, &[&leaking(6)]);
    press(&mut app, " jj");
    assert!(app.awaits_comparison() && app.steps.comparison(&app.context).is_none());
    files.show(&mut app);
    assert!(app.context.paused && !app.awaits_comparison() && app.steps.comparison(&app.context).is_some());
}

/// Eight ranks on two hosts, unevenly filled.
///
/// One lags, one was killed, one has a child, and one cannot write its whole trace.
fn eight_ranks() -> Vec<ProcessSnapshot> {
    let mut processes = Vec::new();
    for rank in 0..8 {
        let mut story = Story::begin(5000 + rank, Some((rank, 8)));
        let device = rank as i32 % 4;
        story.train(device, if rank == 5 { 2 } else { 4 });
        let extra = 0x6000_0000_0000_u64;
        before_step(&mut story, 1, |time| {
            let bytes = u64::from(rank) % 4 * 3 * GIB + 16 * GIB;
            format!("[\"a\",{time},1,{device},{extra},{bytes},6,0,0]\n[\"f\",{time},1,{device},{extra}]")
        });
        if rank >= 4 {
            story.text = story.text.replace("\"host\":\"gpu1\"", "\"host\":\"gpu2\"");
        }
        let state = match rank {
            2 => ProcessState::Ended { code: None, signal: Some(9) },
            6 => ProcessState::Stopped,
            7 => ProcessState::Ended { code: Some(1), signal: None },
            _ => ProcessState::Recording,
        };
        if rank == 7 {
            story.out_of_memory(device);
            story.line(r#"{"warning":"half of the events of the last second were not recorded"}"#);
        }
        let mut process = story.process(state);
        process.path = format!("/home/ada/gpt/memlab-train-{rank}.jsonl").into();
        process.skipped_lines = if rank == 7 { 12 } else { 0 };
        processes.push(process);
    }
    let mut child = Story::begin(6001, None);
    child.text = child.text.replace("\"parent_pid\":4200", "\"parent_pid\":5001");
    child.device(1, 141 * GIB);
    child.alloc(1, 300 * MIB, 3, 0, 0);
    processes.push(child.process(ProcessState::Ended { code: Some(0), signal: None }));
    processes
}

#[test]
fn eight_ranks_and_a_child() {
    let mut app = app_on(Screen::Ranks, eight_ranks());
    press(&mut app, "jj");
    assert_looks("ranks", &mut app);
    // THEN the child is below its parent, although it started after the last rank
    let items = app.ranks.items(&app.context);
    let pids: Vec<_> = items.iter().map(|item| (item.pid, item.depth)).take(4).collect();
    assert_eq!(pids, [(5000, 0), (5001, 0), (6001, 1), (5002, 0)]);
    // AND the failed rank shows its complete reason
    press(&mut app, "G");
    assert_looks("ranks-failed", &mut app);
    // AND Enter shows it
    app.on_key(KeyCode::Enter.into());
    assert_eq!((app.screen, app.context.process().map(|process| process.header.pid)), (Screen::Overview, Some(5007)));
}

#[test]
fn one_process() {
    assert_looks("ranks-one", &mut app_on(Screen::Ranks, vec![trained(3).process(ProcessState::Recording)]));
}

#[test]
fn ranks_side_by_side_on_the_overview() {
    let mut app = app_on(Screen::Overview, eight_ranks());
    assert_looks("overview-ranks", &mut app);
    // WHEN one is clicked THEN it is shown, at any size
    for size in SIZES {
        app.context.set_target(0);
        let (x, y) = find(&screen(&mut app, size), "rank 1");
        click(&mut app, x + 3, y);
        assert_eq!(app.context.process().and_then(|process| process.header.rank), Some(1), "{size:?}");
    }
    // AND the selected one is always visible
    for target in 0..9 {
        app.context.set_target(target);
        let name = app
            .context
            .process()
            .and_then(|process| process.header.rank)
            .map_or("6001 ".to_owned(), |rank| format!("rank {rank}"));
        let rows = screen(&mut app, (80, 24));
        assert!(rows[2..].iter().any(|row| row.contains(&name)), "{name}\n{}", rows.join("\n"));
    }
    // AND at the peak each rank shows its own peak
    press(&mut app, "p");
    let rows = screen(&mut app, (120, 40));
    find(&rows, "Ranks, each at its peak");
}

#[test]
fn clicking_a_step_on_the_overview_selects_its_end() {
    // GIVEN more steps than columns, two steps per column
    let (mut app, mut files) = opened(Screen::Overview, &[&leaking(150)]);
    let rows = screen(&mut app, (120, 40));
    let (_, top) = find(&rows, "Peak by step");
    find(&rows, "steps 0 to 149, 2 per column");
    // WHEN the third column is clicked THEN the moment shown is the end of the sixth step
    click(&mut app, 1 + 10 + 2, top + 2);
    assert_eq!(app.context.cursor_time(), Some(app.context.device().expect("a device").steps[5].end_time));
    files.show(&mut app);
    assert_looks("overview-steps", &mut app);
}

#[test]
fn a_program_without_pytorch_has_a_peak_of_used_memory() {
    let mut story = Story::begin(4242, None);
    story.device(0, 141 * GIB);
    story.line(r#"["d+",5000000,1,0,4096,1073741824,"device","cudaMalloc","main",1,0,0]"#);
    story.used(0, 2 * GIB, 141 * GIB, GIB);
    let mut app = app_on(Screen::Overview, vec![story.process(ProcessState::Recording)]);
    let rows = screen(&mut app, (120, 40));
    find(&rows, "peak 2.00 GiB in use at");
}

/// A dashboard in each state.
fn any_app(state: usize) -> App {
    match state {
        0 => app_on(Screen::Steps, Vec::new()),
        1 => opened(Screen::Steps, &[&leaking(7)]).0,
        2 => opened(Screen::Steps, &[&hostile()]).0,
        3 => app_on(Screen::Ranks, eight_ranks()),
        4 => app_on(
            Screen::Steps,
            vec![hostile().process(ProcessState::Killed), hostile().process(ProcessState::Recording)],
        ),
        _ => app_on(Screen::Ranks, vec![ProcessSnapshot::default(), trained(2).process(ProcessState::Killed)]),
    }
}

fn assert_harmless(buffer: &Buffer) {
    for cell in &buffer.content {
        assert!(!cell.symbol().chars().any(text::is_unsafe), "{:?}", cell.symbol());
    }
}

#[test]
fn small_screens_do_not_panic() {
    for state in 0..6 {
        let mut app = any_app(state);
        for screen in [Screen::Overview, Screen::Steps, Screen::Ranks] {
            app.screen = screen;
            for columns in (1..=46).step_by(3) {
                for rows in 1..=26 {
                    let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
                    app::draw(&mut buffer, &mut app);
                    assert_harmless(&buffer);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_size_and_any_keys_do_not_panic(
        state in 0usize..6,
        first in "[157]",
        keys in "[157pnNOwsSTudDhjkgGmM ]{0,14}",
        clicks in prop::collection::vec((0u16..320, 0u16..110), 0..4),
        columns in 1u16..320,
        rows in 1u16..110,
    ) {
        let mut app = any_app(state);
        press(&mut app, &first);
        let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
        app::draw(&mut buffer, &mut app);
        press(&mut app, &keys);
        for (x, y) in clicks {
            click(&mut app, x, y);
        }
        let _ = app.query();
        buffer.reset();
        app::draw(&mut buffer, &mut app);
        assert_harmless(&buffer);
    }
}
