//! Holders of the memory of a line or layer in the dashboard: of recorded and of running programs.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Arc;

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
    // GIVEN the block of the leaking layer, closed; THEN the memory inside it is in question too
    let shown = screen(&mut recorded("3/h.0\n"));
    assert!(shown.contains("list history"), "{shown}");
}
