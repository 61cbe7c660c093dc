//! Text from traces, without control characters and cut to fit.
//!
//! Another process writes the trace: no control character in its names reaches the terminal.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::path::Path;

use memlab_trace::Line;
use memlab_trace::record::Phase;
use memlab_units::format;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Style of the output.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Maximum width.
    pub columns: usize,
    /// True for output in colour.
    pub colored: bool,
}

/// A colour that memlab writes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Color {
    Title,
    Dim,
    Bad,
    Warn,
    Red,
    Green,
    Yellow,
}

impl Color {
    const PLAIN: &str = "\u{1b}[0m";
    /// All escape sequences that memlab uses for colours.
    pub const CODES: [&str; 8] = [
        Self::PLAIN,
        "\u{1b}[1m",
        "\u{1b}[2m",
        "\u{1b}[1;31m",
        "\u{1b}[1;33m",
        "\u{1b}[31m",
        "\u{1b}[32m",
        "\u{1b}[33m",
    ];

    /// Paints `text` in this colour, and cleans it.
    pub fn paint(self, text: &str) -> String {
        format!("{}{}{}", Self::CODES[self as usize + 1], clean(text), Self::PLAIN)
    }
}

/// True unless NO_COLOR forbids colours.
pub fn may_color() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// True if a character could control the terminal or reverse the text direction.
pub fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
        || matches!(character, '\u{e0000}'..='\u{e007f}')
}

/// Replaces every control and direction character of `text` by `\u{fffd}`.
pub fn clean(text: &str) -> Cow<'_, str> {
    if text.chars().any(is_unsafe) {
        text.chars()
            .map(|character| if is_unsafe(character) { char::REPLACEMENT_CHARACTER } else { character })
            .collect()
    } else {
        Cow::Borrowed(text)
    }
}

/// Escapes `text` for XML and HTML, in elements and attributes, and cleans it.
pub fn markup(text: &str) -> Cow<'_, str> {
    // XML cannot represent the last two, even escaped.
    let is_harmless = |character: char| {
        !is_unsafe(character) && !matches!(character, '&' | '<' | '>' | '"' | '\'' | '\u{fffe}' | '\u{ffff}')
    };
    if text.chars().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            other => escaped.push(if is_harmless(other) { other } else { char::REPLACEMENT_CHARACTER }),
        }
    }
    Cow::Owned(escaped)
}

/// Width of `text` in columns.
pub fn width(text: &str) -> usize {
    text.width()
}

/// Cuts `text` at the right to `columns`, and marks the cut with `ellipsis`.
pub fn fit<'a>(text: &'a str, columns: usize, ellipsis: &str) -> Cow<'a, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let Some(room) = columns.checked_sub(width(ellipsis)) else { return Cow::Borrowed("") };
    let mut used = 0;
    let kept: String = text
        .chars()
        .take_while(|character| {
            used += character.width().unwrap_or(0);
            used <= room
        })
        .collect();
    Cow::Owned(kept + ellipsis)
}

/// Cuts `text` at the left to `columns`: for paths, whose end matters most.
pub fn fit_end<'a>(text: &'a str, columns: usize, ellipsis: &str) -> Cow<'a, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let Some(room) = columns.checked_sub(width(ellipsis)) else { return Cow::Borrowed("") };
    let mut used = 0;
    let kept: Vec<char> = text
        .chars()
        .rev()
        .take_while(|character| {
            used += character.width().unwrap_or(0);
            used <= room
        })
        .collect();
    Cow::Owned(ellipsis.chars().chain(kept.into_iter().rev()).collect())
}

/// Cuts `text` in the middle to `columns`: for layer names, which differ at both ends.
pub fn fit_middle<'a>(text: &'a str, columns: usize, ellipsis: &str) -> Cow<'a, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let Some(room) = columns.checked_sub(width(ellipsis)) else { return Cow::Borrowed("") };
    let tail = fit_end(text, room - room / 2, "");
    Cow::Owned(format!("{}{ellipsis}{tail}", fit(text, room / 2, "")))
}

/// Folders of installed packages.
const PACKAGE_FOLDERS: [&str; 2] = ["/site-packages/", "/dist-packages/"];

