//! GPU time on the dashboard: a column of the lines and the layers, and a separate screen.

use crate::common::dashboard::{app_on, assert_looks, press, screen};
use crate::common::{Opened, Story, timed, trained};
use crossterm::event::{KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use memlab_tui::app::App;
use memlab_tui::screen::{Screen, TimeTable};
use memlab_tui::screens::lines::LineColumn;
use memlab_tui::screens::screen_state::ScreenState;

/// A dashboard on a trace, after some keys.
fn pressed(story: &Story, keys: &str) -> (App, Opened) {
    let mut app = app_on(Vec::new());
    let mut opened = Opened::new(&[story]);
    opened.show(&mut app);
    for key in keys.chars() {
        press(&mut app, &key.to_string());
        opened.show(&mut app);
    }
    (app, opened)
}

fn click(app: &mut App, words: &str) {
    let text = screen(app);
    let (row, line) = text.lines().enumerate().find(|(_, line)| line.contains(words)).expect("on the screen");
    let column = line[..line.find(words).unwrap()].chars().count();
    let kind = MouseEventKind::Down(MouseButton::Left);
    app.on_mouse(MouseEvent { kind, column: column as u16, row: row as u16, modifiers: KeyModifiers::NONE });
}

#[test]
fn lines_and_layers_have_a_column_of_gpu_time() {
    // GIVEN a trace with GPU time; WHEN lines are sorted by it; THEN the line without memory is shown too
    assert_looks("timed-lines", || pressed(&timed(6), "2ss").0);
    // AND a closed layer has the time of the layers inside it
    assert_looks("timed-layers", || pressed(&timed(6), "3ssj").0);
    // AND an exported file has it
    let (app, _opened) = pressed(&timed(6), "2");
    let rows = app.lines.rows(&app.context).expect("a table").json();
    assert!(rows.contains(r#""gpu_time_ns": 124900000"#), "{rows}");
}

#[test]
fn the_column_is_absent_without_gpu_time() {
    // GIVEN a trace without GPU time; WHEN lines are sorted by one column after the other
    let (mut app, _opened) = pressed(&trained(3), "2");
    for _ in 0..12 {
        press(&mut app, "s");
        // THEN the sort never uses the missing column
        assert_ne!(app.lines.table.sort, LineColumn::GpuTime);
    }
    assert!(!screen(&mut app).contains("GPU time"));
    assert!(!app.lines.rows(&app.context).expect("a table").csv().contains("GPU time"));
    // AND the screen of time explains how to record it
    assert_looks("time-none", || pressed(&trained(3), "8").0);
}

#[test]
fn gpu_time_by_layer_kernel_and_copy() {
    // GIVEN a trace with GPU time; WHEN its screen is shown, with the keys on the layers, the kernels, the filtered copies
    assert_looks("time", || pressed(&timed(6), "8z").0);
    assert_looks("time-kernels", || pressed(&timed(6), "8cj").0);
    assert_looks("time-copies", || pressed(&timed(6), "8cc/kind:copy\n").0);
    assert!(screen(&mut pressed(&timed(6), "8").0).contains("GPU busy 75 % · waits for the host 22 %"));
    // AND at another moment; THEN it still covers the run
    let (mut app, _opened) = pressed(&timed(6), "8p");
    let at_peak = screen(&mut app);
    assert!(at_peak.contains("GPU time 155 ms") && at_peak.contains("sm90_xmma_gemm_bf16"), "{at_peak}");
    let (mut app, _opened) = pressed(&timed(6), "8N");
    let then = screen(&mut app);
    assert!(then.contains("GPU time 155 ms") && then.contains("sm90_xmma_gemm_bf16"), "{then}");
}

#[test]
fn time_follows_the_program() {
    // GIVEN the screen of time of a running program
    let mut story = timed(2);
    let (mut app, mut opened) = pressed(&story, "8");
    assert!(screen(&mut app).contains("GPU time 155 ms"));
    // WHEN more is recorded; THEN it is shown
    story.line(r#"["work",9000000000,0,3,11,1,1,10,845000000,0]"#);
    opened.rewrite(&[&story]);
    opened.show(&mut app);
    assert!(screen(&mut app).contains("GPU time 1.00 s"));
}

#[test]
fn the_mouse_moves_between_the_tables() {
    let (mut app, _opened) = pressed(&timed(6), "8");
    screen(&mut app);
    // WHEN a heading of the copies is clicked; THEN they are sorted by it, and the keys go there
    click(&mut app, "GB/s");
    assert_eq!((app.screen, app.time.focus), (Screen::Time, TimeTable::Copies));
    let names: Vec<String> = app.time.copy_items(&app.context).into_iter().map(|row| row.kernel.name).collect();
    assert_eq!(names, ["fill", "pinned to device"]);
    // AND an exported file has the table that the keys move in
    let rows = app.time.rows(&app.context).expect("a table").json();
    assert!(rows.contains(r#""share_of_link": 0.25"#), "{rows}");
    assert!(rows.contains(r#""name": "pinned to device""#) && !rows.contains("gemm"), "{rows}");
    // AND a click on a row moves the keys to its table
    click(&mut app, "sm90_xmma");
    assert_eq!(app.time.focus, TimeTable::Kernels);
}
