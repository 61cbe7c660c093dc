//! Draws the output of the program, as a terminal inside a pane.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::state::{OutputScreen, Program};
use crate::context::Context;
use crate::widgets::pane::{fact, frame, put};

/// Area inside the frame of a pane.
pub fn inner(area: Rect) -> Rect {
    Rect { x: area.x + 1, y: area.y + 1, width: area.width.saturating_sub(2), height: area.height.saturating_sub(2) }
}

impl OutputScreen {
    /// Draws the whole screen, as the program sees it.
    pub fn draw(&self, buffer: &mut Buffer, area: Rect, context: &Context) {
        let theme = &context.theme;
        let Some(output) = self.terminal() else { return };
        let mut facts = Vec::new();
        match output.scrolled() {
            0 => {}
            rows => facts.push(fact(format!("{rows} rows above the latest"), theme.warn)),
        }
        if let Some(Program::Ended(how)) = &self.program {
            facts.push(fact(how, theme.dim));
        }
        let inner = frame(buffer, area, "Output", facts, theme);
        let screen = output.screen();
        for row in 0..inner.height.min(output.rows()) {
            for column in 0..inner.width.min(output.columns()) {
                let Some(cell) = screen.cell(row, column) else { continue };
                let Some(target) = buffer.cell_mut((inner.x + column, inner.y + row)) else { continue };
                if cell.has_contents() {
                    target.set_symbol(cell.contents());
                }
                if !theme.is_mono() {
                    target.set_style(style(cell));
                }
            }
        }
        let (row, column) = screen.cursor_position();
        let cursor = (inner.x.saturating_add(column), inner.y.saturating_add(row));
        if self.is_typing()
            && output.scrolled() == 0
            && inner.contains(cursor.into())
            && let Some(cell) = buffer.cell_mut(cursor)
        {
            cell.set_style(Style::new().add_modifier(Modifier::REVERSED));
        }
    }

    /// Draws the pane of the overview: the last rows, plain.
    pub fn draw_latest(&self, buffer: &mut Buffer, area: Rect, context: &Context) {
        let theme = &context.theme;
        let inner = frame(buffer, area, "Output", Vec::new(), theme);
        let Some(mut output) = self.terminal() else { return };
        let rows = output.last_rows(usize::from(inner.height));
        for (y, row) in (inner.y..).zip(rows) {
            put(buffer, inner.x + 1, y, inner.width.saturating_sub(1), &row, theme.text, theme);
        }
    }
}

fn style(cell: &vt100::Cell) -> Style {
    let mut style = Style::new().fg(color(cell.fgcolor())).bg(color(cell.bgcolor()));
    for (set, modifier) in [
        (cell.bold(), Modifier::BOLD),
        (cell.dim(), Modifier::DIM),
        (cell.italic(), Modifier::ITALIC),
        (cell.underline(), Modifier::UNDERLINED),
        (cell.inverse(), Modifier::REVERSED),
    ] {
        if set {
            style = style.add_modifier(modifier);
        }
    }
    style
}

fn color(color: vt100::Color) -> Color {
    match color {
        vt100::Color::Default => Color::Reset,
        vt100::Color::Idx(index) => Color::Indexed(index),
        vt100::Color::Rgb(red, green, blue) => Color::Rgb(red, green, blue),
    }
}