/// True for a file of an installed package.
pub fn is_installed(file: &str) -> bool {
    PACKAGE_FOLDERS.iter().any(|folder| file.contains(folder))
}

/// Path of a source file for display.
///
/// An installed file starts at its package, and a file below the program's directory is relative to it. Without a
/// directory the path is shown in full.
pub fn short_path<'a>(file: &'a str, directory: &str) -> &'a str {
    let of_package = |folder: &&str| file.rsplit_once(*folder).map(|(_, rest)| rest).filter(|_| !directory.is_empty());
    if let Some(rest) = PACKAGE_FOLDERS.iter().find_map(of_package) {
        return rest;
    }
    match file.strip_prefix(directory.trim_end_matches('/')) {
        Some(rest) if !directory.is_empty() && rest.starts_with('/') => rest.trim_start_matches('/'),
        _ => file,
    }
}

/// A line for display: `train.py:31`.
pub fn place(line: &Line, directory: &str) -> String {
    let file = short_path(&line.file, directory);
    line.line.map_or_else(|| file.to_owned(), |number| format!("{file}:{number}"))
}

/// Maximum width of sentences: longer lines are hard to read.
pub const MAX_PROSE_COLUMNS: usize = 110;

/// Wraps text to a width. The first line starts with `mark`; the others are indented equally.
pub fn wrapped(mark: &str, text: &str, columns: usize) -> Vec<String> {
    filled(vec![mark.to_owned()], text, &" ".repeat(width(mark) + 1), columns.min(MAX_PROSE_COLUMNS))
}

/// Appends a text to lines of at most `columns`. New lines start with `indent`.
pub fn filled(mut lines: Vec<String>, text: &str, indent: &str, columns: usize) -> Vec<String> {
    for word in words(text) {
        match lines.last_mut() {
            Some(line) if width(line) + 1 + width(word) <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(format!("{indent}{word}")),
        }
    }
    lines
}

/// Words of a text. A number and its unit are one word.
fn words(text: &str) -> Vec<&str> {
    let offset = |word: &str| word.as_ptr().addr() - text.as_ptr().addr();
    let mut words: Vec<&str> = Vec::new();
    for word in text.split_whitespace() {
        match words.last_mut() {
            Some(number) if is_unit(word) && number.ends_with(|last: char| last.is_ascii_digit()) => {
                *number = &text[offset(number)..offset(word) + word.len()];
            }
            _ => words.push(word),
        }
    }
    words
}

fn is_unit(word: &str) -> bool {
    const UNITS: [&str; 11] = ["%", "B", "KiB", "MiB", "GiB", "TiB", "PiB", "ns", "µs", "ms", "s"];
    UNITS.contains(&word.trim_end_matches([')', ',', '.', ';', ':']))
}

/// Order of layers' names, in which `h.2` comes before `h.10`.
pub fn compare_names(a: Option<&str>, b: Option<&str>) -> Ordering {
    fn parts(name: &str) -> impl Iterator<Item = (u64, &str)> {
        name.split('.').map(|part| (part.parse().unwrap_or(u64::MAX), part))
    }
    match (a, b) {
        (Some(a), Some(b)) => parts(a).cmp(parts(b)),
        (a, b) => a.cmp(&b),
    }
}

/// A path as typed in the working directory.
pub fn typed_path(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    let path = path.strip_prefix(&here).unwrap_or(path).to_string_lossy().into_owned();
    let plain = path.chars().all(|character| character.is_alphanumeric() || "/._-+%@:,".contains(character));
    if plain { path } else { format!("'{}'", clean(&path).replace('\'', r"'\''")) }
}

/// Follows the function of a line that runs as torch.compile's code.
pub const COMPILED: &str = " (compiled)";

/// Stands for memory without a Python frame.
pub const NO_LINE: &str = "(no Python line)";
/// Stands for memory outside any layer.
pub const NO_LAYER: &str = "(outside any layer)";

/// Stands for memory allocated outside the ranges that the program names.
pub const NO_RANGE: &str = "(outside any range)";
/// Stands for an outermost module that holds tensors and was never called.
pub const NOT_CALLED: &str = "(not called)";

