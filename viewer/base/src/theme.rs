//! Colours and glyphs.
//!
//! Colour-blind people can distinguish the palettes' colours (after Okabe and Ito). No information depends on colour
//! alone.

use clap::ValueEnum;
use memlab_trace::Category;
use ratatui::style::{Color, Modifier, Style};
use serde::Deserialize;

use crate::category::category_index;

/// A palette.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Palette {
    /// Light text on the terminal's dark background.
    #[default]
    Dark,
    /// Dark text on the terminal's light background.
    Light,
    /// Pure colours on black.
    Contrast,
    /// No colours; NO_COLOR also selects it.
    Mono,
}

impl Palette {
    /// Name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dark => "dark",
            Self::Light => "light",
            Self::Contrast => "contrast",
            Self::Mono => "mono",
        }
    }

    /// The next palette, in a cycle of four.
    pub fn next(self) -> Self {
        match self {
            Self::Dark => Self::Light,
            Self::Light => Self::Contrast,
            Self::Contrast => Self::Mono,
            Self::Mono => Self::Dark,
        }
    }
}

/// Number of colours of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// 24 bits.
    True,
    /// The 256 colours of xterm.
    Indexed,
    /// The 16 colours of ANSI.
    Ansi,
}

/// Characters with an alternative for terminals without Unicode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glyphs {
    /// True if all of Unicode is available.
    pub unicode: bool,
    /// Marks cut text.
    pub ellipsis: &'static str,
    /// Marks an entry of a legend.
    pub swatch: &'static str,
    /// Marks the peak in the chart.
    pub peak: &'static str,
    /// Marks an out-of-memory error in the chart.
    pub oom: &'static str,
    /// Light that shows a state.
    pub dot: &'static str,
    /// Separates facts on one line.
    pub separator: &'static str,
    /// Marks a column sorted from the largest.
    pub descending: &'static str,
    /// Marks a column sorted from the smallest.
    pub ascending: &'static str,
    /// Free memory in a bar.
    pub free: &'static str,
    /// Bands of the chart without colour, from allocated to used.
    pub bands: [&'static str; 4],
}

const UNICODE: Glyphs = Glyphs {
    unicode: true,
    ellipsis: "…",
    swatch: "■",
    peak: "▼",
    oom: "✖",
    dot: "●",
    separator: " · ",
    descending: "↓",
    ascending: "↑",
    free: "·",
    bands: ["█", "▓", "▒", "░"],
};

const ASCII: Glyphs = Glyphs {
    unicode: false,
    ellipsis: "~",
    swatch: "#",
    peak: "v",
    oom: "X",
    dot: "*",
    separator: " - ",
    descending: "v",
    ascending: "^",
    free: ".",
    bands: ["#", "%", "+", "."],
};

/// Styles and characters of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Theme {
    /// The palette.
    pub palette: Palette,
    /// Characters to draw with.
    pub glyphs: Glyphs,
    depth: Depth,
    /// Text.
    pub text: Style,
    /// Less important text.
    pub dim: Style,
    /// Lines around panes and between them.
    pub border: Style,
    /// Titles of panes.
    pub title: Style,
    /// Keys to press.
    pub key: Style,
    /// Name of the program, and its most important figures.
    pub accent: Style,
    /// Good state.
    pub good: Style,
    /// Warning.
    pub warn: Style,
    /// Failure.
    pub bad: Style,
    /// The row under the cursor.
    pub selected: Style,
    /// Bands of the chart: minimum and maximum allocated, reserved, used.
    pub bands: [Color; 4],
    categories: [Color; Category::COUNT],
    /// Text on a category's colour.
    pub on_category: [Color; Category::COUNT],
}

type Rgb = (u8, u8, u8);

