//! Durations, read from text.

/// Returns the nanoseconds of a time as people type it: `12.5`, `12.5s`, `850ms`, `1m30s`, `2d 04h`, `1:30`, `1:02:03.5`.
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
}