/// Qualified name of a layer for display.
pub fn layer_name(name: Option<&str>) -> &str {
    match name {
        None => NO_LAYER,
        Some("") => "(outermost)",
        Some(name) => name,
    }
}

/// Name of a phase; empty outside all phases.
pub fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Other => "",
        phase => phase.as_str(),
    }
}

/// A command line for display, without the program's folders and, for Python, without the interpreter.
pub fn short_command(command: &[String]) -> String {
    let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let Some(first) = command.first() else { return "?".to_owned() };
    let rest = &command[1..];
    let script = rest.iter().position(|argument| !argument.starts_with('-'));
    let words: Vec<String> = match script {
        Some(index)
            if base(first).starts_with("python")
                && !rest[..index].iter().any(|option| option == "-c" || option == "-m") =>
        {
            std::iter::once(base(&rest[index])).chain(rest[index + 1..].iter().cloned()).collect()
        }
        _ => std::iter::once(base(first)).chain(rest.iter().cloned()).collect(),
    };
    let words: Vec<&str> = words.iter().flat_map(|word| word.split_whitespace()).collect();
    clean(&words.join(" ")).into_owned()
}

/// Note on missing events of a trace; `None`: no events are missing.
pub fn missing_events(count: u64) -> Option<String> {
    let events = if count == 1 { "event is" } else { "events are" };
    let count = (count > 0).then(|| format::grouped(count))?;
    Some(format!(
        "{count} {events} missing: they came faster than memlab could condense the trace below MEMLAB_TRACE_MAX. Figures \
         after the first missing event are not exact. Set a larger maximum."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_count_as_numbers() {
        let mut names = ["h.10", "h.2", "head", ""];
        names.sort_by(|a, b| compare_names(Some(a), Some(b)));
        assert_eq!(names, ["", "h.2", "h.10", "head"]);
    }

    #[test]
    fn a_number_stays_with_its_unit() {
        assert_eq!(
            words("holds 10 %, or 1.50 GiB (3 s) at h.10"),
            ["holds", "10 %,", "or", "1.50 GiB", "(3 s)", "at", "h.10"]
        );
    }

    #[test]
    fn control_characters_are_replaced() {
        // GIVEN names that clear the screen, ring the bell and reverse the text direction
        let names = ["\u{1b}[2Jx", "a\u{7}b", "a\u{202e}b", "a\nb", "\u{9b}31m"];
        // WHEN they are cleaned
        // THEN no character that a terminal obeys is left
        assert_eq!(names.map(|name| clean(name).into_owned()), ["�[2Jx", "a�b", "a�b", "a�b", "�31m"]);
        assert!(matches!(clean("größe 模型"), Cow::Borrowed(_)));
    }

    #[test]
    fn no_text_is_markup() {
        assert_eq!(markup("a</b> & \"c' \u{1b}\u{ffff}"), "a&lt;/b&gt; &amp; &quot;c&#39; ��");
        assert!(matches!(markup("größe 模型"), Cow::Borrowed(_)));
    }

    #[test]
    fn text_is_cut_to_columns() {
        assert_eq!(fit("transformer.h.0", 8, "…"), "transfo…");
        assert_eq!(fit("模型模型", 5, "…"), "模型…");
        assert_eq!(fit_end("/home/ada/gpt/train.py", 10, "…"), "…/train.py");
        assert_eq!([fit("abc", 0, "…"), fit("abc", 1, "…"), fit("abc", 3, "…")], ["", "…", "abc"]);
    }

    #[test]
    fn paths_and_commands_are_shortened() {
        assert_eq!(short_path("/home/ada/gpt/train.py", "/home/ada/gpt"), "train.py");
        assert_eq!(short_path("/home/ada/gpt2/train.py", "/home/ada/gpt"), "/home/ada/gpt2/train.py");
        let command = |line: &str| short_command(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(command("/usr/bin/python3 -u runs/train.py --lr 1"), "train.py --lr 1");
        assert_eq!(command("python -m http.server"), "python -m http.server");
        assert_eq!(command("/opt/bench x"), "bench x");
        assert_eq!(short_command(&[]), "?");
    }
}
