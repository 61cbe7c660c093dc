//! `memlab view`: the dashboard on traces, finished or still growing; or one picture of it.

use std::io::Write;
use std::path::{Path, PathBuf};

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::app::{App, Moment, Screen};
use crate::export::{svg, text_picture};
use crate::fault::bad_input;
use crate::feed::{Feed, Followed, Source};
use crate::session::{self, now_unix_ns};
use crate::snapshot::Snapshot;
use crate::theme::{Depth, Palette, Theme};
use crate::{terminal, view};

/// What to show, and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The traces: the ranks of a job go into one view.
    pub files: Vec<PathBuf>,
    /// Print one picture and end.
    pub once: bool,
    /// Write one picture as SVG and end.
    pub svg: Option<PathBuf>,
    /// The picture's columns and rows.
    pub size: Option<(u16, u16)>,
    /// The screen to begin with.
    pub screen: Screen,
    /// Whether to show the moment of the peak.
    pub at_peak: bool,
    /// Colours.
    pub theme: Option<Palette>,
}

/// Shows them.
///
/// # Errors
///
/// If a file is no trace that can be read.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let mut followed = Vec::new();
    for file in &options.files {
        followed.push(Followed::open(file)?);
    }
    if options.once || options.svg.is_some() {
        return picture(followed, options);
    }
    terminal::check("add --once for one picture as text, or use `memlab report FILE`")?;
    let feed = Feed::start(Source::Traces(followed));
    let mut app = app(Theme::detect(options.theme), options);
    session::run(&mut app, &feed, None)?;
    Ok(())
}

fn app(theme: Theme, options: &Options) -> App {
    let mut app = App::new(theme, "opening the trace…");
    app.screen = options.screen;
    if options.at_peak {
        app.show(Moment::Peak);
    }
    app
}

/// Reads the traces as far as they go and draws one screen.
fn picture(mut followed: Vec<Followed>, options: &Options) -> anyhow::Result<()> {
    for followed in &mut followed {
        while followed.poll(&|| false).more {}
    }
    let mut snapshot = Snapshot { processes: followed.iter().map(Followed::snapshot).collect() };
    snapshot.processes.sort_by_key(|process| (process.header.rank, process.header.pid));
    if let Some(failure) =
        snapshot.processes.iter().find_map(|process| process.failure.as_ref().filter(|_| process.events == 0))
    {
        return Err(bad_input(failure.clone()));
    }
    let (columns, rows) = options.size.unwrap_or_else(|| match options.svg {
        Some(_) => (120, 40),
        None => {
            crossterm::terminal::size().ok().filter(|(columns, rows)| *columns > 0 && *rows > 0).unwrap_or((120, 40))
        }
    });
    let theme = match &options.svg {
        Some(_) => Theme::new(options.theme.unwrap_or_default(), Depth::True, true),
        None => Theme::detect(Some(Palette::Mono)),
    };
    let mut app = app(theme, options);
    app.on_snapshot(snapshot.into());
    app.on_tick(now_unix_ns());
    let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
    view::draw(&mut buffer, &mut app);
    match &options.svg {
        Some(path) => write(path, &svg::picture(&buffer, &app.theme)),
        None => Ok(std::io::stdout().lock().write_all(text_picture(&buffer).as_bytes())?),
    }
}

fn write(path: &Path, content: &str) -> anyhow::Result<()> {
    std::fs::write(path, content).map_err(|error| anyhow::anyhow!("{}: cannot be written: {error}", path.display()))
}
