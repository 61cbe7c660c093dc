//! The dashboard's screens: snapshots in every state, at three sizes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::common::{GIB, START, Story, hostile, trained};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use memlab_base::text;
use memlab_base::theme::{Depth, Palette, Theme};
use memlab_follow::offload::mover::{MemoryLocation, MoverUpdate};
use memlab_follow::request::UiRequest;
use memlab_follow::snapshot::{ProcessSnapshot, ProcessState, Snapshot};
use memlab_protocol::status::{MoveState, MoveStatus, Operation, OperationKind, OperationPhase};
use memlab_trace::Category;
use memlab_tui::app::{self, App};
use memlab_tui::context::ShownMoment;
use memlab_tui::overlays::Overlay;
use memlab_tui::program_terminal::ProgramTerminal;
use memlab_tui::screen::Screen;
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;

const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 60)];

fn theme() -> Theme {
    Theme::new(Palette::Dark, Depth::True, true)
}

fn snapshot(processes: Vec<ProcessSnapshot>) -> Snapshot {
    Snapshot { processes, ..Snapshot::default() }
}

/// A dashboard on these processes, `later` seconds after their start.
fn app_on(processes: Vec<ProcessSnapshot>, later: u64) -> App {
    let mut app = App::new(theme(), "waiting for the program to use CUDA…");
    app.on_snapshot(Arc::new(snapshot(processes)));
    app.on_tick(START + later * 1_000_000_000);
    app
}

fn live(steps: u64) -> App {
    let story = trained(steps);
    let later = story.seconds() + 1;
    app_on(vec![story.process(ProcessState::Recording)], later)
}

fn with_output(app: App, (columns, rows): (u16, u16)) -> App {
    let (rows, columns) = app::output_size(columns, rows);
    let mut screen = ProgramTerminal::new(rows, columns);
    for step in 0..30 {
        screen.process(format!("step {step:>3} \x1b[32mloss\x1b[0m {:.3}\r\n", 4.0 / f64::from(step + 1)).as_bytes());
    }
    screen.process(b" 37%|\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x8b      | 37/100 [00:12<00:20]");
    app.with_program(Arc::new(Mutex::new(screen)))
}

fn press(app: &mut App, keys: &str) {
    for key in keys.chars() {
        app.on_key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE));
    }
}

fn draw(app: &mut App, (columns, rows): (u16, u16)) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a test backend does not fail");
    terminal.draw(|frame| app::draw(frame.buffer_mut(), app)).expect("a test backend does not fail");
    terminal
}

/// Compares the screen at all three sizes with its snapshots.
fn assert_looks(name: &str, mut make: impl FnMut((u16, u16)) -> App) {
    insta::with_settings!({ snapshot_path => "screens", prepend_module_to_snapshot => false, omit_expression => true }, {
        for size in SIZES {
            let terminal = draw(&mut make(size), size);
            insta::assert_snapshot!(format!("{name}-{}x{}", size.0, size.1), terminal.backend());
        }
    });
}

#[test]
fn waiting_for_the_first_allocation() {
    assert_looks("waiting", |_| app_on(Vec::new(), 0));
}

#[test]
fn opening_a_long_trace() {
    let opening = || ProcessSnapshot {
        path: "/home/ada/gpt/memlab-train-4242.jsonl".into(),
        state: ProcessState::Opening { read: 1 << 30, total: 5 << 30 },
        ..ProcessSnapshot::default()
    };
    assert_looks("opening", |_| app_on(vec![opening()], 0));
}

#[test]
fn live_training_with_the_programs_output() {
    assert_looks("live", |size| with_output(live(12), size));
}

#[test]
fn paused_at_the_peak() {
    assert_looks("paused", |_| {
        // GIVEN a run that is paused and shown at its peak
        let mut app = live(6);
        press(&mut app, " p");
        // WHEN more events arrive THEN the screen does not change
        app.on_snapshot(Arc::new(snapshot(vec![trained(12).process(ProcessState::Recording)])));
        app.on_tick(START + 99_000_000_000);
        app
    });
}

#[test]
fn ended() {
    assert_looks("ended", |_| {
        let mut story = trained(12);
        story.end("0", "null");
        let later = story.seconds() + 1000;
        app_on(vec![story.process(ProcessState::Ended { code: Some(0), signal: None })], later)
    });
}

#[test]
fn out_of_memory_then_killed() {
    assert_looks("oom", |_| {
        let mut story = trained(3);
        story.out_of_memory(0);
        story.end("null", "9");
        app_on(vec![story.process(ProcessState::Ended { code: None, signal: Some(9) })], 1000)
    });
}

