//! Text from traces, without control characters and cut to fit. A trace is written by another process: whatever its
//! names hold, no control character of theirs reaches the terminal.

use std::borrow::Cow;
use std::path::Path;

use memlab_trace::Line;
use memlab_trace::record::Phase;
use memlab_units::format;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// How text is written.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// At most so wide.
    pub columns: usize,
    /// Whether it has colours.
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
    /// All that memlab writes to change colours.
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

    /// `text` in this colour, clean.
    pub fn paint(self, text: &str) -> String {
        format!("{}{}{}", Self::CODES[self as usize + 1], clean(text), Self::PLAIN)
    }
}

/// True unless NO_COLOR forbids colours.
pub fn may_color() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Whether a character could steer the terminal or turn text around instead of being shown.
pub fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
        || matches!(character, '\u{e0000}'..='\u{e007f}')
}

/// `text` with every control and direction character replaced by `\u{fffd}`.
pub fn clean(text: &str) -> Cow<'_, str> {
    if text.chars().any(is_unsafe) {
        text.chars()
            .map(|character| if is_unsafe(character) { char::REPLACEMENT_CHARACTER } else { character })
            .collect()
    } else {
        Cow::Borrowed(text)
    }
}

/// `text` for XML and HTML, in elements and in attributes: clean, and no character of it is markup.
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

/// How many columns `text` takes.
pub fn width(text: &str) -> usize {
    text.width()
}

/// `text` cut at the right to `columns`, with `ellipsis` in place of what is missing.
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

/// `text` cut at the left to `columns`: for paths, whose end matters most.
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

/// `text` cut in its middle to `columns`: for layers' names, which both ends distinguish.
pub fn fit_middle<'a>(text: &'a str, columns: usize, ellipsis: &str) -> Cow<'a, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let Some(room) = columns.checked_sub(width(ellipsis)) else { return Cow::Borrowed("") };
    let tail = fit_end(text, room - room / 2, "");
    Cow::Owned(format!("{}{ellipsis}{tail}", fit(text, room / 2, "")))
}

/// A source file as it is shown: from its package on where it is installed, relative to the program's directory where
/// it is below it. Without a directory it is shown in full.
pub fn short_path<'a>(file: &'a str, directory: &str) -> &'a str {
    let of_package = |folder: &str| file.rsplit_once(folder).map(|(_, rest)| rest).filter(|_| !directory.is_empty());
    if let Some(rest) = of_package("/site-packages/").or_else(|| of_package("/dist-packages/")) {
        return rest;
    }
    match file.strip_prefix(directory.trim_end_matches('/')) {
        Some(rest) if !directory.is_empty() && rest.starts_with('/') => rest.trim_start_matches('/'),
        _ => file,
    }
}

/// A line as it is shown: `train.py:31`.
pub fn place(line: &Line, directory: &str) -> String {
    let file = short_path(&line.file, directory);
    line.line.map_or_else(|| file.to_owned(), |number| format!("{file}:{number}"))
}

/// A path as it would be typed here.
pub fn typed_path(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    let path = path.strip_prefix(&here).unwrap_or(path).to_string_lossy().into_owned();
    let plain = path.chars().all(|character| character.is_alphanumeric() || "/._-+%@:,".contains(character));
    if plain { path } else { format!("'{}'", clean(&path).replace('\'', r"'\''")) }
}

/// Shown behind the function of a line in whose place torch.compile's code runs.
pub const COMPILED: &str = " (compiled)";

/// Shown instead of a line where no Python frame asked for the memory.
pub const NO_LINE: &str = "(no Python line)";
/// Shown instead of a layer's name outside any layer.
pub const NO_LAYER: &str = "(outside any layer)";

/// What stands for memory that was allocated in no range that the program names.
pub const NO_RANGE: &str = "(outside any range)";
/// Shown instead of the name of an outermost module that holds tensors and was never called.
pub const NOT_CALLED: &str = "(not called)";

/// A layer's qualified name as it is shown.
pub fn layer_name(name: Option<&str>) -> &str {
    match name {
        None => NO_LAYER,
        Some("") => "(outermost)",
        Some(name) => name,
    }
}

/// A phase in a word; empty outside all of them.
pub fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Other => "",
        phase => phase.as_str(),
    }
}

/// A command line as it would be typed, without the folders of the program and, for Python, without the interpreter.
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

/// What to say of a trace that lacks events; `None`: it lacks none.
pub fn missing_events(count: u64) -> Option<String> {
    let events = if count == 1 { "event is" } else { "events are" };
    let count = (count > 0).then(|| format::grouped(count))?;
    Some(format!(
        "{count} {events} missing: they came faster than the trace could be kept below MEMLAB_TRACE_MAX. Figures after the \
         first of them are not exact; a larger maximum helps."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced() {
        // GIVEN names that clear the screen, ring the bell and turn the text around
        let names = ["\u{1b}[2Jx", "a\u{7}b", "a\u{202e}b", "a\nb", "\u{9b}31m"];
        // WHEN they are cleaned
        // THEN nothing is left that a terminal obeys
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
