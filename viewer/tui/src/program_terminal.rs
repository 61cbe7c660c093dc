//! The program's own terminal under `memlab run --live`: its output is interpreted, never passed on.

use std::num::NonZeroU16;

use vt100::Parser;

/// Lines kept above the screen.
const SCROLLBACK: usize = 10_000;

/// A screen for a program's output, with its scrollback.
pub struct ProgramTerminal {
    parser: Parser,
    changes: u64,
}

fn at_least_one(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).unwrap_or(NonZeroU16::MIN)
}

impl ProgramTerminal {
    /// An empty screen.
    pub fn new(rows: u16, columns: u16) -> Self {
        Self { parser: Parser::new(at_least_one(rows), at_least_one(columns), SCROLLBACK), changes: 0 }
    }

    /// Interprets output of the program.
    pub fn process(&mut self, bytes: &[u8]) {
        self.parser.process(bytes);
        self.changes += 1;
    }

    /// Counter that rises whenever the program prints.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Sets a new size.
    pub fn resize(&mut self, rows: u16, columns: u16) {
        if (rows, columns) != (self.rows(), self.columns()) && rows > 0 && columns > 0 {
            self.parser.set_size(at_least_one(rows), at_least_one(columns));
        }
    }

    /// Height in rows.
    pub fn rows(&self) -> u16 {
        self.parser.screen().size().0.get()
    }

    /// Width in columns.
    pub fn columns(&self) -> u16 {
        self.parser.screen().size().1.get()
    }

    /// Scrolls down by `rows`, or up if negative.
    pub fn scroll(&mut self, rows: isize) {
        let now = self.parser.screen().scrollback();
        // vt100 limits it to the available scrollback.
        self.parser.screen_mut().set_scrollback(now.saturating_add_signed(rows.saturating_neg()).min(SCROLLBACK));
    }

    /// Distance of the view above the latest output, in rows.
    pub fn scrolled(&self) -> usize {
        self.parser.screen().scrollback()
    }

    /// The screen with its cells and colours.
    pub fn screen(&self) -> &vt100::Screen {
        self.parser.screen()
    }

    /// The last `count` rows with text, without colours, in their current state.
    pub fn last_rows(&mut self, count: usize) -> Vec<String> {
        let scrolled = self.scrolled();
        let screen_rows = usize::from(self.rows()).max(1);
        let mut rows: Vec<String> = Vec::new();
        let mut above = 0;
        // Reads pages from the bottom up until they suffice.
        loop {
            self.parser.screen_mut().set_scrollback(above);
            if self.scrolled() < above {
                // The oldest page overlaps the previous one.
                let fresh = self.scrolled() + screen_rows - above;
                let page: Vec<String> = self.page();
                rows.splice(0..0, page.into_iter().take(fresh));
                break;
            }
            let page = self.page();
            rows.splice(0..0, page);
            if above == 0 {
                while rows.last().is_some_and(|row| row.trim().is_empty()) {
                    rows.pop();
                }
            }
            if rows.len() >= count {
                break;
            }
            above += screen_rows;
        }
        self.parser.screen_mut().set_scrollback(scrolled);
        rows.split_off(rows.len().saturating_sub(count))
    }

    fn page(&self) -> Vec<String> {
        let columns = self.columns();
        self.parser.screen().rows(0, columns).map(|row| memlab_base::text::clean(row.trim_end()).into_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rows_reach_into_what_scrolled_off() {
        // GIVEN a screen of 4 rows with 10 printed lines
        let mut screen = ProgramTerminal::new(4, 20);
        for line in 0..10 {
            screen.process(format!("line {line}\r\n").as_bytes());
        }
        // WHEN asked for more than fits THEN older lines are included, in order, without trailing blanks
        assert_eq!(screen.last_rows(6), (4..10).map(|line| format!("line {line}")).collect::<Vec<_>>());
        assert_eq!(screen.last_rows(2), ["line 8", "line 9"]);
        assert_eq!(screen.last_rows(100).len(), 10);
        // AND the view has not moved
        assert_eq!(screen.scrolled(), 0);
    }

    #[test]
    fn progress_bars_overwrite_themselves() {
        let mut screen = ProgramTerminal::new(4, 40);
        screen.process(b"\x1b[32m 10%|#   |\x1b[0m\r 20%|##  |");
        assert_eq!(screen.last_rows(4), [" 20%|##  |"]);
    }

    #[test]
    fn scrolling_stays_within_the_text() {
        let mut screen = ProgramTerminal::new(4, 20);
        for line in 0..10 {
            screen.process(format!("{line}\r\n").as_bytes());
        }
        screen.scroll(isize::MIN / 2);
        assert_eq!(screen.scrolled(), 7);
        screen.scroll(isize::MAX / 2);
        assert_eq!(screen.scrolled(), 0);
    }

    proptest::proptest! {
        #[test]
        fn no_output_brings_it_down(bytes: Vec<u8>, rows in 1u16..40, columns in 1u16..100) {
            let mut screen = ProgramTerminal::new(20, 30);
            screen.process(&bytes);
            screen.resize(rows, columns);
            screen.process(&bytes);
            screen.last_rows(50);
        }
    }
}
