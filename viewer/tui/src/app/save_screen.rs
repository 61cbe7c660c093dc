//! Writes the content of the screen to a file: rows as CSV or JSON, or the screen as a picture.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::draw::draw;
use super::state::App;
use memlab_follow::request::ExportKind;
use memlab_report::export::svg;

/// Writes the screen to a file in the working directory; returns a message for the status line.
pub fn save(app: &mut App, kind: ExportKind, (columns, rows): (u16, u16)) -> String {
    let (content, extension) = match kind {
        ExportKind::Svg => {
            let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
            draw(&mut buffer, app);
            (svg::picture(&buffer, &app.context.theme), "svg")
        }
        ExportKind::Csv | ExportKind::Json => {
            let Some(rows) = app.current_screen().rows(&app.context) else {
                return "this screen has no table: export it as a picture".to_owned();
            };
            match kind {
                ExportKind::Csv => (rows.csv(), "csv"),
                _ => (rows.json(), "json"),
            }
        }
    };
    let name = app.screen.title().to_lowercase();
    let pid = app.context.process().map_or(0, |process| process.header.pid);
    match create(&format!("memlab-{name}-{pid}"), extension, &content) {
        Ok(path) => format!("written to {}", path.display()),
        Err(error) => format!("nothing was written: {error}"),
    }
}

/// Creates a file under an unused name.
fn create(name: &str, extension: &str, content: &str) -> io::Result<PathBuf> {
    for number in 0..1000 {
        let suffix = if number == 0 { String::new() } else { format!("-{number}") };
        let path = PathBuf::from(format!("{name}{suffix}.{extension}"));
        match File::create_new(&path) {
            Ok(mut file) => return file.write_all(content.as_bytes()).map(|()| path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
