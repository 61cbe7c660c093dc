//! The keys: first those of the screen in front, then those of all screens.

use crossterm::event::KeyCode;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::answer::Answer;
use crate::context::{Context, HitTarget};
use crate::screens::screen_state::{HelpKey, ScreenHelp};
use crate::widgets::pane::{centered, clear, fact, frame, put, wrapped};
use memlab_base::category::category_list;
use memlab_base::theme::Theme;

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
    ("↑ ↓ PgUp PgDn", "move in the table; also j k g G, or the mouse wheel"),
    ("s  S", "sort by the next column, in reverse; or click on a heading"),
    ("/", "filter: a word, /regex/, size>1MiB, layer:h.3, class:Linear, category:…, !not"),
    ("i", "lines: own memory, or with callees"),
    ("L", "lines: your lines only, or also library lines; on every screen"),
    ("u", "units: auto, MiB, GiB, bytes"),
    ("e", "export the screen to a file: CSV, JSON or a picture"),
];

const REST: [HelpKey; 10] = [
    ("q", "leave"),
    ("Tab, 1 2 3 …", "next screen; a screen by its number"),
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
        let theme = &context.theme;
        let has_two = area.width >= TWO_COLUMNS_FROM;
        let width =
            if has_two { TWO_COLUMNS_FROM.max(area.width).min(MAX_COLUMNS) } else { area.width.min(ONE_COLUMN) };
        let column = if has_two { (width - 2 - GAP) / 2 } else { width.saturating_sub(2) };
        let rows = |groups: &[Group]| rows(groups, usize::from(column.saturating_sub(DESCRIPTION_COLUMN + 1)));
        let [left, right] = groups(context, &self.screen);
        let mut columns = match has_two {
            true => vec![rows(&left), rows(&right)],
            false => vec![rows(&[left, right].concat())],
        };
        let all = columns.iter().map(Vec::len).max().unwrap_or(0) as u16;
        // Blank lines go first if not all rows fit.
        if all + 2 > area.height {
            columns.iter_mut().for_each(|rows| rows.retain(|row| !matches!(row, HelpLine::Blank)));
        }
        let all = columns.iter().map(Vec::len).max().unwrap_or(0) as u16;
        let place = centered(area, width, all + 2);
        clear(buffer, place, theme);
        context.hit_targets.put(place, HitTarget::Overlay);
        self.hidden_rows = all.saturating_sub(place.height.saturating_sub(2));
        let row = self.row.min(self.hidden_rows);
        let mut facts = vec![fact("any other key: back", theme.dim)];
        if self.hidden_rows > 0 {
            let left = self.hidden_rows - row;
            let more = if left > 0 { format!("j k scroll, {left} more") } else { "j k scroll".to_owned() };
            facts.insert(0, fact(more, theme.key));
        } else {
            facts = vec![fact("any key: back", theme.dim)];
        }
        let inner = frame(buffer, place, self.screen.title, facts, theme);
        let mut x = inner.x;
        for rows in &columns {
            for (y, row) in (inner.y..inner.bottom()).zip(rows.iter().skip(usize::from(row))) {
                draw_row(buffer, Rect { x, y, width: column, height: 1 }, row, theme);
            }
            x += column + GAP;
        }
    }
}

/// Widths from which there are two columns, and of the frame with one and two columns.
const TWO_COLUMNS_FROM: u16 = 116;
const ONE_COLUMN: u16 = 100;
const MAX_COLUMNS: u16 = 160;

/// Cells between two columns.
const GAP: u16 = 2;

/// Cell of the descriptions.
const DESCRIPTION_COLUMN: u16 = 16;

fn draw_row(buffer: &mut Buffer, area: Rect, row: &HelpLine, theme: &Theme) {
    let Rect { x, y, width, .. } = area;
    match row {
        HelpLine::Blank => {}
        HelpLine::Title(words) => {
            put(buffer, x + 1, y, width.saturating_sub(1), words, theme.title, theme);
        }
        HelpLine::Key(key, what) => {
            put(buffer, x + 1, y, DESCRIPTION_COLUMN - 2, key, theme.key, theme);
            let room = width.saturating_sub(DESCRIPTION_COLUMN);
            put(buffer, x + DESCRIPTION_COLUMN, y, room, what, theme.text, theme);
        }
        HelpLine::Warning(words) => {
            put(buffer, x + 1, y, width.saturating_sub(1), words, theme.warn, theme);
        }
    }
}

/// One line of the help.
enum HelpLine {
    Title(&'static str),
    Key(&'static str, String),
    Warning(String),
    Blank,
}

/// Keys under a title, or warnings.
#[derive(Clone)]
enum Group {
    Keys(&'static str, Vec<(&'static str, String)>),
    Warnings(Vec<String>),
}

/// The groups of both columns: this screen, time and tables; everywhere, words, and warnings.
fn groups(context: &Context, screen: &ScreenHelp) -> [Vec<Group>; 2] {
    /// Latest warnings shown.
    const MAX_WARNINGS: usize = 4;
    let keys = |title: &'static str, keys: &[HelpKey]| {
        Group::Keys(title, keys.iter().map(|(key, what)| (*key, (*what).to_owned())).collect())
    };
    let mut words: Vec<(&'static str, String)> = WORDS.iter().map(|(word, what)| (*word, (*what).to_owned())).collect();
    words.push(("category:…", format!("one of {}", category_list())));
    let mut right = vec![keys("Everywhere", &REST), Group::Keys("Words", words)];
    let warnings = context.process().map(|process| process.warnings.as_slice()).unwrap_or_default();
    if !warnings.is_empty() {
        right.push(Group::Warnings(warnings.iter().rev().take(MAX_WARNINGS).cloned().collect()));
    }
    let left = [keys("This screen", screen.keys), keys("Time", &MOMENTS), keys("Tables", &TABLES)];
    [left.into_iter().filter(|group| !matches!(group, Group::Keys(_, keys) if keys.is_empty())).collect(), right]
}

/// Rows of groups, with descriptions wrapped to `columns`, and a blank line between two groups.
fn rows(groups: &[Group], columns: usize) -> Vec<HelpLine> {
    let mut rows: Vec<HelpLine> = Vec::new();
    for group in groups {
        if !rows.is_empty() {
            rows.push(HelpLine::Blank);
        }
        match group {
            Group::Keys(title, keys) => {
                rows.push(HelpLine::Title(title));
                for (key, what) in keys {
                    let keys = std::iter::once(*key).chain(std::iter::repeat(""));
                    rows.extend(keys.zip(wrapped(what, columns)).map(|(key, line)| HelpLine::Key(key, line)));
                }
            }
            Group::Warnings(warnings) => {
                let columns = columns + usize::from(DESCRIPTION_COLUMN) - 1;
                rows.extend(warnings.iter().flat_map(|warning| wrapped(warning, columns)).map(HelpLine::Warning));
            }
        }
    }
    rows
}
