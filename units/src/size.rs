//! Sizes, read from text.

use std::fmt;

use bytesize::ByteSize;

/// Error in a size. `Display` names the correct form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParseError {
    /// A number without a unit; keeps the number as written.
    NoUnit(String),
    /// A unit such as `G`, which may mean GiB or GB; keeps number and letter.
    AmbiguousUnit(String, char),
    /// 16 EiB or more.
    TooLarge(String),
    /// Anything else.
    NotASize(String),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::NoUnit(number) => write!(f, "{number} has no unit; did you mean {number}{}?", likely_unit(number)),
            Self::AmbiguousUnit(number, letter) => {
                let letter = letter.to_ascii_uppercase();
                let (binary, power_of_2, decimal, power_of_10) = match letter {
                    'K' => ("KiB", "2¹⁰", "kB", "10³"),
                    'M' => ("MiB", "2²⁰", "MB", "10⁶"),
                    'G' => ("GiB", "2³⁰", "GB", "10⁹"),
                    _ => ("TiB", "2⁴⁰", "TB", "10¹²"),
                };
                write!(
                    f,
                    "{number}{letter} is ambiguous: write {number}{binary} ({power_of_2} bytes each) or \
                     {number}{decimal} ({power_of_10} bytes each)"
                )
            }
            Self::TooLarge(text) => write!(f, "{text} is more than any memory: sizes end below 16 EiB"),
            Self::NotASize(text) => {
                write!(f, "{text:?} is not a size: write a number and a unit, as in 8GiB or 512MiB")
            }
        }
    }
}

impl std::error::Error for ParseError {}

/// Returns the bytes of a size as a person types it.
///
/// # Errors
///
/// If the text is not a number with a unit from B to EiB or EB, or is 2⁶⁴ bytes or more.
pub fn parse_size(text: &str) -> Result<u64, ParseError> {
    let text = text.trim();
    let digits = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim_start());
    if !number.parse::<f64>().is_ok_and(f64::is_finite) {
        return Err(ParseError::NotASize(text.to_owned()));
    }
    match unit.as_bytes() {
        [] => return Err(ParseError::NoUnit(number.to_owned())),
        [letter] if b"kmgt".contains(&letter.to_ascii_lowercase()) => {
            return Err(ParseError::AmbiguousUnit(number.to_owned(), char::from(*letter)));
        }
        _ => {}
    }
    match format!("{number}{unit}").parse::<ByteSize>() {
        // bytesize returns the largest number for a size that does not fit.
        Ok(ByteSize(u64::MAX)) => Err(ParseError::TooLarge(text.to_owned())),
        Ok(size) => Ok(size.as_u64()),
        Err(_) => Err(ParseError::NotASize(text.to_owned())),
    }
}

/// Returns the most likely unit of a bare number.
fn likely_unit(number: &str) -> &'static str {
    match number.parse::<f64>() {
        Ok(number) if number < 256.0 => "GiB",
        Ok(number) if number < 1e6 => "MiB",
        _ => "B",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format;

    #[test]
    fn units_are_binary_with_an_i_and_decimal_without() {
        for (text, bytes) in [
            ("8GiB", 8 << 30),
            ("8GB", 8_000_000_000),
            ("8gib", 8 << 30),
            (" 512 MIB ", 512 << 20),
            ("64kb", 64_000),
            ("64KiB", 65_536),
            ("1.5TiB", 3 << 39),
            (".5gib", 1 << 29),
            ("0B", 0),
            ("9007199254740993b", 9_007_199_254_740_993),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn errors_show_a_valid_size() {
        for (text, said) in [
            ("8", "8 has no unit; did you mean 8GiB?"),
            ("0.5", "0.5 has no unit; did you mean 0.5GiB?"),
            ("256", "256 has no unit; did you mean 256MiB?"),
            ("512", "512 has no unit; did you mean 512MiB?"),
            ("8589934592", "8589934592 has no unit; did you mean 8589934592B?"),
            ("8g", "8G is ambiguous: write 8GiB (2³⁰ bytes each) or 8GB (10⁹ bytes each)"),
            ("64 K", "64K is ambiguous: write 64KiB (2¹⁰ bytes each) or 64kB (10³ bytes each)"),
            ("99999999999999TiB", "99999999999999TiB is more than any memory: sizes end below 16 EiB"),
            ("much", "\"much\" is not a size: write a number and a unit, as in 8GiB or 512MiB"),
            ("", "\"\" is not a size: write a number and a unit, as in 8GiB or 512MiB"),
        ] {
            assert_eq!(parse_size(text).unwrap_err().to_string(), said);
        }
        for nonsense in ["-1GiB", "1.2.3GiB", "8GB8", "GiB", ".", "8 apples", "1e9GiB", "8GiBs", "∞GiB", "8ＧＢ"] {
            assert!(matches!(parse_size(nonsense), Err(ParseError::NotASize(_))), "{nonsense}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text: String) {
            if let Err(error) = parse_size(&text) {
                assert!(!error.to_string().is_empty());
            }
        }

        #[test]
        fn a_size_in_bytes_is_exact(bytes in 0..u64::MAX) {
            assert_eq!(parse_size(&format!("{bytes}B")), Ok(bytes));
        }

        #[test]
        fn formatted_sizes_are_read_back_to_three_digits(bytes in 0..1u64 << 62) {
            let read = parse_size(&format::size(bytes)).unwrap();
            assert!(read.abs_diff(bytes) as f64 <= bytes as f64 * 0.005, "{bytes} {read}");
        }
    }
}
