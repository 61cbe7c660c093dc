//! Numbers for people: sizes in binary units, as PyTorch's messages have them, counts and durations.

use memlab_sizes::three_digits;
use serde::Deserialize;

/// How sizes are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Units {
    /// The unit that fits each size: KiB, MiB, GiB …
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// All in MiB, so that a column compares at a glance.
    #[serde(rename = "MiB")]
    Mebibytes,
    /// All in GiB.
    #[serde(rename = "GiB")]
    Gibibytes,
    /// Bytes, exactly.
    #[serde(rename = "bytes")]
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

/// A size: three significant digits and the unit (`1.50 GiB`), or as `units` wants it.
pub fn bytes(bytes: u64, units: Units) -> String {
    match units {
        Units::Auto => memlab_sizes::format(bytes),
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
    format!("{}{unit}", three_digits(value))
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

/// So many of something: `1 block`, `1,200 blocks`.
pub fn counted(count: u64, one: &str) -> String {
    format!("{} {one}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// A duration in nanoseconds with the two units that matter: `12 ms`, `1.50 s`, `2m 05s`, `3h 07m`, `2d 04h`.
pub fn duration(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match seconds {
        0 if ns == 0 => "0 s".to_owned(),
        0 if ns < 1000 => format!("{ns} ns"),
        0 if ns < 1_000_000 => format!("{} µs", ns / 1000),
        0 => format!("{} ms", ns / 1_000_000),
        1..=9 => format!("{:.2} s", (ns / 10_000_000) as f64 / 100.0),
        10..=59 => format!("{:.1} s", (ns / 100_000_000) as f64 / 10.0),
        60..=3599 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3600..=86_399 => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// A time to the microsecond: `12.345678 s`.
pub fn seconds(ns: u64) -> String {
    format!("{}.{:06} s", ns / 1_000_000_000, ns / 1000 % 1_000_000)
}

/// A share of 1 in percent.
pub fn share(share: f64) -> String {
    const PARTS: u64 = 100_000;
    percent((share * PARTS as f64) as u64, PARTS)
}

/// How long something took that may be short: `850 ns`, `6.13 ms`, `12.3 s`, `2m 05s`.
pub fn time_spent(ns: u64) -> String {
    let (value, unit) = match ns {
        0 => return "0 s".to_owned(),
        1..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        1_000_000_000..60_000_000_000 => (ns as f64 / 1e9, "s"),
        _ => return duration(ns),
    };
    format!("{} {unit}", three_digits(value))
}

/// How often something happens, a second: `–`, `0.25`, `12.3`, `4.56k`.
pub fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate.is_nan() || rate < 0.005 => "–".to_owned(),
        rate if rate < 10.0 => format!("{rate:.2}"),
        rate if rate < 10_000.0 => format!("{rate:.0}"),
        rate => count(rate as u64),
    }
}

/// A loss with four digits: `2.303`, `0.02397`, `1.2e-07`; `NaN` and `inf` as they are.
pub fn loss(loss: f64) -> String {
    const DIGITS: i32 = 4;
    let magnitude = if loss == 0.0 || !loss.is_finite() { 0 } else { loss.abs().log10().floor() as i32 };
    if !(-4..6).contains(&magnitude) {
        return format!("{loss:.1e}");
    }
    let decimals = usize::try_from(DIGITS - 1 - magnitude).unwrap_or(0);
    format!("{loss:.decimals$}")
}

/// `a` − `b`.
pub fn signed_difference(a: u64, b: u64) -> i64 {
    let magnitude = i64::try_from(a.abs_diff(b)).unwrap_or(i64::MAX);
    if a >= b { magnitude } else { -magnitude }
}

/// By how much a size changed, with its sign: `+1.50 GiB`, `-512 B`, `–`.
pub fn change(change: i64, units: Units) -> String {
    match change {
        0 => "–".to_owned(),
        1.. => format!("+{}", bytes(change.unsigned_abs(), units)),
        _ => format!("-{}", bytes(change.unsigned_abs(), units)),
    }
}

/// What times are of, if those of so many steps were recorded.
pub fn timed_part(timed: u64, steps: u64) -> String {
    if timed == steps { "the whole run".to_owned() } else { format!("{} of {} steps", grouped(timed), grouped(steps)) }
}

/// A time as people type it, in nanoseconds: `12.5`, `12.5s`, `850ms`, `1m30s`, `2d 04h`, `1:30`, `1:02:03.5`.
pub fn parse_duration(text: &str) -> Option<u64> {
    let text = text.trim();
    let nanoseconds = |seconds: f64| (seconds.is_finite() && seconds >= 0.0).then_some((seconds * 1e9).round() as u64);
    let number = |digits: &str| {
        let plain =
            !digits.is_empty() && digits.chars().all(|character| character.is_ascii_digit() || character == '.');
        plain.then(|| digits.parse::<f64>().ok()).flatten()
    };
    if text.contains(':') {
        let parts: Option<Vec<f64>> = text.split(':').map(number).collect();
        return match parts?[..] {
            [minutes, seconds] => nanoseconds(minutes * 60.0 + seconds),
            [hours, minutes, seconds] => nanoseconds(hours * 3600.0 + minutes * 60.0 + seconds),
            _ => None,
        };
    }
    if let Some(seconds) = number(text) {
        return nanoseconds(seconds);
    }
    let mut rest = text;
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !character.is_ascii_digit() && character != '.')?;
        let value = number(&rest[..digits])?;
        rest = rest[digits..].trim_start();
        let letters = rest.find(|character: char| !character.is_alphabetic()).unwrap_or(rest.len());
        total += value
            * match &rest[..letters] {
                "d" => 86_400.0,
                "h" => 3600.0,
                "m" | "min" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                _ => return None,
            };
        rest = rest[letters..].trim_start();
    }
    (!text.is_empty()).then(|| nanoseconds(total)).flatten()
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

/// Where among the steps a moment is, with `ended` of them over: `after step 12`, counted from 0 as everywhere.
pub fn step_reached(ended: u64) -> String {
    match ended {
        0 => "before step 0 ended".to_owned(),
        ended => format!("after step {}", ended - 1),
    }
}

/// A moment of history, in UTC: `2026-11-20 10:22:28 UTC`.
pub fn date(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000;
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March have their leap day at the end, and every 400 of them as many days (Howard Hinnant,
    // "chrono-compatible low-level date algorithms").
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", time / 3600, time / 60 % 60, time % 60)
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

/// What to say of a trace that lacks events; `None`: it lacks none.
pub fn missing_events(count: u64) -> Option<String> {
    let events = if count == 1 { "event is" } else { "events are" };
    let count = (count > 0).then(|| grouped(count))?;
    Some(format!(
        "{count} {events} missing: they came faster than the trace could be kept below MEMLAB_TRACE_MAX. Figures after the \
         first of them are not exact; a larger maximum helps."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_type_them() {
        let seconds = |text| parse_duration(text).map(|ns| ns as f64 / 1e9);
        assert_eq!(seconds("12.5"), Some(12.5));
        assert_eq!(seconds("12.5s"), Some(12.5));
        assert_eq!(seconds("850ms"), Some(0.85));
        assert_eq!(seconds("1m30s"), Some(90.0));
        assert_eq!(seconds("1m 30 s"), Some(90.0));
        assert_eq!(seconds("1:30"), Some(90.0));
        assert_eq!(seconds("1:00:01.5"), Some(3601.5));
        for wrong in ["", "s", "1x", "-1", "1:2:3:4", "nan", "inf", "1..2", "5 parsecs", "1:"] {
            assert_eq!(parse_duration(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn changes_have_a_sign() {
        assert_eq!(change(1 << 30, Units::Auto), "+1.00 GiB");
        assert_eq!(change(-512, Units::Auto), "-512 B");
        assert_eq!(change(0, Units::Auto), "–");
        assert_eq!(change(i64::MIN, Units::Auto), "-8.00 EiB");
        assert_eq!(
            [rate(0.0), rate(f64::NAN), rate(0.25), rate(123.4), rate(45_600.0)].join(" "),
            "– – 0.25 123 45.6k"
        );
    }

    #[test]
    fn short_times_have_three_digits() {
        let times = [0, 850, 6_130_000, 12_345_678_901, 125_000_000_000].map(time_spent);
        assert_eq!(times, ["0 s", "850 ns", "6.13 ms", "12.3 s", "2m 05s"]);
    }

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
            750,
            1500,
            12_000_000,
            1_500_000_000,
            12_340_000_000,
            125_000_000_000,
            11_220_000_000_000,
            187_200_000_000_000,
        ]
        .map(duration);
        assert_eq!(texts, ["0 s", "750 ns", "1 µs", "12 ms", "1.50 s", "12.3 s", "2m 05s", "3h 07m", "2d 04h"]);
        assert_eq!([clock(7_000_000_000), clock(11_229_000_000_000)], ["0:07", "3:07:09"]);
    }

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_400_000_000_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_795_170_148_963_235_382), "2026-11-20 10:22:28 UTC");
        assert_eq!(date(u64::MAX), "2554-07-21 23:34:33 UTC");
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