#[test]
fn findings_open_in_full() {
    assert_looks("findings", |_| {
        // GIVEN a program that ran out of memory WHEN `!` is pressed THEN the whole finding and its cure are shown
        let mut story = trained(3);
        story.out_of_memory(0);
        story.end("1", "null");
        let mut app = app_on(vec![story.process(ProcessState::Ended { code: Some(1), signal: None })], 1000);
        press(&mut app, "!");
        app
    });
}

#[test]
fn two_devices_and_two_ranks() {
    assert_looks("devices", |_| {
        // GIVEN two ranks, the first with two devices
        let mut first = Story::begin(4242, Some((0, 2)));
        first.train(0, 2);
        first.train(1, 1);
        let mut second = Story::begin(4243, Some((1, 2)));
        second.train(0, 3);
        let mut app = app_on(vec![first.process(ProcessState::Recording), second.process(ProcessState::Recording)], 20);
        // WHEN the next device is selected twice THEN the second rank's device is shown
        press(&mut app, "dd");
        app
    });
}

#[test]
fn an_end_without_memory_shows_the_peak() {
    // GIVEN a run on the screen that holds memory
    let mut story = trained(3);
    let mut app = app_on(vec![story.process(ProcessState::Recording)], 5);
    assert_eq!(app.context.moment, ShownMoment::Now);
    // WHEN it frees everything and ends THEN the peak is shown
    story.free_all();
    story.end("0", "null");
    let ended = || Arc::new(snapshot(vec![story.process(ProcessState::Ended { code: Some(0), signal: None })]));
    app.on_snapshot(ended());
    assert_eq!(app.context.moment, ShownMoment::Peak);
    // AND `p` shows the end
    press(&mut app, "p");
    app.on_snapshot(ended());
    assert_eq!(app.context.moment, ShownMoment::Now);
}

#[test]
fn table_of_lines() {
    assert_looks("lines", |_| {
        let mut app = live(4);
        press(&mut app, "2jjss");
        app
    });
}

#[test]
fn table_of_layers_filtered() {
    assert_looks("layers", |_| {
        let mut app = live(4);
        press(&mut app, "3/h.2");
        app.on_key(KeyCode::Enter.into());
        app
    });
}