/// In the order of [`Category::ALL`].
const CATEGORIES_DARK: [Rgb; Category::COUNT] = [
    (58, 134, 208),
    (230, 159, 0),
    (0, 158, 115),
    (154, 140, 200),
    (64, 188, 188),
    (213, 94, 0),
    (240, 228, 66),
    (204, 121, 167),
    (186, 222, 140),
    (106, 140, 44),
    (74, 128, 96),
    (132, 196, 84),
    (86, 180, 233),
    (206, 172, 116),
    (188, 92, 122),
    (118, 82, 158),
    (110, 118, 129),
    (160, 160, 92),
    (140, 109, 70),
    (176, 182, 189),
    (84, 90, 98),
];
const CATEGORIES_LIGHT: [Rgb; Category::COUNT] = [
    (0, 114, 178),
    (222, 143, 5),
    (2, 138, 102),
    (120, 103, 178),
    (16, 150, 152),
    (204, 76, 0),
    (214, 196, 20),
    (194, 96, 148),
    (158, 204, 104),
    (90, 122, 30),
    (60, 112, 82),
    (104, 168, 52),
    (62, 160, 220),
    (182, 142, 78),
    (176, 80, 110),
    (96, 58, 140),
    (150, 156, 163),
    (136, 138, 66),
    (138, 104, 60),
    (110, 116, 124),
    (184, 188, 194),
];
/// In the order of [`Category::ALL`], for terminals of 16 colours: those that are frequent differ.
const CATEGORIES_ANSI: [Color; Category::COUNT] = [
    Color::Blue,
    Color::Yellow,
    Color::Green,
    Color::LightBlue,
    Color::LightCyan,
    Color::Red,
    Color::LightYellow,
    Color::Magenta,
    Color::LightGreen,
    Color::Green,
    Color::LightGreen,
    Color::LightGreen,
    Color::Cyan,
    Color::LightYellow,
    Color::LightMagenta,
    Color::Gray,
    Color::DarkGray,
    Color::LightRed,
    Color::LightMagenta,
    Color::White,
    Color::Gray,
];
/// Neighbours differ in brightness, so that an edge between them is visible.
const BANDS_DARK: [Rgb; 4] = [(86, 180, 233), (38, 100, 146), (142, 150, 162), (120, 92, 34)];
const BANDS_LIGHT: [Rgb; 4] = [(0, 114, 178), (150, 205, 236), (150, 160, 172), (236, 200, 130)];
const BANDS_CONTRAST: [Rgb; 4] = [(0, 200, 255), (0, 90, 200), (170, 170, 170), (120, 80, 0)];

impl Theme {
    /// Makes a theme of `palette` for a terminal of `depth` colours.
    pub fn new(palette: Palette, depth: Depth, unicode: bool) -> Self {
        let glyphs = if unicode { UNICODE } else { ASCII };
        let plain = Style::new();
        let mono = Self {
            palette,
            glyphs,
            depth,
            text: plain,
            dim: plain,
            border: plain,
            title: plain.add_modifier(Modifier::BOLD),
            key: plain.add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
            accent: plain.add_modifier(Modifier::BOLD),
            good: plain,
            warn: plain.add_modifier(Modifier::BOLD),
            bad: plain.add_modifier(Modifier::BOLD | Modifier::REVERSED),
            selected: plain.add_modifier(Modifier::REVERSED),
            bands: [Color::Reset; 4],
            categories: [Color::Reset; Category::COUNT],
            on_category: [Color::Reset; Category::COUNT],
        };
        let tone = |rgb: Rgb| reduce(rgb, depth);
        let fg = |rgb: Rgb| plain.fg(tone(rgb));
        match palette {
            Palette::Mono => mono,
            Palette::Dark => Self {
                text: fg((208, 214, 222)),
                dim: fg((126, 136, 148)),
                border: fg((68, 78, 92)),
                title: fg((232, 236, 241)).add_modifier(Modifier::BOLD),
                key: fg((230, 159, 0)),
                accent: fg((110, 196, 245)).add_modifier(Modifier::BOLD),
                good: fg((40, 190, 145)),
                warn: fg((230, 159, 0)),
                bad: fg((245, 110, 60)).add_modifier(Modifier::BOLD),
                selected: plain.bg(tone((38, 58, 82))).fg(tone((240, 244, 248))),
                bands: BANDS_DARK.map(tone),
                categories: categories(CATEGORIES_DARK, depth),
                on_category: CATEGORIES_DARK.map(|background| tone(readable_on(background))),
                ..mono
            },
            Palette::Light => Self {
                text: fg((36, 41, 47)),
                dim: fg((101, 109, 118)),
                border: fg((176, 184, 193)),
                title: fg((16, 20, 24)).add_modifier(Modifier::BOLD),
                key: fg((150, 84, 0)),
                accent: fg((0, 84, 147)).add_modifier(Modifier::BOLD),
                good: fg((0, 112, 80)),
                warn: fg((150, 84, 0)),
                bad: fg((178, 44, 0)).add_modifier(Modifier::BOLD),
                selected: plain.bg(tone((208, 226, 244))).fg(tone((16, 20, 24))),
                bands: BANDS_LIGHT.map(tone),
                categories: categories(CATEGORIES_LIGHT, depth),
                on_category: CATEGORIES_LIGHT.map(|background| tone(readable_on(background))),
                ..mono
            },
            Palette::Contrast => Self {
                text: fg((255, 255, 255)).bg(tone((0, 0, 0))),
                dim: fg((220, 220, 220)).bg(tone((0, 0, 0))),
                border: fg((255, 255, 255)).bg(tone((0, 0, 0))),
                title: fg((255, 255, 255)).bg(tone((0, 0, 0))).add_modifier(Modifier::BOLD),
                key: fg((255, 255, 0)).add_modifier(Modifier::BOLD),
                accent: fg((0, 255, 255)).add_modifier(Modifier::BOLD),
                good: fg((0, 255, 128)),
                warn: fg((255, 255, 0)).add_modifier(Modifier::BOLD),
                bad: fg((255, 255, 255)).bg(tone((200, 0, 0))).add_modifier(Modifier::BOLD),
                selected: plain.bg(tone((255, 255, 255))).fg(tone((0, 0, 0))).add_modifier(Modifier::BOLD),
                bands: BANDS_CONTRAST.map(tone),
                categories: categories(CATEGORIES_DARK, depth),
                on_category: CATEGORIES_DARK.map(|background| tone(readable_on(background))),
                ..mono
            },
        }
    }

