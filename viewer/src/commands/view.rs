//! `memlab view`: the dashboard on traces, finished or still growing; or one picture of it.

use std::io::Write;
use std::path::PathBuf;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::app::{App, draw};
use crate::clock::now_unix_ns;
use crate::config::Config;
use crate::error::bad_input;
use crate::export::{svg, text_picture};
use crate::feed::{Feed, Followed, Source, look};
use crate::query::Query;
use crate::save::Destination;
use crate::screen::Screen;
use crate::theme::{Depth, Palette, Theme};
use crate::{progress, session, terminal, trace_files};

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
    pub screen: Option<Screen>,
    /// The moment to show, as it is typed in the dashboard.
    pub at: Option<String>,
    /// Which rows to show, as it is typed in the dashboard.
    pub filter: Option<String>,
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
    let files = trace_files::traces(&options.files, true)?;
    for file in &files {
        followed.push(Followed::open(file)?);
    }
    if options.once || options.svg.is_some() {
        return picture(followed, options);
    }
    terminal::check("add --once for one picture as text, or use `memlab report FILE`")?;
    let mut feed = Feed::start(Source::Traces(followed));
    let config = Config::read_or_say();
    let mut app = app(&config, config.theme(options.theme), options)?;
    session::run(&mut app, &mut feed, None)?;
    Ok(())
}

fn app(config: &Config, theme: Theme, options: &Options) -> anyhow::Result<App> {
    let mut app = App::new(theme, "opening the trace…");
    app.configure(config);
    app.screen = options.screen.unwrap_or(app.screen);
    if let Some(moment) = &options.at {
        app.start_at(moment);
    }
    if let Some(filter) = &options.filter
        && let Some(error) = app.context.set_filter(filter)
    {
        return Err(bad_input(format!("--filter {filter}: {error}")));
    }
    Ok(app)
}

/// Reads the traces as far as they go and draws one screen.
fn picture(mut followed: Vec<Followed>, options: &Options) -> anyhow::Result<()> {
    progress::shown(|progress| {
        for followed in &mut followed {
            while followed.poll(&|| false).more {
                let _ = progress(followed.progress());
            }
        }
    });
    let snapshot = look(&mut followed, &Query::default(), None, &|| false).unwrap_or_default();
    if let Some(failure) =
        snapshot.processes.iter().find_map(|process| process.failure.as_ref().filter(|_| process.events_read == 0))
    {
        return Err(bad_input(failure.clone()));
    }
    let (columns, rows) = options.size.unwrap_or_else(|| match options.svg {
        Some(_) => (120, 40),
        None => {
            crossterm::terminal::size().ok().filter(|(columns, rows)| *columns > 0 && *rows > 0).unwrap_or((120, 40))
        }
    });
    // A text has no colours, and looks the same whoever prints it.
    let theme = match &options.svg {
        Some(_) => Theme::new(options.theme.unwrap_or_default(), Depth::True, true),
        None => Theme::detect(Some(Palette::Mono), None),
    };
    let mut app = app(&Config::default(), theme, options)?;
    app.on_snapshot(snapshot.into());
    app.on_tick(now_unix_ns());
    if let Some(error) = app.context.notice.take() {
        return Err(bad_input(format!("--at: {error}")));
    }
    // Some screens need more than every snapshot has.
    let query = app.query();
    if query != Query::default()
        && let Some(snapshot) = look(&mut followed, &query, None, &|| false)
    {
        app.on_snapshot(snapshot.into());
    }
    let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
    draw(&mut buffer, &mut app);
    match &options.svg {
        Some(path) => {
            let destination = Destination::of(path);
            options.files.iter().try_for_each(|file| destination.check(file, true))?;
            destination.write(|out| out.write_all(svg::picture(&buffer, &app.context.theme).as_bytes()))
        }
        None => Ok(std::io::stdout().lock().write_all(text_picture(&buffer).as_bytes())?),
    }
}
