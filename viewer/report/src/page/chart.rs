//! Charts of memory: positions, axes, step lines and marks.

use std::fmt::Write as _;
use std::iter::successors;

use maud::{Markup, html};

use memlab_units::format;

/// Size of the picture, in its own units.
pub(crate) const WIDTH: f64 = 1200.0;
pub(crate) const HEIGHT: f64 = 330.0;

/// Left and right edge of the area over time.
pub(crate) const LEFT: f64 = 74.0;
pub(crate) const RIGHT: f64 = WIDTH - 14.0;

/// Scales of a chart.
pub(crate) struct Chart {
    /// Time, requests or batch size at the right edge.
    pub(crate) until: f64,
    /// Bytes at the upper edge.
    pub(crate) most: f64,
    /// Upper and lower edge.
    pub(crate) top: f64,
    pub(crate) axis: f64,
}

impl Chart {
    pub(crate) fn x(&self, at: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * (at / self.until.max(1.0)).min(1.0)
    }

    pub(crate) fn y(&self, bytes: u64) -> f64 {
        self.top + (self.axis - self.top) * (1.0 - (bytes as f64 / self.most.max(1.0)).min(1.0))
    }

    /// Lines at round numbers of bytes.
    pub(crate) fn grid(&self) -> Markup {
        html! {
            @for bytes in ticks(bytes_step(self.most)).take_while(|bytes| (*bytes as f64) < self.most) {
                @let y = self.y(bytes);
                path.grid d=(format!("M{LEFT} {y:.1}H{RIGHT}")) {}
                text.end x=(LEFT - 8.0) y=(px(y + 4.0)) { (format::tick(bytes)) }
            }
        }
    }

    /// The lower axis.
    pub(crate) fn axis(&self) -> Markup {
        html! { path.axis d=(format!("M{LEFT} {}H{RIGHT}", self.axis)) {} }
    }

    /// A tick of the lower axis. The attribute `data-x` lets the script move it when the chart is zoomed.
    pub(crate) fn tick(&self, x: f64, anchor: &str, label: &str) -> Markup {
        html! {
            g.tick data-x=(px(x)) {
                path.axis d=(format!("M{x:.1} {}v5", self.axis)) {}
                text class=(anchor) x=(px(x)) y=(px(self.axis + 19.0)) { (label) }
            }
        }
    }

    /// The part of a chart that the script zooms.
    pub(crate) fn zoomed(&self, content: &Markup) -> Markup {
        let (width, height) = (RIGHT - LEFT, HEIGHT);
        let view = format!("{LEFT} 0 {width} {height}");
        html! { svg x=(LEFT) y="0" width=(width) height=(height) viewBox=(view) { g.zoom { (content) } } }
    }

    /// A line across the chart, at the device's total.
    pub(crate) fn total(&self, bytes: u64, said: &str) -> Markup {
        let y = self.y(bytes);
        html! {
            path.total d=(format!("M{LEFT} {y:.1}H{RIGHT}")) {}
            text x=(LEFT + 6.0) y=(px(y - 5.0)) { (said) }
        }
    }

    /// A line down to the axis, with a text. `from`, `y`: start of the line, and height of the text.
    pub(crate) fn mark(&self, class: &str, x: f64, [from, y]: [f64; 2], sign: Option<char>, said: &str) -> Markup {
        let (anchor, beside) = if x > WIDTH / 2.0 { ("end", x - 9.0) } else { ("start", x + 9.0) };
        html! {
            g class=(class) data-x=(px(x)) {
                path d=(format!("M{x:.1} {from:.1}V{:.1}", self.axis)) {}
                @if let Some(sign) = sign { text.middle x=(px(x)) y=(px(y)) { (sign) } }
                text class=(anchor) x=(px(beside)) y=(px(y)) { (said) }
            }
        }
    }
}

/// A coordinate in a picture, with the precision of the drawing.
pub(crate) fn px(at: f64) -> String {
    format!("{at:.1}")
}

/// Continues a path at the height `before` with steps to the right edge, each starting at an `x` with height `y`.
pub(crate) fn steps(path: &mut String, mut before: f64, steps: impl Iterator<Item = (f64, f64)>) {
    for (x, y) in steps {
        // Steps of equal height need no corner.
        if (y - before).abs() < 0.05 {
            continue;
        }
        let _ = write!(path, "H{x:.1}V{y:.1}");
        before = y;
    }
    let _ = write!(path, "H{RIGHT:.1}");
}

/// A picture of this height. `said`: its description in words.
pub(crate) fn svg(class: &str, height: f64, said: &str, content: &Markup) -> Markup {
    let view = format!("0 0 {WIDTH} {height}");
    html! { svg class=(class) xmlns="http://www.w3.org/2000/svg" viewBox=(view) role="img" aria-label=(said) { (content) } }
}

/// A picture with its caption.
pub(crate) fn figure(svg: &Markup, caption: &Markup) -> Markup {
    html! { figure { div.scroll tabindex="0" { (svg) } figcaption { (caption) } } }
}

/// An entry of a legend.
pub(crate) fn entry(class: &str, what: &str) -> Markup {
    html! { li { span.swatch.(class) {} (what) } }
}

/// Multiples of `step` from 0.
pub(crate) fn ticks(step: u64) -> impl Iterator<Item = u64> {
    successors(Some(0), move |at: &u64| at.checked_add(step))
}

/// Tick distance in bytes: a power of two, so that a tick is a whole number of its unit. At most six ticks fit into
/// `top`.
fn bytes_step(top: f64) -> u64 {
    let mut step = 1_u64;
    while top / step as f64 > 6.0 && step < 1 << 62 {
        step *= 2;
    }
    step
}

/// Smallest of 1, 2, 5, 10, 20 … that fits into `whole` at most `times`.
pub(crate) fn decimal_step(whole: u64, times: u64) -> u64 {
    let decimal = (0..19).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u64.pow(power)));
    decimal.into_iter().find(|step| whole / step <= times).unwrap_or(u64::MAX)
}