    /// Detects the theme for this terminal and environment.
    ///
    /// `asked` and `unicode` come from the command line, `MEMLAB_THEME` or the configuration.
    pub fn detect(asked: Option<Palette>, unicode: Option<bool>) -> Self {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let terminal = variable("TERM");
        let palette = match asked {
            _ if !variable("NO_COLOR").is_empty() || terminal == "dumb" => Palette::Mono,
            Some(palette) => palette,
            None if light_background(&variable("COLORFGBG")) => Palette::Light,
            None => Palette::Dark,
        };
        let depth = match variable("COLORTERM").as_str() {
            "truecolor" | "24bit" => Depth::True,
            _ if terminal.contains("256") || terminal.contains("kitty") || terminal.contains("direct") => {
                Depth::Indexed
            }
            _ => Depth::Ansi,
        };
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].map(variable).into_iter().find(|value| !value.is_empty());
        let locale = locale.unwrap_or_default().to_ascii_uppercase();
        let detected =
            (locale.contains("UTF-8") || locale.contains("UTF8")) && !matches!(terminal.as_str(), "dumb" | "linux");
        Self::new(palette, depth, unicode.unwrap_or(detected))
    }

    /// The theme of this terminal in the next palette.
    pub fn next(&self) -> Self {
        Self::new(self.palette.next(), self.depth, self.glyphs.unicode)
    }

    /// True for a theme without colours.
    pub fn is_mono(&self) -> bool {
        self.palette == Palette::Mono
    }

    /// Colour of a share from 0 to 1, from blue over yellow to red. Brightness differs too.
    pub fn heat(&self, share: f64) -> Color {
        const RAMP: [Rgb; 5] = [(70, 110, 160), (86, 160, 180), (190, 190, 110), (235, 170, 50), (225, 90, 40)];
        // Most layers hold little: the scale stretches the lower end.
        let step = (share.clamp(0.0, 1.0).sqrt() * RAMP.len() as f64) as usize;
        if self.is_mono() { Color::Reset } else { reduce(RAMP[step.min(RAMP.len() - 1)], self.depth) }
    }

    /// The colour of a category.
    pub fn category(&self, category: Category) -> Color {
        self.categories[category_index(category)]
    }
}

/// `COLORFGBG` is `foreground;background` in ANSI numbers; 7 and above 8 are light.
fn light_background(value: &str) -> bool {
    matches!(value.rsplit(';').next().and_then(|last| last.parse::<u8>().ok()), Some(7 | 9..=15))
}

fn categories(colors: [Rgb; Category::COUNT], depth: Depth) -> [Color; Category::COUNT] {
    if depth == Depth::Ansi { CATEGORIES_ANSI } else { colors.map(|color| reduce(color, depth)) }
}

/// Black or white, whichever has the higher contrast: at least 4.5 on every colour, as WCAG asks of text.
fn readable_on(background: Rgb) -> Rgb {
    let [black, white] = [(0, 0, 0), (255, 255, 255)];
    if contrast(background, black) > contrast(background, white) { black } else { white }
}

/// Contrast of two colours, from 1 to 21, as WCAG defines it.
fn contrast(a: Rgb, b: Rgb) -> f64 {
    let linear = |value: u8| {
        let value = f64::from(value) / 255.0;
        if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    };
    let luminance = |(red, green, blue): Rgb| 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
    let (a, b) = (luminance(a) + 0.05, luminance(b) + 0.05);
    (a / b).max(b / a)
}

