//! User preferences: `~/.config/memlab/config.toml`.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Deserialize;

use crate::screen::Screen;
use crate::size_units::Units;
use memlab_base::output;
use memlab_base::theme::{Palette, Theme};

/// Preferences. The command line and the environment take precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Colours; `None`: chosen by the terminal's background.
    pub theme: Option<Palette>,
    /// True to draw all of Unicode; `None`: chosen by the locale.
    pub unicode: Option<bool>,
    /// Format of sizes.
    pub units: Units,
    /// First screen.
    pub screen: Screen,
    /// Seconds of the past in the chart; 0: the whole run.
    pub window_seconds: u64,
    /// True to include the memory of called lines.
    pub inclusive: bool,
    /// True to use the mouse; without it, the terminal selects text.
    pub mouse: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            theme: None,
            unicode: None,
            units: Units::Auto,
            screen: Screen::Overview,
            window_seconds: 0,
            inclusive: false,
            mouse: true,
        }
    }
}

impl Config {
    /// `$XDG_CONFIG_HOME/memlab/config.toml`, else `~/.config/memlab/config.toml`; `None`: no home folder.
    pub fn path() -> Option<PathBuf> {
        let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
        let base = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")))?;
        Some(base.join("memlab/config.toml"))
    }

    /// Reads the file, if it exists.
    ///
    /// # Errors
    ///
    /// A message for the user about the mistake.
    pub fn read() -> Result<Self, String> {
        let Some(path) = Self::path() else { return Ok(Self::default()) };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(format!("{}: cannot be read: {error}", path.display())),
        };
        Self::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            format!("{line}{}; `memlab config --print` lists the keys", error.message().replace('\n', " "))
        })
    }

    /// Reads the file. If it cannot be parsed, prints the reason and returns the defaults.
    pub fn read_or_warn() -> Self {
        Self::read().unwrap_or_else(|error| {
            output::note(error);
            Self::default()
        })
    }

    /// The configured theme, unless `asked` overrides it.
    pub fn theme(&self, asked: Option<Palette>) -> Theme {
        Theme::detect(asked.or(self.theme), self.unicode)
    }

    /// Text of a file with these preferences, with a comment on each.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut put = |about: &str, key: &str, value: Option<String>| {
            let (mark, value) = value.map_or(("# ", "…".to_owned()), |value| ("", value));
            let _ = writeln!(text, "# {about}\n{mark}{key} = {value}\n");
        };
        let quoted = |word: &str| Some(format!("\"{word}\""));
        put(
            "Colours: \"dark\", \"light\", \"contrast\" or \"mono\"; unset: by the terminal's background.",
            "theme",
            self.theme.and_then(|theme| quoted(theme.as_str())),
        );
        put(
            "Draw with Unicode: true or false; unset: by the locale.",
            "unicode",
            self.unicode.map(|unicode| unicode.to_string()),
        );
        put("Units of sizes: \"auto\", \"MiB\", \"GiB\" or \"bytes\".", "units", quoted(self.units.as_str()));
        let screens = Screen::ALL.map(|screen| format!("\"{}\"", screen.title().to_lowercase())).join(", ");
        put(&format!("The first screen: {screens}."), "screen", quoted(&self.screen.title().to_lowercase()));
        put("Seconds shown by the chart; 0: the whole run.", "window_seconds", Some(self.window_seconds.to_string()));
        put("Count the memory of called lines in lines: true or false.", "inclusive", Some(self.inclusive.to_string()));
        put(
            "Use the mouse: true or false. With true, hold Shift to select text.",
            "mouse",
            Some(self.mouse.to_string()),
        );
        text.trim_end().to_owned() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_configuration_is_read_back() {
        let changed = Config {
            theme: Some(Palette::Light),
            unicode: Some(false),
            units: Units::Gibibytes,
            screen: Screen::Segments,
            window_seconds: 60,
            inclusive: true,
            mouse: false,
        };
        for config in [Config::default(), changed] {
            assert_eq!(Config::parse(&config.text()), Ok(config));
        }
        assert_eq!(Config::parse(""), Ok(Config::default()));
    }

    #[test]
    fn errors_name_the_line() {
        let error = Config::parse("theme = \"dark\"\nthem = 1\n").unwrap_err();
        assert!(error.starts_with("line 2: unknown field `them`"), "{error}");
        let error = Config::parse("units = \"furlongs\"\n").unwrap_err();
        assert!(error.contains("furlongs") && error.contains("MiB"), "{error}");
        assert!(Config::parse("mouse = ").unwrap_err().starts_with("line 1: "));
    }
}
