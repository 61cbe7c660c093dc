//! The keys: first those of the screen in front, then those of all screens.

use crossterm::event::KeyCode;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::answer::Answer;
use crate::context::{Context, HitTarget};
use crate::screens::screen_state::{HelpKey, ScreenHelp};
use crate::widgets::pane::{centered, clear, fact, frame, put, wrapped};
use memlab_base::category::category_list;

const MOMENTS: [HelpKey; 7] = [
    ("←  →", "back, forward in time; Shift: ten columns; or click and drag in the chart"),
    ("p", "to the peak, and back"),
    ("n  N", "to the end of the next, the previous step"),
    ("O", "to the next out-of-memory error"),
    ("t", "to a typed moment: 12.5s, 1:30, step 12, peak, oom, end"),
    ("Esc", "clear the filter, then back to the present; to the peak of an ended run"),
    ("space", "pause the display; the program continues"),
];

const TABLES: [HelpKey; 7] = [
    ("j k ↑ ↓ PgUp PgDn g G", "move in the table; or use the mouse wheel"),
    ("s  S", "sort by the next column, in reverse; or click on a heading"),
    ("/", "filter: a word, /regex/, size>1MiB, layer:h.3, class:Linear, category:…, !not"),
    ("i", "lines: own memory, or with callees"),
    ("L", "lines: your lines only, or also library lines; on every screen"),
    ("u", "units: auto, MiB, GiB, bytes"),
    ("e", "export the screen to a file: CSV, JSON or a picture"),
];

const REST: [HelpKey; 10] = [
    ("q", "leave"),
    ("Tab, 1 2 3 …", "next screen, or the screen with that number"),
    ("d  D", "next, previous device or rank"),
    ("b", "back to the ranks"),
    ("!", "findings in full, with the cure; Enter goes to the line and moment"),
    ("A", "advice: changes that lower the program's memory; y copies the code"),
    ("w", "chart: whole run, 5 min, 1 min, 10 s"),
    ("T", "theme: dark, light, high contrast, none"),
    ("o  r", "offload the program's GPU memory to the host (asks first), restore it"),
    ("Ctrl-C", "interrupt the program (asks first)"),
];

const WORDS: [HelpKey; 3] = [
    ("allocated", "in use by tensors: torch.cuda.memory_allocated()"),
    ("reserved", "held by PyTorch's allocator: torch.cuda.memory_reserved()"),
    ("in use", "on the whole device: also CUDA, libraries, other processes"),
];

/// The help, scrolled to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Help {
    screen: ScreenHelp,
    /// First visible row.
    row: u16,
    /// Number of rows that did not fit in the last frame.
    hidden_rows: u16,
}

impl Help {
    /// Help of a screen, from the top.
    pub fn new(screen: ScreenHelp) -> Self {
        Self { screen, row: 0, hidden_rows: 0 }
    }

    /// Scrolls; any other key closes the help.
    pub fn on_key(&mut self, key: KeyCode) -> Answer {
        const PAGE: u16 = 10;
        let row = match key {
            KeyCode::Down | KeyCode::Char('j') => self.row + 1,
            KeyCode::Up | KeyCode::Char('k') => self.row.saturating_sub(1),
            KeyCode::PageDown => self.row + PAGE,
            KeyCode::PageUp => self.row.saturating_sub(PAGE),
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => u16::MAX,
            _ => return Answer::Close,
        };
        self.row = row.min(self.hidden_rows);
        Answer::Stay
    }

    /// Scrolls by rows.
    pub fn scroll(&mut self, rows: isize) {
        self.row = self.row.saturating_add_signed(rows as i16).min(self.hidden_rows);
    }

    /// Draws the keys, scrolled if they do not all fit.
    pub fn draw(&mut self, buffer: &mut Buffer, area: Rect, context: &Context) {
        const COLUMNS: u16 = 108;
        let theme = &context.theme;
        let rows = rows(
            context,
            self.screen.keys,
            usize::from(COLUMNS.min(area.width).saturating_sub(DESCRIPTION_COLUMN + 2)),
        );
        // Blank lines go first if not all rows fit.
        let is_spacious = rows.len() as u16 + 2 <= area.height;
        let rows: Vec<HelpLine> =
            rows.into_iter().filter(|row| is_spacious || !matches!(row, HelpLine::Blank)).collect();
        let place = centered(area, COLUMNS, rows.len() as u16 + 2);
        clear(buffer, place, theme);
        context.hit_targets.put(place, HitTarget::Overlay);
        let hidden = (rows.len() as u16).saturating_sub(place.height.saturating_sub(2));
        self.hidden_rows = hidden;
        let row = self.row.min(hidden);
        let mut facts = vec![fact("any other key: back", theme.dim)];
        if hidden > 0 {
            let more =
                if row < hidden { format!("j k scroll, {} more", hidden - row) } else { "j k scroll".to_owned() };
            facts.insert(0, fact(more, theme.key));
        } else {
            facts = vec![fact("any key: back", theme.dim)];
        }
        let inner = frame(buffer, place, self.screen.title, facts, theme);
        for (y, row) in (inner.y..inner.bottom()).zip(rows.iter().skip(usize::from(row))) {
            match row {
                HelpLine::Blank => {}
                HelpLine::Key(key, what) => {
                    put(buffer, inner.x + 1, y, 22.min(inner.width.saturating_sub(1)), key, theme.key, theme);
                    put(
                        buffer,
                        inner.x + DESCRIPTION_COLUMN,
                        y,
                        inner.width.saturating_sub(DESCRIPTION_COLUMN),
                        what,
                        theme.text,
                        theme,
                    );
                }
                HelpLine::Warning(words) => {
                    put(buffer, inner.x + 1, y, inner.width.saturating_sub(2), words, theme.warn, theme);
                }
            }
        }
    }
}

/// Column of the descriptions.
const DESCRIPTION_COLUMN: u16 = 24;

/// One line of the help.
enum HelpLine {
    Key(&'static str, String),
    Warning(String),
    Blank,
}

/// All rows, with texts wrapped to `columns`.
fn rows(context: &Context, own: &'static [HelpKey], columns: usize) -> Vec<HelpLine> {
    let categories = format!("one of {}", category_list());
    let key = |(key, what): &(&'static str, &str)| {
        let mut keys = std::iter::once(*key).chain(std::iter::repeat(""));
        wrapped(what, columns)
            .into_iter()
            .map(|line| HelpLine::Key(keys.next().unwrap_or(""), line))
            .collect::<Vec<_>>()
    };
    let mut rows: Vec<HelpLine> = Vec::new();
    for group in [own, &MOMENTS, &TABLES, &REST, &WORDS] {
        rows.extend(group.iter().flat_map(key));
        rows.push(HelpLine::Blank);
    }
    rows.extend(key(&("category:…", &categories)));
    let warnings = context.process().map(|process| process.warnings.as_slice()).unwrap_or_default();
    if !warnings.is_empty() {
        rows.push(HelpLine::Blank);
    }
    let warned = warnings
        .iter()
        .rev()
        .take(4)
        .flat_map(|warning| wrapped(warning, columns + usize::from(DESCRIPTION_COLUMN) - 2));
    rows.extend(warned.map(HelpLine::Warning));
    rows
}