/// Reduces a colour to the terminal's depth.
fn reduce((red, green, blue): Rgb, depth: Depth) -> Color {
    match depth {
        Depth::True => Color::Rgb(red, green, blue),
        Depth::Indexed => {
            let spread = red.max(green).max(blue) - red.min(green).min(blue);
            if spread < 24 {
                // The 24 greys, from 8 to 238 in steps of 10.
                let level = (u16::from(red) + u16::from(green) + u16::from(blue)) / 3;
                return match level {
                    0..4 => Color::Indexed(16),
                    247.. => Color::Indexed(231),
                    _ => Color::Indexed(232 + (level.saturating_sub(3) / 10).min(23) as u8),
                };
            }
            // The cube's levels are 0, 95, 135, 175, 215, 255.
            let level = |value: u8| {
                if value < 48 {
                    0
                } else if value < 115 {
                    1
                } else {
                    (value - 35) / 40
                }
            };
            Color::Indexed(16 + 36 * level(red) + 6 * level(green) + level(blue))
        }
        Depth::Ansi => {
            const ANSI: [(Rgb, Color); 16] = [
                ((0, 0, 0), Color::Black),
                ((205, 0, 0), Color::Red),
                ((0, 170, 80), Color::Green),
                ((205, 150, 0), Color::Yellow),
                ((0, 70, 205), Color::Blue),
                ((205, 0, 205), Color::Magenta),
                ((0, 190, 205), Color::Cyan),
                ((200, 200, 200), Color::Gray),
                ((100, 100, 100), Color::DarkGray),
                ((255, 90, 40), Color::LightRed),
                ((60, 230, 150), Color::LightGreen),
                ((255, 255, 60), Color::LightYellow),
                ((80, 150, 255), Color::LightBlue),
                ((220, 120, 190), Color::LightMagenta),
                ((90, 200, 255), Color::LightCyan),
                ((255, 255, 255), Color::White),
            ];
            let distance = |other: Rgb| {
                let square = |a: u8, b: u8| (i32::from(a) - i32::from(b)).pow(2);
                square(red, other.0) + square(green, other.1) + square(blue, other.2)
            };
            ANSI.iter().min_by_key(|(rgb, _)| distance(*rgb)).map_or(Color::Reset, |(_, color)| *color)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_stay_apart_at_every_depth_that_can() {
        for depth in [Depth::True, Depth::Indexed] {
            let theme = Theme::new(Palette::Dark, depth, true);
            for (index, color) in theme.categories.iter().enumerate() {
                assert!(!theme.categories[..index].contains(color), "{depth:?}: {:?}", Category::ALL[index]);
            }
        }
    }

    #[test]
    fn names_are_readable_on_their_categories() {
        for color in CATEGORIES_DARK.into_iter().chain(CATEGORIES_LIGHT) {
            let least = contrast(color, readable_on(color));
            assert!(least >= 4.5, "{color:?}: {least:.2}");
        }
    }

    #[test]
    fn neighbours_in_the_chart_stay_apart() {
        for (bands, ground) in [(BANDS_DARK, (13, 17, 23)), (BANDS_LIGHT, (255, 255, 255)), (BANDS_CONTRAST, (0, 0, 0))]
        {
            // From the first band up to the ground above the last.
            let stack: Vec<Rgb> = bands.into_iter().chain([ground]).collect();
            let least = stack.windows(2).map(|pair| contrast(pair[0], pair[1])).fold(21.0, f64::min);
            assert!(least >= 1.5, "{bands:?}: {least:.2}");
        }
    }

    #[test]
    fn frequent_categories_differ_in_sixteen_colours() {
        let theme = Theme::new(Palette::Dark, Depth::Ansi, true);
        let frequent = [
            Category::Parameter,
            Category::Gradient,
            Category::OptimizerState,
            Category::Activation,
            Category::Input,
            Category::Temporary,
            Category::Workspace,
            Category::Cached,
            Category::Context,
            Category::OtherProcesses,
        ];
        let colors = frequent.map(|category| theme.category(category));
        for (index, color) in colors.iter().enumerate() {
            assert!(!colors[..index].contains(color), "{:?} {color}", frequent[index]);
        }
    }

    #[test]
    fn colours_are_reduced() {
        assert_eq!(reduce((255, 255, 255), Depth::Indexed), Color::Indexed(231));
        assert_eq!(reduce((215, 95, 0), Depth::Indexed), Color::Indexed(166));
        assert_eq!(reduce((250, 250, 250), Depth::Ansi), Color::White);
        assert!(light_background("0;15") && !light_background("15;0") && !light_background(""));
    }
}
