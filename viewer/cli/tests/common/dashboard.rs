//! A dashboard drawn into a buffer, and compared with snapshots in `tests/screens/`.

use std::sync::Arc;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use memlab_base::theme::{Depth, Palette, Theme};
use memlab_follow::snapshot::{ProcessSnapshot, ProcessState, Snapshot};
use memlab_report::export;
use memlab_tui::app::{self, App};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::START;

pub const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 60)];

pub const ENDED: ProcessState = ProcessState::Ended { code: Some(0), signal: None };

pub fn app_on(processes: Vec<ProcessSnapshot>) -> App {
    let mut app = App::new(Theme::new(Palette::Dark, Depth::True, true), "waiting…");
    app.on_tick(START + 2_000_000_000);
    app.on_snapshot(Arc::new(Snapshot { processes, ..Snapshot::default() }));
    app
}

pub fn press(app: &mut App, keys: &str) {
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

pub fn terminal(app: &mut App, (columns, rows): (u16, u16)) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a test backend does not fail");
    terminal.draw(|frame| app::draw(frame.buffer_mut(), app)).expect("a test backend does not fail");
    terminal
}

pub fn screen(app: &mut App) -> String {
    let mut buffer = Buffer::empty(Rect::new(0, 0, 200, 60));
    app::draw(&mut buffer, app);
    export::text_picture(&buffer)
}

pub fn assert_looks(name: &str, mut make: impl FnMut() -> App) {
    assert_looks_at(name, &SIZES, &mut make);
}

pub fn assert_looks_at(name: &str, sizes: &[(u16, u16)], mut make: impl FnMut() -> App) {
    insta::with_settings!({ snapshot_path => "../screens", prepend_module_to_snapshot => false, omit_expression => true }, {
        for size in sizes {
            let terminal = terminal(&mut make(), *size);
            insta::assert_snapshot!(format!("{name}-{}x{}", size.0, size.1), terminal.backend());
        }
    });
}
