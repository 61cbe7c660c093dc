//! Standard output and standard error.
//!
//! Text of traces, sockets and other processes reaches a terminal only through these types; `clippy.toml` forbids every
//! other way.

#![expect(clippy::disallowed_methods, reason = "this is the way that the others have to take")]

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal, Stderr, StdoutLock, Write};

use crate::text::{self, Color, Style, is_unsafe};

/// Returns the cursor to the first column and clears the line.
const CLEAR: &str = "\r\u{1b}[K";

/// A writer that replaces every character that a terminal could obey, except tabs and line ends.
pub struct TerminalSafe<W> {
    out: W,
    /// Passes memlab's own colours through. Text must be cleaned before it is coloured ([`Color::paint`]).
    is_colored: bool,
}

impl<W: Write> TerminalSafe<W> {
    /// Writes to `out`, without colours.
    pub fn new(out: W) -> Self {
        Self { out, is_colored: false }
    }
}

impl<W: Write> Write for TerminalSafe<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = whole_characters(bytes);
        self.out.write_all(terminal_safe(&String::from_utf8_lossy(bytes), self.is_colored).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// `bytes` without an incomplete character at the end.
fn whole_characters(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => &bytes[..error.valid_up_to()],
        _ => bytes,
    }
}

fn terminal_safe(text: &str, is_colored: bool) -> Cow<'_, str> {
    let is_harmful = |character: char| is_unsafe(character) && !matches!(character, '\n' | '\t');
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut written = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let color = Color::CODES.into_iter().find(|code| is_colored && rest.starts_with(code));
        match color {
            Some(code) => written += code,
            None if is_harmful(first) => written.push(char::REPLACEMENT_CHARACTER),
            None => written.push(first),
        }
        rest = &rest[color.map_or(first.len_utf8(), str::len)..];
    }
    Cow::Owned(written)
}

/// Standard output, without colours.
pub fn stdout() -> TerminalSafe<StdoutLock<'static>> {
    TerminalSafe::new(io::stdout().lock())
}

/// Standard output for text of this style.
pub fn styled_stdout(style: Style) -> TerminalSafe<StdoutLock<'static>> {
    TerminalSafe { is_colored: style.colored, ..stdout() }
}

/// Standard error, without colours.
pub fn stderr() -> TerminalSafe<Stderr> {
    TerminalSafe::new(io::stderr())
}

/// Prints one line on standard output.
///
/// # Errors
///
/// If standard output rejects the line.
pub fn line(line: impl Display) -> io::Result<()> {
    writeln!(stdout(), "{}", text::clean(&line.to_string()))
}

/// Prints a message from memlab on standard error, wrapped on a terminal. A failure to write is ignored.
pub fn note(message: impl Display) {
    const NAME: &str = "memlab:";
    let indent = " ".repeat(NAME.len() + 1);
    let message = message.to_string();
    for line in text::filled(vec![NAME.to_owned()], &text::clean(&message), &indent, stderr_columns()) {
        let _ = writeln!(stderr(), "{line}");
    }
}

/// Prints an error, possibly of several lines, on standard error.
pub fn error(message: &str) {
    let is_colored = stderr_is_terminal() && text::may_color();
    let name = if is_colored { Color::Bad.paint("memlab:") } else { "memlab:".to_owned() };
    let lines: Vec<_> = message.lines().map(text::clean).collect();
    let _ = writeln!(TerminalSafe { out: io::stderr(), is_colored }, "{name} {}", lines.join("\n"));
}

/// True if standard output is a terminal.
pub fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// True if standard error is a terminal.
pub fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

impl Style {
    /// Style for standard output: in colour on a terminal, unless NO_COLOR is set.
    pub fn of_output() -> Self {
        Self { columns: columns(stdout_is_terminal()), colored: stdout_is_terminal() && text::may_color() }
    }
}

/// Width of standard error: the terminal's within limits; unlimited for a file or a pipe.
pub fn stderr_columns() -> usize {
    if stderr_is_terminal() { columns(true) } else { usize::MAX }
}

/// Width of the output: `COLUMNS`, or else the terminal's within limits. Output to a file or a pipe is not cut.
fn columns(is_terminal: bool) -> usize {
    let asked = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).filter(|columns| *columns > 0);
    asked.unwrap_or_else(|| match is_terminal.then(crossterm::terminal::size) {
        Some(Ok((columns, _))) => usize::from(columns).clamp(80, 160),
        _ => usize::MAX,
    })
}

/// A terminal line that is rewritten in place, and cleared at the end.
#[derive(Debug)]
pub struct ProgressLine<W: Write = Stderr> {
    out: W,
    is_written: bool,
}

impl Default for ProgressLine {
    fn default() -> Self {
        Self::on(io::stderr())
    }
}

impl ProgressLine {
    /// Writes the line if standard error is a terminal.
    pub fn show(&mut self, line: &str) {
        if stderr_is_terminal() {
            let columns = crossterm::terminal::size().map_or(80, |(columns, _)| usize::from(columns).max(2) - 1);
            self.write(&text::fit(&text::clean(line), columns, "…"));
        }
    }
}

impl<W: Write> ProgressLine<W> {
    /// A line on `out`.
    pub fn on(out: W) -> Self {
        Self { out, is_written: false }
    }

    /// Writes the whole line.
    pub fn write(&mut self, line: &str) {
        // The terminal may be gone: ignore the failure.
        let _ = write!(self.out, "{CLEAR}{}", text::clean(line)).and_then(|()| self.out.flush());
        self.is_written = true;
    }
}

impl<W: Write> Drop for ProgressLine<W> {
    fn drop(&mut self) {
        if self.is_written {
            let _ = write!(self.out, "{CLEAR}").and_then(|()| self.out.flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str, is_colored: bool) -> String {
        let mut out = Vec::new();
        write!(TerminalSafe { out: &mut out, is_colored }, "{text}").unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn no_text_steers_the_terminal() {
        // GIVEN text that clears the screen, sets a title, colours, returns the cursor and reverses the direction
        let hostile = "a\u{1b}[2J\u{1b}]0;x\u{7}\u{9b}31m\u{1b}[2m\r\u{202e}ü\tb\n";
        // WHEN it is written THEN it arrives as text, with its line ends
        assert_eq!(written(hostile, false), "a�[2J�]0;x��31m�[2m��ü\tb\n");
        // AND with colours on, only memlab's colours pass through
        assert_eq!(written(hostile, true), "a�[2J�]0;x��31m\u{1b}[2m��ü\tb\n");
        assert_eq!(written(&Color::Bad.paint("a\u{1b}[2mb"), true), "\u{1b}[1;31ma�[2mb\u{1b}[0m");
    }

    #[test]
    fn characters_may_be_cut_by_a_buffer() {
        // GIVEN text in pieces that cut a character, as a buffer may, and bytes that are not text
        let mut out = Vec::new();
        let mut buffered = io::BufWriter::with_capacity(3, TerminalSafe::new(&mut out));
        // WHEN it is written
        for byte in "aü€".bytes() {
            buffered.write_all(&[byte]).unwrap();
        }
        buffered.flush().unwrap();
        drop(buffered);
        TerminalSafe::new(&mut out).write_all(b"\xff\x9b").unwrap();
        // THEN the bytes that are not text do not arrive
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with('a') && text.ends_with("��") && !text.contains(is_unsafe), "{text}");
    }
}
