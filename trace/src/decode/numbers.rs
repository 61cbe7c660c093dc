//! The integers of an event, parsed by hand, since there are millions of events.

use super::error::DecodeError;

/// The integers of an event, read one after another.
pub(super) struct Numbers<'a> {
    pub(super) rest: &'a [u8],
}

impl Numbers<'_> {
    /// The next number, up to the comma or bracket after it.
    #[inline]
    pub(super) fn next(&mut self) -> Result<u64, DecodeError> {
        let mut value: u64 = 0;
        let mut digits = 0;
        for byte in self.rest {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                break;
            }
            // 19 digits cannot overflow; only the twentieth is checked.
            value = if digits < 19 {
                value * 10 + u64::from(digit)
            } else {
                let grown = value.checked_mul(10).and_then(|value| value.checked_add(u64::from(digit)));
                grown.ok_or(DecodeError::new("a number is too large"))?
            };
            digits += 1;
        }
        if digits == 0 {
            return self.next_spaced();
        }
        self.rest = &self.rest[digits..];
        match self.rest {
            [b',', rest @ ..] => {
                self.rest = rest;
                Ok(value)
            }
            [b']', ..] => Ok(value),
            _ => self.bad_end(value),
        }
    }

    /// As [`Numbers::next`], with white space before the number.
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

    /// The number is not followed by a comma: white space, or it is not an integer.
    #[cold]
    fn bad_end(&mut self, value: u64) -> Result<u64, DecodeError> {
        self.rest = self.rest.trim_ascii_start();
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

    /// Checks that the array ends, perhaps after elements of a newer version.
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
        // Elements added by a newer version: anything, as long as it is JSON.
        let mut array = Vec::with_capacity(rest.len() + 1);
        array.push(b'[');
        array.extend_from_slice(rest);
        match serde_json::from_slice::<Vec<serde::de::IgnoredAny>>(&array) {
            Ok(_) => Ok(()),
            Err(_) => Err(DecodeError::new("the line does not end as an array")),
        }
    }
}
