//! Text for numbers: sizes in the binary units of PyTorch's messages, counts, durations and dates.

/// Units from bytes upwards, each 1024 times the previous one.
const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Formats a size with three significant digits in a fitting unit, as in `1.50 GiB`. Bytes are exact.
pub fn size(bytes: u64) -> String {
    let mut unit = 0;
    let mut value = bytes as f64;
    // Without this bound, 1023.6 KiB would be written "1024 KiB".
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", if unit == 0 { bytes.to_string() } else { three_digits(value) }, UNITS[unit])
}

/// Formats a number below 1024 with three significant digits: `1.50`, `12.3`, `456`.
fn three_digits(value: f64) -> String {
    if value < 9.995 {
        format!("{value:.2}")
    } else if value < 99.95 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

/// Formats a tick of an axis, without trailing zeros (`4 GiB`, `512 MiB`, `1.5 GiB`).
pub fn tick(bytes: u64) -> String {
    let text = size(bytes);
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// Formats a count in at most five characters: `999`, `12.3k`, `4.56M`.
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

/// Formats a number with a comma between groups of three digits.
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

/// Formats a count with its noun: `1 block`, `1,200 blocks`.
pub fn counted(count: u64, one: &str) -> String {
    format!("{} {one}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// Formats a duration in nanoseconds with its two largest units: `12 ms`, `1.50 s`, `2m 05s`, `3h 07m`, `2d 04h`.
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

/// Formats a time to the microsecond: `12.345678 s`.
pub fn seconds(ns: u64) -> String {
    format!("{}.{:06} s", ns / 1_000_000_000, ns / 1000 % 1_000_000)
}

/// Formats a share of 1 in percent.
pub fn share(share: f64) -> String {
    const PARTS: u64 = 100_000;
    percent((share * PARTS as f64) as u64, PARTS)
}

/// Formats a duration that may be short: `850 ns`, `6.13 ms`, `12.3 s`, `2m 05s`.
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

/// Formats a rate per second: `–`, `0.25`, `12.3`, `4.56k`.
pub fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate.is_nan() || rate < 0.005 => "–".to_owned(),
        rate if rate < 10.0 => format!("{rate:.2}"),
        rate if rate < 10_000.0 => format!("{rate:.0}"),
        rate => count(rate as u64),
    }
}

/// Formats a loss with four digits: `2.303`, `0.02397`, `1.2e-07`; `NaN` and `inf` stay as they are.
pub fn loss(loss: f64) -> String {
    const DIGITS: i32 = 4;
    let magnitude = if loss == 0.0 || !loss.is_finite() { 0 } else { loss.abs().log10().floor() as i32 };
    if !(-4..6).contains(&magnitude) {
        return format!("{loss:.1e}");
    }
    let decimals = usize::try_from(DIGITS - 1 - magnitude).unwrap_or(0);
    format!("{loss:.decimals$}")
}

/// Returns `a` − `b`.
pub fn signed_difference(a: u64, b: u64) -> i64 {
    let magnitude = i64::try_from(a.abs_diff(b)).unwrap_or(i64::MAX);
    if a >= b { magnitude } else { -magnitude }
}

/// Formats a change with its sign, and its magnitude by `text`: `+1.50 GiB`, `-512 B`, `–`.
pub fn change(change: i64, text: impl FnOnce(u64) -> String) -> String {
    match change {
        0 => "–".to_owned(),
        1.. => format!("+{}", text(change.unsigned_abs())),
        _ => format!("-{}", text(change.unsigned_abs())),
    }
}

/// Names the part of the run that was timed, from the number of timed steps.
pub fn timed_part(timed: u64, steps: u64) -> String {
    if timed == steps { "the whole run".to_owned() } else { format!("{} of {} steps", grouped(timed), grouped(steps)) }
}

/// Formats a running clock of steady width: `0:07`, `2:05`, `3:07:09`.
pub fn clock(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    if seconds < 3600 {
        format!("{}:{:02}", seconds / 60, seconds % 60)
    } else {
        format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
    }
}

/// Formats a moment on a time axis with ticks `step` nanoseconds apart, with no more digits than needed.
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

/// Formats a position among the steps, after `ended` of them: `after step 12`, counted from 0 as everywhere.
pub fn step_reached(ended: u64) -> String {
    match ended {
        0 => "before step 0 ended".to_owned(),
        ended => format!("after step {}", ended - 1),
    }
}

/// Formats a position among `steps` ended steps, after `ended` of them: `in step 13`, or `after step 12` after the last.
pub fn step_during(ended: u64, steps: u64) -> String {
    if ended < steps { format!("in step {ended}") } else { step_reached(ended) }
}

/// Formats a date in UTC: `2026-11-20 10:22:28 UTC`.
#[cfg(feature = "dates")]
pub fn date(unix_ns: u64) -> String {
    let moment = jiff::Timestamp::from_nanosecond(unix_ns.into()).unwrap_or_default();
    moment.strftime("%F %T UTC").to_string()
}

/// Formats `part` of `whole` in percent, with one decimal below 10.
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
    } else if percent < 99.5 || part >= whole {
        format!("{percent:.0} %")
    } else {
        format!("{:.1} %", (percent * 10.0).floor() / 10.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_have_a_sign() {
        assert_eq!(change(1 << 30, size), "+1.00 GiB");
        assert_eq!(change(-512, size), "-512 B");
        assert_eq!(change(0, size), "–");
        assert_eq!(change(i64::MIN, size), "-8.00 EiB");
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
    fn sizes_have_three_significant_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1536, "1.50 KiB"),
            (1_048_064, "1.00 MiB"),
            (12 << 30, "12.0 GiB"),
            (150_754_820_096, "140 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
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

    #[cfg(feature = "dates")]
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
