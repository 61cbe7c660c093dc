//! Numbers for people: sizes in binary units, as PyTorch's messages have them, counts and durations.

/// How sizes are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Units {
    /// The unit that fits each size: KiB, MiB, GiB …
    #[default]
    Auto,
    /// All in MiB, so that a column compares at a glance.
    Mebibytes,
    /// All in GiB.
    Gibibytes,
    /// Bytes, exactly.
    Bytes,
}

impl Units {
    /// The next of the four.
    pub fn next(self) -> Self {
        match self {
            Self::Auto => Self::Mebibytes,
            Self::Mebibytes => Self::Gibibytes,
            Self::Gibibytes => Self::Bytes,
            Self::Bytes => Self::Auto,
        }
    }

    /// Its name for the footer.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Mebibytes => "MiB",
            Self::Gibibytes => "GiB",
            Self::Bytes => "bytes",
        }
    }
}

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// A size: three significant digits and the unit (`1.50 GiB`), or as `units` wants it.
pub fn bytes(bytes: u64, units: Units) -> String {
    match units {
        Units::Auto => {
            let mut unit = 0;
            let mut value = bytes as f64;
            // 1023.6 KiB would be written "1024 KiB".
            while value >= 1023.5 && unit + 1 < UNITS.len() {
                value /= 1024.0;
                unit += 1;
            }
            format!("{} {}", if unit == 0 { bytes.to_string() } else { significant(value) }, UNITS[unit])
        }
        Units::Mebibytes => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        Units::Gibibytes => format!("{:.3} GiB", bytes as f64 / f64::from(1 << 30)),
        Units::Bytes => grouped(bytes),
    }
}

/// A tick of an axis: a whole number of its unit where it is one (`4 GiB`, `512 MiB`, `1.5 GiB`).
pub fn tick(bytes: u64) -> String {
    let text = self::bytes(bytes, Units::Auto);
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

fn significant(value: f64) -> String {
    if value < 9.995 {
        format!("{value:.2}")
    } else if value < 99.95 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

/// A count in at most five characters: `999`, `12.3k`, `4.56M`.
pub fn count(count: u64) -> String {
    if count < 10_000 {
        return count.to_string();
    }
    let (value, unit) = match count {
        0..1_000_000 => (count as f64 / 1e3, 'k'),
        1_000_000..1_000_000_000 => (count as f64 / 1e6, 'M'),
        _ => (count as f64 / 1e9, 'G'),
    };
    format!("{}{unit}", significant(value))
}

/// A number with a comma between groups of three digits.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A duration in nanoseconds with the two units that matter: `12 ms`, `1.50 s`, `2m 05s`, `3h 07m`, `2d 04h`.
pub fn duration(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match seconds {
        0 if ns == 0 => "0 s".to_owned(),
        0 if ns < 1_000_000 => format!("{} µs", ns / 1000),
        0 => format!("{} ms", ns / 1_000_000),
        1..=9 => format!("{:.2} s", (ns / 10_000_000) as f64 / 100.0),
        10..=59 => format!("{:.1} s", (ns / 100_000_000) as f64 / 10.0),
        60..=3599 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3600..=86_399 => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// A running clock, of steady width: `0:07`, `2:05`, `3:07:09`.
pub fn clock(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    if seconds < 3600 {
        format!("{}:{:02}", seconds / 60, seconds % 60)
    } else {
        format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
    }
}

/// A moment on a time axis whose ticks are `step` nanoseconds apart: no more digits than needed.
pub fn moment(ns: u64, step: u64) -> String {
    const SECOND: u64 = 1_000_000_000;
    match ns {
        0 => "0".to_owned(),
        _ if step < SECOND && ns < 60 * SECOND => {
            let text = format!("{:.3}", ns as f64 / SECOND as f64);
            format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
        }
        _ if ns < 60 * SECOND => format!("{} s", ns / SECOND),
        _ if step.is_multiple_of(60 * SECOND) && ns < 3600 * SECOND => format!("{} min", ns / (60 * SECOND)),
        _ if step.is_multiple_of(3600 * SECOND) => format!("{} h", ns / (3600 * SECOND)),
        _ => clock(ns),
    }
}

/// `part` of `whole` in percent: one decimal below 10.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "–".to_owned();
    }
    let percent = part as f64 / whole as f64 * 100.0;
    if part == 0 {
        "0 %".to_owned()
    } else if percent < 0.1 {
        "<0.1 %".to_owned()
    } else if percent < 9.95 {
        format!("{percent:.1} %")
    } else {
        format!("{percent:.0} %")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        let auto = |size| bytes(size, Units::Auto);
        assert_eq!(auto(0), "0 B");
        assert_eq!(auto(512), "512 B");
        assert_eq!(auto(1536), "1.50 KiB");
        assert_eq!(auto((1 << 20) - 1), "1.00 MiB", "never 1024 KiB");
        assert_eq!(auto(12 * (1 << 30)), "12.0 GiB");
        assert_eq!(auto(150_754_820_096), "140 GiB");
        assert_eq!(auto(u64::MAX), "16.0 EiB");
    }

    #[test]
    fn sizes_in_a_unit() {
        assert_eq!(bytes(1 << 20, Units::Mebibytes), "1.0 MiB");
        assert_eq!(bytes(3 << 29, Units::Gibibytes), "1.500 GiB");
        assert_eq!(bytes(1_234_567, Units::Bytes), "1,234,567");
        assert_eq!([tick(4 << 30), tick(3 << 29), tick(10 << 20), tick(0)], ["4 GiB", "1.5 GiB", "10 MiB", "0 B"]);
    }

    #[test]
    fn durations() {
        let texts = [
            0,
            1500,
            12_000_000,
            1_500_000_000,
            12_340_000_000,
            125_000_000_000,
            11_220_000_000_000,
            187_200_000_000_000,
        ]
        .map(duration);
        assert_eq!(texts, ["0 s", "1 µs", "12 ms", "1.50 s", "12.3 s", "2m 05s", "3h 07m", "2d 04h"]);
        assert_eq!([clock(7_000_000_000), clock(11_229_000_000_000)], ["0:07", "3:07:09"]);
    }

    #[test]
    fn counts_and_shares() {
        assert_eq!([count(9999), count(12_345), count(4_560_000)], ["9999", "12.3k", "4.56M"]);
        assert_eq!(
            [percent(0, 9), percent(1, 3), percent(1, 12), percent(1, 5000), percent(1, 0)],
            ["0 %", "33 %", "8.3 %", "<0.1 %", "–"]
        );
    }
}
