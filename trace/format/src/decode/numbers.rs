//! Parser of an event's integers, written by hand because events are numerous.

use super::error::DecodeError;

/// Number of digits that fit into a word.
const WORD_DIGITS: usize = 8;

const POWERS_OF_TEN: [u64; WORD_DIGITS + 1] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// Returns the number at the start of `bytes`, and its count of digits. Reads up to eight digits, all at once.
#[inline]
fn leading_digits(bytes: &[u8]) -> (u64, usize) {
    let Some(word) = bytes.first_chunk().map(|eight| u64::from_le_bytes(*eight)) else { return last_digits(bytes) };
    // The upper half of a digit's byte is 3, even after adding 6.
    let of_digits = word ^ 0x3030_3030_3030_3030;
    let others = (of_digits | of_digits.wrapping_add(0x0606_0606_0606_0606)) & 0xf0f0_f0f0_f0f0_f0f0;
    let count = others.trailing_zeros() as usize / 8;
    // The digits at the word's end, as if preceded by zeros.
    let digits = if count == 0 { 0 } else { of_digits << (64 - 8 * count) };
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_ffff_0000_ffff;
    let value = fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xffff_ffff;
    (value, count)
}

/// Reads a number from fewer than eight bytes, as [`leading_digits`] does.
#[inline]
fn last_digits(bytes: &[u8]) -> (u64, usize) {
    let count = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (bytes[..count].iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0')), count)
}

/// Integers of an event, read one after another.
pub(super) struct Numbers<'a> {
    pub(super) rest: &'a [u8],
}

impl Numbers<'_> {
    /// Reads the next number, up to the comma or bracket after it.
    #[inline]
    pub(super) fn next(&mut self) -> Result<u64, DecodeError> {
        // Fast path for one digit, as in threads, devices and flags.
        if let [digit @ b'0'..=b'9', b',', rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(u64::from(digit - b'0'));
        }
        let (mut value, mut digits) = leading_digits(self.rest);
        if digits == WORD_DIGITS {
            let (more, count) = leading_digits(&self.rest[WORD_DIGITS..]);
            value = value * POWERS_OF_TEN[count] + more;
            digits += count;
        }
        match self.rest[digits..] {
            [b',', ref rest @ ..] if digits > 0 => {
                self.rest = rest;
                Ok(value)
            }
            [b']', ..] if digits > 0 => {
                self.rest = &self.rest[digits..];
                Ok(value)
            }
            _ => self.next_unusual(),
        }
    }

    /// Reads a number as [`Numbers::next`] does, of any length, and with white space around it.
    #[cold]
    fn next_unusual(&mut self) -> Result<u64, DecodeError> {
        let mut value: u64 = 0;
        let mut digits = 0;
        for byte in self.rest.iter().take_while(|byte| byte.is_ascii_digit()) {
            let grown = value.checked_mul(10).and_then(|value| value.checked_add(u64::from(byte - b'0')));
            value = grown.ok_or(DecodeError::new("a number is too large"))?;
            digits += 1;
        }
        if digits == 0 {
            return self.next_spaced();
        }
        self.rest = self.rest[digits..].trim_ascii_start();
        match self.rest {
            [b',', rest @ ..] => {
                self.rest = rest;
                Ok(value)
            }
            [b']', ..] => Ok(value),
            [] => Err(DecodeError::new("the line is cut short")),
            _ => Err(DecodeError::new("a number is not an integer")),
        }
    }

    /// Reads a number as [`Numbers::next`] does, with white space before it.
    #[cold]
    fn next_spaced(&mut self) -> Result<u64, DecodeError> {
        let trimmed = self.rest.trim_ascii_start();
        match trimmed {
            [b']', ..] | [] => Err(DecodeError::new("an element is missing")),
            [b'-', ..] => Err(DecodeError::new("a number is negative")),
            [b'0'..=b'9', ..] if trimmed.len() < self.rest.len() => {
                self.rest = trimmed;
                self.next()
            }
            _ => Err(DecodeError::new("an element is not a number")),
        }
    }

    #[inline]
    pub(super) fn next_u32(&mut self) -> Result<u32, DecodeError> {
        u32::try_from(self.next()?).map_err(|_| DecodeError::new("a number is too large"))
    }

    #[inline]
    pub(super) fn next_i32(&mut self) -> Result<i32, DecodeError> {
        if let [b' ', ..] = self.rest {
            self.rest = self.rest.trim_ascii_start();
        }
        if let [b'-', rest @ ..] = self.rest {
            self.rest = rest;
            let value = i32::try_from(self.next()?).map_err(|_| DecodeError::new("a number is too large"))?;
            return Ok(-value);
        }
        i32::try_from(self.next()?).map_err(|_| DecodeError::new("a number is too large"))
    }

    /// Reads the next number, if a newer version wrote one.
    pub(super) fn next_if_any(&mut self) -> Result<Option<u64>, DecodeError> {
        self.rest.first().is_some_and(u8::is_ascii_digit).then(|| self.next()).transpose()
    }

    /// Checks that the array ends, possibly after elements of a newer version.
    #[inline]
    pub(super) fn end(&self) -> Result<(), DecodeError> {
        match self.rest {
            [b']'] | [b']', b'\n'] => Ok(()),
            _ => self.end_unusual(),
        }
    }

    #[cold]
    fn end_unusual(&self) -> Result<(), DecodeError> {
        let rest = self.rest.trim_ascii();
        if rest == b"]" {
            return Ok(());
        }
        // Elements of a newer version: any JSON.
        let mut array = Vec::with_capacity(rest.len() + 1);
        array.push(b'[');
        array.extend_from_slice(rest);
        match serde_json::from_slice::<Vec<serde::de::IgnoredAny>>(&array) {
            Ok(_) => Ok(()),
            Err(_) => Err(DecodeError::new("the line does not end as an array")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_read_as_they_are_spelled() {
        // GIVEN numbers of all lengths up to a word's, before each possible byte
        for number in [0_u64, 7, 10, 99, 123, 9_999, 54_321, 999_999, 1_234_567, 99_999_999] {
            for after in 0..=u8::MAX {
                let mut text = number.to_string().into_bytes();
                let count = text.len();
                text.push(after);
                text.extend_from_slice(b"9999999999");
                // THEN digits end at the right position, and nothing overflows
                let (value, digits) = leading_digits(&text);
                if after.is_ascii_digit() {
                    assert_eq!(digits, WORD_DIGITS, "{text:?}");
                } else {
                    assert_eq!((value, digits), (number, count), "{text:?}");
                }
                assert_eq!(leading_digits(&text[..count]), (number, count));
            }
        }
    }

    #[test]
    fn long_numbers_are_read_whole() {
        for number in [99_999_999, 123_456_789, 9_999_999_999_999_999, 12_345_678_901_234_567, u64::MAX] {
            let mut numbers = Numbers { rest: format!("{number},1]").into_bytes().leak() };
            assert_eq!((numbers.next().unwrap(), numbers.next().unwrap()), (number, 1));
        }
        let mut numbers = Numbers { rest: b"18446744073709551616]" };
        assert!(numbers.next().is_err());
    }
}
