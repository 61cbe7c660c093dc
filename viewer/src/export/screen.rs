//! What is on the screen, written to a file by a key: the rows as CSV or JSON, or the screen as a picture.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use serde_json::{Map, Value, json};

use super::{csv, svg};
use crate::app::{App, Column, EventColumn, ExportKind, LayerColumn, LineColumn, ProcessColumn, Screen, StepColumn};
use crate::format::Units;
use crate::{text, view};

/// Rows with named columns.
struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<Value>>,
}

/// Writes it beside where memlab was started; the words to show then.
pub fn write(app: &mut App, kind: ExportKind, (columns, rows): (u16, u16)) -> String {
    let (content, extension) = match kind {
        ExportKind::Svg => {
            let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
            view::draw(&mut buffer, app);
            (svg::picture(&buffer, &app.theme), "svg")
        }
        ExportKind::Csv | ExportKind::Json => {
            let Some(table) = table(app) else { return "this screen is no table: write it as a picture".to_owned() };
            match kind {
                ExportKind::Csv => (table.csv(), "csv"),
                _ => (table.json(), "json"),
            }
        }
    };
    let name = app.screen.title().to_lowercase();
    let pid = app.process().map_or(0, |process| process.header.pid);
    match create(&format!("memlab-{name}-{pid}"), extension, &content) {
        Ok(path) => format!("written to {}", path.display()),
        Err(error) => format!("nothing was written: {error}"),
    }
}

/// Makes a file under a name that is still free.
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

fn table(app: &App) -> Option<Table> {
    Some(match app.screen {
        Screen::Lines => table_of::<LineColumn>(&app.line_items(), &["function"], |row| {
            let line = row.line();
            let place = line.map(|line| text::place(line, ""));
            (place, vec![line.map(|line| line.function.to_string()).into()])
        }),
        Screen::Layers => {
            table_of::<LayerColumn>(&app.layer_items(), &["class"], |row| (row.key.1.clone(), vec![row.class().into()]))
        }
        Screen::Steps => table_of::<StepColumn>(&app.step_items(), &[], |_| (None, Vec::new())),
        Screen::Events => table_of::<EventColumn>(&app.event_items(), &["layer", "time_ns"], |row| {
            (Some(row.line().to_owned()), vec![row.layer().into(), json!(row.event.time)])
        }),
        Screen::Processes => table_of::<ProcessColumn>(&app.process_items(), &["host"], |row| {
            (Some(row.command.clone()), vec![row.host.clone().into()])
        }),
        Screen::Segments => segments(app),
        Screen::Overview | Screen::Output => return None,
    })
}

/// All columns, sizes in bytes; then the name and what else there is.
fn table_of<C: Column>(
    rows: &[C::Row],
    more: &[&str],
    named: impl Fn(&C::Row) -> (Option<String>, Vec<Value>),
) -> Table {
    let figures = || C::ALL.iter().filter(|column| column.columns() > 0);
    let name =
        C::ALL.iter().find(|column| column.columns() == 0).map(|column| column.title()).filter(|name| !name.is_empty());
    let titles = figures().map(|column| column.title()).chain(name).chain(more.iter().copied());
    let row = |row: &C::Row| {
        let value = |column: &C| match column.figure(row) {
            Some(figure) if figure.fract() == 0.0 && figure.abs() < 9e15 => json!(figure as i64),
            Some(figure) => json!(figure),
            None => json!(column.text(row, Units::Bytes)),
        };
        let (place, more) = named(row);
        figures().map(value).chain(name.map(|_| place.into())).chain(more).collect()
    };
    Table { columns: titles.map(str::to_owned).collect(), rows: rows.iter().map(row).collect() }
}

/// A row for each block.
fn segments(app: &App) -> Table {
    let columns =
        ["segment", "segment bytes", "address", "bytes", "category", "layer", "line"].map(str::to_owned).to_vec();
    let names = app.process().map(|process| process.names.clone()).unwrap_or_default();
    let mut rows = Vec::new();
    for segment in app.segments_in_order() {
        for block in segment.blocks.iter().filter(|block| app.block_passes(block)) {
            let line = names.lines.get(&block.stack).map(|line| text::place(line, ""));
            let layer = names.layers.get(&block.layer).map(|layer| &**layer);
            rows.push(vec![
                json!(format!("{:#x}", segment.address)),
                json!(segment.bytes),
                json!(format!("{:#x}", block.address)),
                json!(block.bytes),
                json!(block.category.as_str()),
                json!(layer),
                json!(line),
            ]);
        }
    }
    Table { columns, rows }
}

impl Table {
    /// With the keys and units of `memlab report --json`.
    fn json(&self) -> String {
        let row = |row: &Vec<Value>| -> Map<String, Value> {
            let mut keys = Map::new();
            for (column, value) in self.columns.iter().zip(row) {
                match (key(column), value) {
                    ("line", Value::String(place)) => {
                        let (file, line) = split_place(place);
                        keys.insert("file".to_owned(), json!(file));
                        keys.insert("line".to_owned(), json!(line));
                    }
                    // Events are in the order of their numbers; their times have a column of their own.
                    ("time", _) => {}
                    (key, value) => _ = keys.insert(key.to_owned(), value.clone()),
                }
            }
            keys
        };
        let rows: Vec<_> = self.rows.iter().map(row).collect();
        format!("{:#}\n", json!(rows))
    }

    fn csv(&self) -> String {
        let line = |cells: Vec<String>| cells.join(",") + "\r\n";
        let mut text = line(self.columns.iter().map(|column| csv::field(column).into_owned()).collect());
        for row in &self.rows {
            text += &line(row.iter().map(cell).collect());
        }
        text
    }
}

/// What the report calls what a column shows.
fn key(column: &str) -> &str {
    match column {
        "now" => "live_bytes",
        "at peak" => "live_bytes_at_peak",
        "its most" => "peak_live_bytes",
        "+ a step" => "bytes_per_step",
        "blocks" => "live_blocks",
        "backward" => "backward_bytes_at_peak",
        "allocs/s" => "allocations_per_second",
        "allocs" => "allocations",
        "in total" | "allocated" => "allocated_bytes",
        "params" => "parameter_bytes",
        "grads" => "gradient_bytes",
        "optim" => "optimizer_state_bytes",
        "activ" => "activation_bytes",
        "Σ forward" => "forward_bytes",
        "Σ backwd" => "backward_bytes",
        "layer" => "name",
        "class" => "type",
        "step" => "index",
        "ended at" => "end_time_ns",
        "took" => "duration_ns",
        "peak" => "peak_allocated_bytes",
        "kept" => "allocated_bytes_at_end",
        "growth" => "growth_bytes",
        "reserved" => "reserved_bytes",
        "dev. used" => "used_bytes",
        "steps" => "steps_ended",
        "event" => "number",
        "size" => "bytes",
        "what" => "kind",
        "who asked" => "line",
        "segment bytes" => "segment_bytes",
        other => other,
    }
}

/// File and line of `train.py:31`; nothing of what is no place.
fn split_place(place: &str) -> (Option<&str>, Option<u32>) {
    match place.rsplit_once(':').map(|(file, line)| (file, line.parse())) {
        Some((file, Ok(line))) => (Some(file), Some(line)),
        _ => (None, None),
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => csv::field(text).into_owned(),
        number => number.to_string(),
    }
}
