//! The keys, over the screen: those of this screen first, then those of all.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::pane::{centered, clear, fact, frame, put, wrapped};
use crate::app::{App, Screen, Spot};
use crate::category::category_list;

type Key = (&'static str, &'static str);

const MOMENTS: [Key; 7] = [
    ("←  →", "an earlier, a later moment; Shift: by ten columns; or click and drag in the chart"),
    ("p", "the moment of the peak, and back"),
    ("n  N", "the end of the next, the previous step"),
    ("O", "the next out-of-memory"),
    ("t", "type a moment: 12.5s, 1:30, step 12, peak, oom, end"),
    ("Esc", "back to the latest moment; first: no filter"),
    ("space", "pause the display; the program goes on"),
];

const TABLES: [Key; 7] = [
    ("j k ↑ ↓ PgUp PgDn g G", "move in the table; the wheel too"),
    ("s  S", "sort by the next column, the other way round; or click on a heading"),
    ("/", "show only: a word, /regex/, size>1MiB, layer:h.3, class:Linear, category:…, !not"),
    ("i", "what a line or layer holds: its own, or with all it calls or contains"),
    ("L", "lines: those of libraries too, or yours alone; on every screen"),
    ("u", "units: fitting, MiB, GiB, bytes"),
    ("e", "write what is on the screen to a file: CSV, JSON or a picture"),
];

const REST: [Key; 7] = [
    ("q", "leave"),
    ("Tab, 1 2 3 …", "the next screen, that screen"),
    ("d  D", "the next, the previous device or rank"),
    ("w", "chart: whole run, 5 min, 1 min, 10 s"),
    ("T", "theme: dark, light, high contrast, none"),
    ("o  r", "move the program's GPU memory to host memory (asks first), bring it back"),
    ("Ctrl-C", "interrupt the program (asks first)"),
];

const WORDS: [Key; 3] = [
    ("allocated", "handed out by PyTorch's caching allocator"),
    ("reserved", "held by it, handed out or not"),
    ("used", "the whole device's use: also CUDA itself, libraries, other processes"),
];

fn own_keys(screen: Screen) -> (&'static str, &'static [Key]) {
    match screen {
        Screen::Overview => (
            "All at a glance",
            &[
                ("h  l", "the keys go to the lines, to the layers"),
                ("Enter", "open that table"),
                ("c", "chart: what memory is used for over time, and back to totals"),
                ("+  -  0", "chart: nearer around the moment shown, further, the whole run"),
            ],
        ),
        Screen::Lines => (
            "Memory by Python line",
            &[
                ("Enter", "the source around the line, with bytes in the margin"),
                ("l  h", "open who called it, close"),
                ("c", "the call tree from the outermost call down, and back"),
            ],
        ),
        Screen::Layers => (
            "Memory by layer: the tree of modules",
            &[("Enter, l  h", "open a module, close it"), ("z", "open all, close all")],
        ),
        Screen::Segments => (
            "The memory map of PyTorch's allocator",
            &[
                ("j  k", "the next, the previous segment"),
                ("l  h", "the next, the previous block or hole"),
                ("f  F", "the next hole; the largest one, and from a hole the next smaller one"),
                ("+  -  0", "zoom in, out, the whole map on the page"),
                ("Enter", "the source of who asked for the block"),
            ],
        ),
        Screen::Steps => (
            "Memory by optimizer step",
            &[("Enter", "show that moment everywhere"), ("m  M", "mark a step to compare with another, no marks")],
        ),
        Screen::Events => (
            "The latest events before the moment shown",
            &[
                ("Enter", "show that moment everywhere"),
                ("g", "stay with the newest; elsewhere the cursor stays on its event"),
            ],
        ),
        Screen::Processes => (
            "Ranks and children",
            &[("Enter", "show that device"), ("o  r", "offload, restore the process under the cursor")],
        ),
        Screen::Output => (
            "What the program prints",
            &[
                ("j  k, PgUp PgDn", "scroll; G: the latest"),
                ("Enter", "type to the program: keys go to it, also Ctrl-C, until Esc"),
            ],
        ),
    }
}

/// Draws them, from a row on where there is no room for all.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &App, row: u16) {
    const COLUMNS: u16 = 108;
    let theme = &app.theme;
    let (title, own) = own_keys(app.screen);
    let rows = rows(app, own, usize::from(COLUMNS.min(area.width).saturating_sub(WHAT + 2)));
    // Without room for all the blank lines go first.
    let is_spacious = rows.len() as u16 + 2 <= area.height;
    let rows: Vec<Row> = rows.into_iter().filter(|row| is_spacious || !matches!(row, Row::Blank)).collect();
    let place = centered(area, COLUMNS, rows.len() as u16 + 2);
    clear(buffer, place, theme);
    app.spots.put(place, Spot::Overlay);
    let hidden = (rows.len() as u16).saturating_sub(place.height.saturating_sub(2));
    app.help_end.set(hidden);
    let row = row.min(hidden);
    let mut facts = vec![fact("any other key: back", theme.dim)];
    if hidden > 0 {
        let more = if row < hidden { format!("j k scroll, {} more", hidden - row) } else { "j k scroll".to_owned() };
        facts.insert(0, fact(more, theme.key));
    } else {
        facts = vec![fact("any key: back", theme.dim)];
    }
    let inner = frame(buffer, place, title, facts, theme);
    for (y, row) in (inner.y..inner.bottom()).zip(rows.iter().skip(usize::from(row))) {
        match row {
            Row::Blank => {}
            Row::Key(key, what) => {
                put(buffer, inner.x + 1, y, 22.min(inner.width.saturating_sub(1)), key, theme.key, theme);
                put(buffer, inner.x + WHAT, y, inner.width.saturating_sub(WHAT), what, theme.text, theme);
            }
            Row::Warning(words) => {
                put(buffer, inner.x + 1, y, inner.width.saturating_sub(2), words, theme.warn, theme);
            }
        }
    }
}

/// Where it is said what a key does.
const WHAT: u16 = 24;

/// What stands in one row.
enum Row {
    Key(&'static str, String),
    Warning(String),
    Blank,
}

/// All rows, with texts in so many columns.
fn rows(app: &App, own: &'static [Key], columns: usize) -> Vec<Row> {
    let categories = format!("one of {}", category_list());
    let key = |(key, what): &(&'static str, &str)| {
        let mut keys = std::iter::once(*key).chain(std::iter::repeat(""));
        wrapped(what, columns).into_iter().map(|line| Row::Key(keys.next().unwrap_or(""), line)).collect::<Vec<_>>()
    };
    let mut rows: Vec<Row> = Vec::new();
    for group in [own, &MOMENTS, &TABLES, &REST, &WORDS] {
        rows.extend(group.iter().flat_map(key));
        rows.push(Row::Blank);
    }
    rows.extend(key(&("category:…", &categories)));
    let warnings = app.process().map(|process| process.warnings.as_slice()).unwrap_or_default();
    if !warnings.is_empty() {
        rows.push(Row::Blank);
    }
    let warned = warnings.iter().rev().take(4).flat_map(|warning| wrapped(warning, columns + usize::from(WHAT) - 2));
    rows.extend(warned.map(Row::Warning));
    rows
}
