//! The keys, over the screen: those of this screen first, then those of all.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::pane::{centered, clear, fact, frame, put};
use crate::app::{App, Screen, Spot};

type Key = (&'static str, &'static str);

/// What there is room for on large screens; the prompt tells it too, while one is typed.
const CATEGORIES: [Key; 1] =
    [("category:", "parameter gradient optimizer_state buffer activation input temporary workspace")];

const MOMENTS: [Key; 7] = [
    ("←  →", "an earlier, a later moment; Shift: by ten columns; or click and drag in the chart"),
    ("p", "the moment of the peak, and back"),
    ("n  N", "the end of the next, the previous step"),
    ("O", "the next out-of-memory"),
    ("t", "type a moment: 12.5s, 1:30, step 12, peak, oom, end"),
    ("Esc", "back to the latest moment; first: no filter"),
    ("space", "pause the display; the program goes on"),
];

const TABLES: [Key; 6] = [
    ("j k ↑ ↓ PgUp PgDn g G", "move in the table; the wheel too"),
    ("s  S", "sort by the next column, the other way round; or click on a heading"),
    ("/", "show only: a word, /regex/, size>1MiB, layer:h.3, class:Linear, category:…, !not"),
    ("i", "what a line or layer holds: its own, or with all it calls or contains"),
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
                ("L", "the lines of libraries too (on every screen), and back"),
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

/// Draws them.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &App) {
    let theme = &app.theme;
    let (title, own) = own_keys(app.screen);
    let warnings = app.process().map(|process| process.warnings.as_slice()).unwrap_or_default();
    let groups: [&[Key]; 6] = [own, &MOMENTS, &TABLES, &REST, &WORDS, &CATEGORIES];
    let all = groups.iter().map(|group| group.len() as u16 + 1).sum::<u16>() + warnings.len().min(4) as u16;
    let place = centered(area, 108, all + 2);
    clear(buffer, place, theme);
    app.spots.put(place, Spot::Overlay);
    let inner = frame(buffer, place, title, vec![fact("any key: back", theme.dim)], theme);
    // Without room the blank lines go first.
    let spacious = inner.height >= all;
    let mut y = inner.y;
    for group in groups {
        for (key, what) in group {
            if y >= inner.bottom() {
                return;
            }
            put(buffer, inner.x + 1, y, 22.min(inner.width.saturating_sub(1)), key, theme.key, theme);
            put(buffer, inner.x + 24, y, inner.width.saturating_sub(24), what, theme.text, theme);
            y += 1;
        }
        y += u16::from(spacious);
    }
    for warning in warnings.iter().rev().take(4) {
        if y >= inner.bottom() {
            return;
        }
        put(buffer, inner.x + 1, y, inner.width.saturating_sub(2), warning, theme.warn, theme);
        y += 1;
    }
}
