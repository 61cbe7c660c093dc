//! Sizes as people write them.

/// Bytes for a text such as `8GiB`, `512 MiB`, `1.5G` or `4096`; units are binary. None when it is not a size.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..split].parse().ok()?;
    let shift = match text[split..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    let bytes = number * (1u64 << shift) as f64;
    (bytes.is_finite() && bytes >= 0.0 && bytes < u64::MAX as f64).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes_are_read_in_binary_units_and_nonsense_is_refused() {
        // GIVEN sizes as people write them, WHEN they are read, THEN units are binary.
        assert_eq!(parse("8GiB"), Some(8 << 30));
        assert_eq!(parse("512 MiB"), Some(512 << 20));
        assert_eq!(parse("1.5g"), Some(3 << 29));
        assert_eq!(parse("4096"), Some(4096));
        // GIVEN nonsense, WHEN it is read, THEN it is refused.
        for nonsense in ["", "GiB", "8 apples", "1.2.3", "-1"] {
            assert_eq!(parse(nonsense), None, "{nonsense}");
        }
    }
}