/// A training whose steps are ranges, with memory outside them.
fn in_ranges() -> Story {
    let mut story = Story::begin(4242, None);
    story.device(0, 141 * GIB);
    for (id, parent, name) in
        [(1, 0, "load"), (2, 0, "step"), (3, 2, "forward"), (4, 3, "attention"), (5, 2, "backward")]
    {
        story.line(&format!(r#"{{"range":{id},"parent":{parent},"name":"{name}"}}"#));
    }
    for (range, mib, stack, layer, flags) in [
        (1, 3072, 1, 0, 64),
        (0, 96, 6, 0, 0),
        (3, 900, 4, 12, 5),
        (4, 700, 3, 11, 5),
        (5, 1024, 3, 11, 18),
        (2, 64, 5, 0, 3),
    ] {
        story.line(&format!(r#"["range",0,1,{range}]"#));
        story.alloc(0, mib << 20, stack, layer, flags);
    }
    story
}

#[test]
fn table_of_ranges() {
    assert_looks("ranges", |_| {
        // GIVEN a program that names ranges
        let mut app = app_on(vec![in_ranges().process(ProcessState::Recording)], 5);
        // WHEN they replace the layers on the screen, and a range that contains another is closed
        press(&mut app, "3ajjh");
        app
    });
}

#[test]
fn a_program_without_ranges() {
    let mut app = live(2);
    press(&mut app, "3a");
    let screen = format!("{}", draw(&mut app, (120, 40)).backend());
    assert!(screen.contains("none: name a range with memlab.annotate"), "{screen}");
    // The layers come back with the same key.
    press(&mut app, "a");
    assert!(!format!("{}", draw(&mut app, (120, 40)).backend()).contains("name a range"));
}

#[test]
fn output_of_the_program() {
    assert_looks("output", |size| {
        let mut app = with_output(live(2), size);
        press(&mut app, "9");
        app
    });
}

#[test]
fn help_and_the_leave_question() {
    assert_looks("help", |_| {
        let mut app = live(2);
        press(&mut app, "?");
        app
    });
    // On a small screen, the rest is reached by scrolling.
    assert_looks("help-end", |size| {
        let mut app = live(2);
        press(&mut app, "?");
        // The scroll range is known only after drawing.
        draw(&mut app, size);
        press(&mut app, "G");
        app
    });
    assert_looks("leave", |size| {
        let mut app = with_output(live(2), size);
        press(&mut app, "q");
        app
    });
}

/// A dashboard with this status of its process's memory.
fn with_move_status(mut app: App, moving: MoveStatus) -> App {
    let about = MemoryLocation { moving: Some(moving), ..MemoryLocation::default() };
    app.on_mover_update(MoverUpdate { known: HashMap::from([(4242, about)]), outcomes: Vec::new() });
    app
}

fn resident() -> MoveStatus {
    MoveStatus { enabled: true, device_bytes: 4 * GIB, ..MoveStatus::default() }
}

fn offloading() -> MoveStatus {
    let operation = Operation {
        id: 1,
        phase: OperationPhase::Copying,
        done_bytes: GIB,
        total_bytes: 4 * GIB,
        seconds: 0.06,
        copy_seconds: 0.05,
        ..Operation::default()
    };
    MoveStatus { state: MoveState::Offloading, operation: Some(operation), ..resident() }
}

fn offloaded() -> MoveStatus {
    MoveStatus { state: MoveState::Offloaded, host_bytes: 4 * GIB, device_bytes: 0, ..resident() }
}

/// An operation with out-of-range values.
fn hostile_operation() -> Operation {
    Operation {
        done_bytes: u64::MAX,
        total_bytes: 1,
        seconds: f64::MAX,
        error: Some("\u{1b}[2J".repeat(300)),
        ..Operation::default()
    }
}

#[test]
fn memory_is_moved_from_the_dashboard() {
    assert_looks("move-question", |_| {
        let mut app = with_move_status(live(2), resident());
        press(&mut app, "o");
        app
    });
    assert_looks("move-progress", |_| with_move_status(live(2), offloading()));
    assert_looks("move-offloaded", |_| with_move_status(live(2), offloaded()));
    assert_looks("move-ranks", |_| {
        let mut app = with_move_status(live(2), offloaded());
        press(&mut app, "7");
        app
    });
    assert_looks("move-failed", |_| {
        let mut app = with_move_status(live(2), resident());
        let error = "train.py (pid 4242): offloading failed: 141 GiB of host memory are needed and 12 GiB are free: free some, \
                     or offload parts with `memlab offload --category`";
        app.on_mover_update(MoverUpdate { known: HashMap::new(), outcomes: vec![Err(error.to_owned())] });
        app
    });
}

/// The request that a key causes.
fn asked(app: &mut App, key: char) -> Option<UiRequest> {
    app.on_key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE))
}

#[test]
fn offloading_requires_confirmation_and_restoring_does_not() {
    // GIVEN a process with its memory on the device WHEN o is pressed THEN a question appears, and n closes it
    let mut app = with_move_status(live(2), resident());
    assert_eq!(asked(&mut app, 'o'), None);
    assert!(matches!(app.overlay, Some(Overlay::Offload(_))));
    assert_eq!(asked(&mut app, 'n'), None);
    assert_eq!(app.overlay, None);
    // WHEN it is answered with yes THEN one request is sent
    asked(&mut app, 'o');
    assert_eq!(asked(&mut app, 'x'), None);
    let Some(UiRequest::Move(order)) = asked(&mut app, 'y') else { panic!() };
    assert_eq!((order.of.pid, order.kind, order.by_driver), (4242, OperationKind::Offload, false));
    assert_eq!(asked(&mut app, 'y'), None);
    // AND nothing can be restored yet
    assert_eq!(asked(&mut app, 'r'), None);
    assert!(
        app.context
            .notice
            .as_ref()
            .is_some_and(|notice| notice.contains("train.py (pid 4242) has nothing in host memory")),
        "{:?}",
        app.context.notice
    );
    // WHEN memory is moving THEN neither is possible
    let mut app = with_move_status(app, offloading());
    for key in ['o', 'r'] {
        assert_eq!(asked(&mut app, key), None);
        assert!(
            app.context.notice.as_ref().is_some_and(|notice| notice.contains("is already moving")),
            "{:?}",
            app.context.notice
        );
    }
    // WHEN it is offloaded THEN r restores it
    let mut app = with_move_status(app, offloaded());
    let Some(UiRequest::Move(order)) = asked(&mut app, 'r') else { panic!() };
    assert_eq!((order.kind, order.by_driver), (OperationKind::Restore, false));
    // AND a checkpoint of the driver is restored by the driver
    let mut app = with_move_status(app, MoveStatus { state: MoveState::Checkpointed, ..MoveStatus::default() });
    let Some(UiRequest::Move(order)) = asked(&mut app, 'r') else { panic!() };
    assert!(order.by_driver);
}

#[test]
fn a_process_that_memlab_cannot_move_is_checkpointed_by_the_driver() {
    let mut app = with_move_status(
        live(2),
        MoveStatus { why_not: Some("started without --offload".into()), ..MoveStatus::default() },
    );
    asked(&mut app, 'o');
    let text = format!("{:?}", draw(&mut app, (120, 40)).backend());
    assert!(text.contains("with the CUDA driver (--full)?"), "{text}");
    let Some(UiRequest::Move(order)) = asked(&mut app, 'y') else { panic!() };
    assert!(order.by_driver);
}

#[test]
fn impossible_moves_are_explained() {
    // GIVEN a program that has ended, as in `memlab view` WHEN keys request a move THEN a notice refuses it
    let mut story = trained(2);
    story.end("0", "null");
    let mut app = app_on(vec![story.process(ProcessState::Ended { code: Some(0), signal: None })], 5);
    for key in ['o', 'r'] {
        assert_eq!(asked(&mut app, key), None);
        assert_eq!(app.context.notice.as_deref(), Some("train.py (pid 4242) has ended and holds no GPU memory"));
    }
    // AND its status is not queried
    assert_eq!(app.watched(), []);
    // GIVEN a process that has not answered, one that cannot be moved, and no process
    let mut app = live(2);
    assert_eq!(app.watched()[0].trace_id, "5f3c9a1be07d4c22");
    asked(&mut app, 'o');
    assert!(app.context.notice.as_ref().is_some_and(|notice| notice.contains("has not answered yet")));
    let about = MemoryLocation { problem: Some("process 4242 refuses".into()), ..MemoryLocation::default() };
    app.on_mover_update(MoverUpdate { known: HashMap::from([(4242, about)]), outcomes: Vec::new() });
    asked(&mut app, 'o');
    assert_eq!(app.context.notice.as_deref(), Some("process 4242 refuses"));
    let mut app = app_on(Vec::new(), 0);
    asked(&mut app, 'r');
    assert_eq!(app.context.notice.as_deref(), Some("no process yet"));
}

#[test]
fn on_the_processes_screen_keys_move_the_selected_process() {
    let mut second = Story::begin(4243, Some((1, 2)));
    second.train(0, 1);
    let mut app =
        app_on(vec![trained(1).process(ProcessState::Recording), second.process(ProcessState::Recording)], 20);
    let about = |moving| MemoryLocation { moving: Some(moving), ..MemoryLocation::default() };
    let known = HashMap::from([(4242, about(resident())), (4243, about(offloaded()))]);
    app.on_mover_update(MoverUpdate { known, outcomes: Vec::new() });
    press(&mut app, "7j");
    draw(&mut app, (120, 40));
    let Some(UiRequest::Move(order)) = asked(&mut app, 'r') else { panic!("{:?}", app.context.notice) };
    assert_eq!(order.of.pid, 4243);
    press(&mut app, "1");
    assert_eq!(asked(&mut app, 'r'), None);
}

#[test]
fn without_colours_and_without_unicode() {
    let mono = |unicode| {
        let mut app = live(6);
        app.context.theme = Theme::new(Palette::Mono, Depth::Ansi, unicode);
        app
    };
    assert_looks("mono", |_| mono(true));
    assert_looks("ascii", |_| mono(false));
    // AND the screen has only ASCII characters
    let terminal = draw(&mut mono(false), (120, 40));
    let beyond: Vec<_> = terminal.backend().buffer().content.iter().filter(|cell| !cell.symbol().is_ascii()).collect();
    assert!(beyond.is_empty(), "{beyond:?}");
}

#[test]
fn styles_of_a_live_screen() {
    insta::with_settings!({ snapshot_path => "screens", prepend_module_to_snapshot => false, omit_expression => true }, {
        for palette in [Palette::Dark, Palette::Light, Palette::Contrast] {
            let mut app = live(3);
            app.context.theme = Theme::new(palette, Depth::True, true);
            let terminal = draw(&mut app, (80, 24));
            insta::assert_debug_snapshot!(format!("styles-{palette:?}").to_lowercase(), terminal.backend().buffer());
        }
    });
}

fn assert_harmless(buffer: &Buffer) {
    for cell in &buffer.content {
        assert!(!cell.symbol().chars().any(text::is_unsafe), "{:?}", cell.symbol());
    }
}

#[test]
fn hostile_names_cannot_control_the_terminal() {
    // GIVEN a trace with escape codes, loops and out-of-range numbers
    for screen in Screen::ALL {
        let mut app = app_on(vec![hostile().process_in(ProcessState::Recording, screen.detail())], 5);
        app.screen = screen;
        // WHEN it is shown at any size THEN no cell has a control character
        for size in SIZES {
            assert_harmless(draw(&mut app, size).backend().buffer());
        }
    }
}

/// A dashboard in each state.
fn any_app(state: usize) -> App {
    match state {
        0 => app_on(Vec::new(), 0),
        1 => with_move_status(
            with_output(live(3), (80, 24)),
            MoveStatus { operation: Some(hostile_operation()), ..offloading() },
        ),
        2 => app_on(vec![hostile().process(ProcessState::Recording)], 5),
        3 => {
            let mut story = trained(1);
            story.out_of_memory(0);
            app_on(vec![story.process(ProcessState::Killed)], 5)
        }
        _ => app_on(vec![ProcessSnapshot::default()], 5),
    }
}

#[test]
fn small_screens_do_not_panic() {
    for state in 0..5 {
        let mut app = any_app(state);
        for screen in Screen::ALL {
            app.screen = screen;
            for (overlay, key) in [(None, ""), (None, "?"), (Some(Overlay::Leave), ""), (None, "e")] {
                app.overlay = overlay;
                press(&mut app, key);
                for columns in (1..=44).step_by(3) {
                    for rows in 1..=26 {
                        let mut buffer = Buffer::empty(ratatui::layout::Rect::new(0, 0, columns, rows));
                        app::draw(&mut buffer, &mut app);
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_size_and_any_keys_do_not_panic(
        state in 0usize..5,
        keys in "[ 12345678pswuTdDhjklgGS/?xqicezmMnNOtf+ory\t\n]{0,16}",
        columns in 1u16..320,
        rows in 1u16..110,
    ) {
        let mut app = any_app(state);
        press(&mut app, &keys);
        let mut buffer = Buffer::empty(ratatui::layout::Rect::new(0, 0, columns, rows));
        app::draw(&mut buffer, &mut app);
        assert_harmless(&buffer);
    }
}

#[test]
fn categories_are_stacked_over_time() {
    // Letters make the order of the stack readable in the snapshot.
    assert_looks("categories", |_| {
        let mut app = live(6);
        app.context.theme = Theme::new(Palette::Mono, Depth::Ansi, true);
        press(&mut app, "c");
        app
    });
    // AND in color each category has a different color, from bottom to top
    let mut app = live(6);
    press(&mut app, "c");
    let terminal = draw(&mut app, (120, 40));
    let scale = app.context.hit_targets.time_scale().expect("the chart was drawn");
    let peak = app.context.device().expect("there is one").totals.peak_time;
    let column = scale.left + scale.index_of(peak).expect("it is on the axis") as u16;
    let grounds: Vec<_> = (3..18).rev().map(|y| terminal.backend().buffer()[(column, y)].bg).collect();
    let of = |category| grounds.iter().position(|ground| *ground == app.context.theme.category(category));
    let places = [Category::Parameter, Category::OptimizerState, Category::Activation].map(of);
    assert!(places.is_sorted() && places.iter().all(Option::is_some), "{places:?} in {grounds:?}");
}

#[test]
fn steps_can_take_equal_room_in_the_chart() {
    // GIVEN a run whose first step took longest; WHEN the chart is by step THEN every step has its number below it
    assert_looks("by-step", |_| {
        let mut app = live(6);
        press(&mut app, "x");
        app
    });
}

#[test]
fn small_screens_cut_no_figure() {
    // GIVEN memory whose axis needs labels of every width, and a device that is nearly full
    for (used, total, labels) in
        [(600, 141 * 1024, ["512 MiB"]), (81_101, 81_101, ["79.2 GiB"]), (1300, 8192, ["1 GiB"])]
    {
        let mut story = Story::begin(4242, None);
        story.device(0, total << 20);
        story.alloc(0, used << 20, 1, 0, 64);
        let mut app = app_on(vec![story.process(ProcessState::Ended { code: Some(0), signal: None })], 10);
        let screen = text_of(&draw(&mut app, (30, 8)));
        let rows = screen.lines().skip(2).take(5).collect::<Vec<_>>().join("\n");
        for label in labels {
            assert!(rows.contains(label) && !rows.contains('…'), "{label} in\n{rows}");
        }
    }
}

fn text_of(terminal: &Terminal<TestBackend>) -> String {
    memlab_report::export::text_picture(terminal.backend().buffer())
}
