//! Axes that the pictures of a plan share.

use std::fmt::Write as _;

use crate::page::axes::bytes_step;
use memlab_units::format;

pub(super) const WIDTH: f64 = 1200.0;
pub(super) const HEIGHT: f64 = 330.0;
pub(super) const LEFT: f64 = 74.0;
pub(super) const RIGHT: f64 = 14.0;
pub(super) const TOP: f64 = 34.0;
pub(super) const BOTTOM: f64 = 44.0;

/// Where things are in a picture.
pub(super) struct Scale {
    /// What is at the right edge.
    pub(super) until: f64,
    /// How many bytes are at the top.
    pub(super) top: f64,
}

impl Scale {
    pub(super) fn x(&self, at: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (at / self.until.max(1.0)).min(1.0)
    }

    pub(super) fn y(&self, bytes: u64) -> f64 {
        TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - (bytes as f64 / self.top.max(1.0)).min(1.0))
    }

    /// The beginning of a picture, with lines at round numbers of bytes. `said`: what it shows, in words that are markup already.
    pub(super) fn begin(&self, class: &str, said: &str) -> String {
        let mut svg = format!(
            "<svg class=\"timeline plan {class}\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"{said}\">\n"
        );
        let step = bytes_step(self.top);
        for tick in (0..).map(|index| index * step).take_while(|bytes| (*bytes as f64) < self.top) {
            let y = self.y(tick);
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{}\"/><text class=\"end\" x=\"{}\" y=\"{:.1}\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 8.0,
                y + 4.0,
                format::tick(tick)
            );
        }
        let _ = writeln!(svg, "<path class=\"axis\" d=\"M{LEFT} {}H{}\"/>", HEIGHT - BOTTOM, WIDTH - RIGHT);
        svg
    }

    /// The card's memory, as a line across.
    pub(super) fn card(&self, svg: &mut String, bytes: u64, text: &str) {
        let y = self.y(bytes);
        let _ = writeln!(
            svg,
            "<path class=\"total\" d=\"M{LEFT} {y:.1}H{}\"/><text x=\"{}\" y=\"{:.1}\">{text}</text>",
            WIDTH - RIGHT,
            LEFT + 6.0,
            y - 5.0,
        );
    }
}
