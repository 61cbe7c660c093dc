//! Holders of the memory of a line or layer in the dashboard: of recorded and of running programs.

use std::fs::OpenOptions;
use std::io::Write;

use crate::common::child::becomes_true;
use crate::common::dashboard::{ENDED, SIZES, app_on, press, screen, terminal};
use crate::common::process::{Movable, Runtime};
use crate::common::session::Session;
use crate::common::{MIB, Opened, Story, of_this_process, trained};
use memlab_tui::app::App;

/// Leaks three results of a layer into a list, in a run of two steps; then a search finds them.
fn leaked(mut story: Story) -> Story {
    let kept: Vec<u64> = (0..3).map(|_| story.alloc(0, 64 * MIB, 4, 12, 5)).collect();
    story.pass(40);
    story.search(1, "history", &kept);
    story
}

/// The dashboard on a recorded run with a leak, with the key for the holders of the selected row pressed after `keys`.
fn recorded(keys: &str) -> App {
    let mut story = leaked(trained(2));
    story.end("0", "null");
    let mut app = app_on(vec![story.process(ENDED)]);
    press(&mut app, keys);
    let mut opened = Opened::new(&[&story]);
    opened.show(&mut app);
    press(&mut app, "H");
    opened.show(&mut app);
    app
}

fn assert_looks(name: &str, make: impl Fn() -> App) {
    insta::with_settings!({ snapshot_path => "screens", prepend_module_to_snapshot => false, omit_expression => true }, {
        for size in SIZES {
            insta::assert_snapshot!(format!("{name}-{}x{}", size.0, size.1), terminal(&mut make(), size).backend());
        }
    });
}

#[test]
fn the_last_search_of_a_recorded_run_is_shown() {
    // GIVEN the line of a leak under the cursor; WHEN its holders are asked for, THEN the first lines name the list
    assert_looks("holders", || recorded("2/model.py:74\n"));
}

#[test]
fn a_closed_layer_includes_the_layers_inside_it() {
    // GIVEN the outermost module, closed; THEN the memory of the leaking layer inside it is in question too
    let shown = screen(&mut recorded("3h"));
    assert!(shown.contains("of layer GPT allocated") && shown.contains("list history"), "{shown}");
    // AND likewise if it is open: its row has the figures of both
    let shown = screen(&mut recorded("3"));
    assert!(shown.contains("of layer GPT allocated") && shown.contains("list history"), "{shown}");
}

/// Answers of `memlab` to a process that writes `story`: the process, and the sockets of its user.
fn running(story: &Story, search: u64) -> (Movable, Runtime) {
    let runtime = Runtime::new();
    let trace = runtime.path().join("live.jsonl");
    std::fs::write(&trace, &story.text).expect("written");
    (Movable { trace, search_ns: search, ..Movable::new(std::process::id()) }, runtime)
}

/// The dashboard on this process, with the line of the leak selected.
fn watched(runtime: &Runtime, story: &Story) -> Session {
    let mut session = Session::start_in(runtime, &["top", &std::process::id().to_string()], story);
    session.wait_for("Device memory");
    session.press("2/model.py:74\r");
    session.wait_for("filter: model.py:74");
    session
}

#[test]
fn a_running_program_is_searched_again() {
    // GIVEN a program that was searched once, and answers that a new search begins at a later time
    let mut story = leaked(of_this_process(2));
    let before = story.text.len();
    story.pass(100);
    let (process, runtime) = running(&story, story.time_ns());
    let trace = process.trace.clone();
    let requests = process.listen(&runtime);
    let mut session = watched(&runtime, &story);
    // WHEN the key is pressed THEN the screen reports that it waits, although an earlier search exists, and takes keys
    session.press("H");
    session.wait_for("Waiting for train.py");
    session.press("x");
    session.wait_until("the lines", |text| !text.contains("Waiting for") && text.contains("allocs/s"));
    session.press("H");
    session.wait_for("Waiting for train.py");
    assert!(becomes_true(|| requests.count("holders") == 2));
    // AND it still waits when more of the trace has been read
    let mut file = OpenOptions::new().append(true).open(trace).expect("opened");
    story.end_step(2);
    file.write_all(&story.text.as_bytes()[before..]).expect("written");
    session.wait_for("after step 2");
    assert!(session.text().contains("Waiting for train.py"), "{}", session.text());
    // WHEN the search has ended THEN its answer appears
    let before = story.text.len();
    let kept = story.alloc(0, 64 * MIB, 4, 12, 5);
    story.search(2, "latest", &[kept]);
    file.write_all(&story.text.as_bytes()[before..]).expect("written");
    session.wait_for("latest (train.py:15)");
    session.press("xq");
    assert_eq!(session.end().0, 0);
}

#[test]
fn a_refusal_has_its_reason_above_the_last_search() {
    // GIVEN a program that refuses to be searched
    let story = leaked(of_this_process(2));
    let (process, runtime) = running(&story, 0);
    let refusal = Some("the process runs no Python".to_owned());
    let _requests = Movable { refusal, ..process }.listen(&runtime);
    let mut session = watched(&runtime, &story);
    // WHEN it is asked THEN the reason is shown, and the last search that was recorded
    session.press("H");
    session.wait_for("refuses: the process runs no Python");
    session.wait_for("list history");
    session.press("xq");
    assert_eq!(session.end().0, 0);
}

#[test]
fn a_run_without_a_search_says_so() {
    // GIVEN a recorded run that was never searched
    let mut story = trained(2);
    story.end("0", "null");
    let mut app = app_on(vec![story.process(ENDED)]);
    let mut opened = Opened::new(&[&story]);
    press(&mut app, "3");
    opened.show(&mut app);
    // WHEN the holders of a layer are asked for THEN the panel has the reason
    press(&mut app, "H");
    opened.show(&mut app);
    assert!(screen(&mut app).contains("the trace has no search"), "{}", screen(&mut app));
    // AND a screen without lines and layers has no holders
    press(&mut app, "x5H");
    assert_eq!(app.context.notice.as_deref(), Some("select a Python line or a layer on its screen first"));
}
