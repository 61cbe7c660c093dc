//! `memlab view`: the dashboard on traces, finished or still growing; or one picture of it.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use memlab_base::arguments::Appearance;
use memlab_base::category::category_list;
use memlab_base::clock::now_unix_ns;
use memlab_base::error::bad_input;
use memlab_base::output;
use memlab_base::query::Query;
use memlab_base::save::Destination;
use memlab_base::theme::{Depth, Palette, Theme};
use memlab_base::{progress, trace_files};
use memlab_follow::feed::{Feed, Roster, Source, build_snapshot};
use memlab_report::export::{svg, text_picture};
use memlab_tui::app::{App, draw};
use memlab_tui::config::Config;
use memlab_tui::screen::Screen;
use memlab_tui::{session, terminal};

/// Returns the help text after the options: the syntax of `/` and `--filter`.
pub fn help() -> String {
    format!(
        "\
A row passes a filter if it meets every condition:
  attn                its name contains the word, in upper or lower case
  /h\\.[0-3]\\./         its name matches the regular expression
  size>1MiB           it holds more: > >= < <= =
  layer:h.3           it belongs to the layer, or to one inside it
  category:activation it holds memory of the category
  line:model.py, function:forward, class:Linear, kind:free, phase:backward, device:1
                      that field contains the word; a layer matches by the lines that allocated its memory
  !word, !layer:h.3   it does not meet the condition

Categories:
  {}",
        category_list()
    )
}

/// Options of `memlab view`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Traces; several, such as the ranks of a job, share one dashboard. A folder means its newest trace, with the other
    /// ranks of the job [default: the current folder].
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print one screen as text and exit.
    #[arg(long)]
    once: bool,
    /// The size of that screen [default: the terminal's, else 120x40].
    #[arg(long, value_name = "COLUMNSxROWS", value_parser = parse_size)]
    size: Option<(u16, u16)>,
    /// The first screen to show.
    #[arg(long, value_enum)]
    screen: Option<Screen>,
    /// The moment to show: 12.5s, 1:30, step:12, peak, oom, end.
    #[arg(long, value_name = "MOMENT")]
    at: Option<String>,
    /// Show only lines, layers, blocks and events that match this filter, as `/` does in the dashboard.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Write one screen as an SVG picture and exit.
    #[arg(long, value_name = "FILE", hide = true)]
    svg: Option<PathBuf>,
    #[command(flatten)]
    appearance: Appearance,
}

fn parse_size(text: &str) -> Result<(u16, u16), String> {
    let (columns, rows) = text.split_once(['x', 'X']).ok_or("write columns and rows: 120x40")?;
    let parse = |number: &str| number.parse().ok().filter(|number| (1..=1000).contains(number));
    match (parse(columns), parse(rows)) {
        (Some(columns), Some(rows)) => Ok((columns, rows)),
        _ => Err("columns and rows are numbers from 1 to 1000: 120x40".to_owned()),
    }
}

/// Maximum number of queries for one picture: for the screen, and for the row under its cursor.
const MAX_QUERIES: usize = 3;

/// Shows the dashboard, or prints one screen of it.
///
/// # Errors
///
/// If a file is not a readable trace.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let traces = trace_files::traces(&options.files, true)?;
    traces.iter().try_for_each(|trace| trace_files::check_exists(trace, "view"))?;
    let roster = Roster::open(&traces)?;
    if options.once || options.svg.is_some() {
        return picture(roster, options);
    }
    terminal::check("add --once for one picture as text, or use `memlab report FILE`")?;
    let config = Config::read_or_warn();
    let mut app = app(&config, config.theme(options.appearance.theme), options, roster.has_ranks())?;
    let mut feed = Feed::start(Source::Traces(roster));
    session::run(&mut app, &mut feed, None)?;
    Ok(())
}

fn app(config: &Config, theme: Theme, options: &Options, has_ranks: bool) -> anyhow::Result<App> {
    let mut app = App::new(theme, "opening the trace…");
    app.configure(config);
    // A job opens on the Ranks screen.
    let first = if has_ranks && app.screen == Screen::default() { Screen::Ranks } else { app.screen };
    app.screen = options.screen.unwrap_or(first);
    if let Some(moment) = &options.at {
        app.start_at(moment);
    }
    if let Some(filter) = &options.filter
        && let Err(error) = app.context.set_filter(filter)
    {
        return Err(bad_input(format!("--filter {filter}: {error}")));
    }
    Ok(app)
}

/// Reads the traces as far as they go and draws one screen.
fn picture(mut roster: Roster, options: &Options) -> anyhow::Result<()> {
    progress::report(|progress| roster.read_to_end(progress));
    let snapshot = build_snapshot(&mut roster, &Query::default(), None, &|| false).unwrap_or_default();
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
    // Text has no colors, and does not depend on the user's preferences.
    let theme = match &options.svg {
        Some(_) => Theme::new(options.appearance.theme.unwrap_or_default(), Depth::True, true),
        None => Theme::detect(Some(Palette::Mono), None),
    };
    let mut app = app(&Config::default(), theme, options, roster.has_ranks())?;
    app.on_snapshot(snapshot.into());
    app.on_tick(now_unix_ns());
    if let Some(error) = app.context.notice.take() {
        return Err(bad_input(format!("--at: {error}")));
    }
    // Some screens need data that not every snapshot has, or that their cursor selects when they are drawn.
    let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
    let mut answered = Query::default();
    for _ in 0..MAX_QUERIES {
        let query = app.query();
        if query == answered {
            break;
        }
        roster.set_front(query.front.as_deref());
        progress::report(|progress| roster.read_to_end(progress));
        if let Some(snapshot) = build_snapshot(&mut roster, &query, None, &|| false) {
            app.on_snapshot(snapshot.into());
        }
        answered = query;
        buffer.reset();
        draw(&mut buffer, &mut app);
    }
    buffer.reset();
    draw(&mut buffer, &mut app);
    match &options.svg {
        Some(path) => {
            let destination = Destination::of(path);
            options.files.iter().try_for_each(|file| destination.check(file, true))?;
            destination.write(|out| out.write_all(svg::picture(&buffer, &app.context.theme).as_bytes()))
        }
        None => Ok(output::stdout().write_all(text_picture(&buffer).as_bytes())?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_columns_and_rows() {
        assert_eq!(parse_size("120x40"), Ok((120, 40)));
        assert!(parse_size("0x5").is_err() && parse_size("12").is_err() && parse_size("axb").is_err());
    }
}
