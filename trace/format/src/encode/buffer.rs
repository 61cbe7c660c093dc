//! A line under construction in a fixed buffer: no heap, no panic, always valid JSON.

use std::io::Write;

/// Maximum number of characters of an integer, including the sign.
pub(super) const MAX_NUMBER_BYTES: usize = 20;

/// Marks a string cut to fit into the line.
const ELLIPSIS: &[u8] = "…".as_bytes();

/// A buffer on the stack that holds one encoded line.
///
/// 192 bytes hold any record without strings, 512 bytes any record with short strings. A frame with long paths needs 4096.
/// Strings that do not fit are cut and end in `…`. A buffer too small even for that yields an empty line.
pub struct LineBuffer<const N: usize> {
    bytes: [u8; N],
}

impl<const N: usize> LineBuffer<N> {
    /// Returns an empty buffer.
    #[inline]
    pub const fn new() -> Self {
        Self { bytes: [0; N] }
    }

    /// Starts a new line and drops the previous one.
    #[inline]
    pub(super) fn line(&mut self) -> Line<'_> {
        Line { bytes: &mut self.bytes, length: 0, overflowed: false }
    }
}

impl<const N: usize> Default for LineBuffer<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// The line being written into a [`LineBuffer`].
pub(super) struct Line<'b> {
    bytes: &'b mut [u8],
    length: usize,
    overflowed: bool,
}

impl<'b> Line<'b> {
    /// Appends bytes unchanged; if they do not fit, the whole line is dropped.
    #[inline]
    pub(super) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        let end = self.length + bytes.len();
        match self.bytes.get_mut(self.length..end) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.length = end;
            }
            None => self.overflowed = true,
        }
        self
    }

    /// Appends a number.
    #[inline]
    pub(super) fn number(&mut self, number: impl itoa::Integer) -> &mut Self {
        self.raw(itoa::Buffer::new().format(number).as_bytes())
    }

    /// Appends a comma and a number.
    #[inline]
    pub(super) fn field(&mut self, number: impl itoa::Integer) -> &mut Self {
        self.raw(b",").number(number)
    }

    /// Appends a number, or `null`.
    pub(super) fn optional(&mut self, number: Option<impl itoa::Integer>) -> &mut Self {
        match number {
            Some(number) => self.number(number),
            None => self.raw(b"null"),
        }
    }

    /// Appends a float, or `null`; a float that is not finite becomes a string.
    pub(super) fn float(&mut self, number: Option<f64>) -> &mut Self {
        /// Maximum number of characters of a float.
        const MAX_FLOAT_BYTES: usize = 32;
        let Some(number) = number else { return self.raw(b"null") };
        let mut text = [0; MAX_FLOAT_BYTES];
        let mut rest = &mut text[..];
        // `{:?}` writes the shortest digits that parse to the same number; they fit.
        let _ = write!(rest, "{number:?}");
        let written = MAX_FLOAT_BYTES - rest.len();
        let quote: &[u8] = if number.is_finite() { b"" } else { b"\"" };
        self.raw(quote).raw(&text[..written]).raw(quote)
    }

    /// Appends a quoted string, cut so that `reserve` bytes stay free after it.
    pub(super) fn string(&mut self, text: &[u8], reserve: usize) -> &mut Self {
        self.raw(b"\"");
        let end = self.bytes.len().saturating_sub(reserve).saturating_sub(1);
        // Last position at which the ellipsis still fits.
        let mut last_cut = self.length;
        for chunk in text.utf8_chunks() {
            let replacement = if chunk.invalid().is_empty() { "" } else { "\u{fffd}" };
            for character in chunk.valid().chars().chain(replacement.chars()) {
                let mut escaped = [0; 6];
                let escaped = escape(character, &mut escaped);
                if self.length + escaped.len() > end {
                    self.length = last_cut;
                    if self.length + ELLIPSIS.len() <= end {
                        self.raw(ELLIPSIS);
                    }
                    return self.raw(b"\"");
                }
                self.raw(escaped);
                if self.length + ELLIPSIS.len() <= end {
                    last_cut = self.length;
                }
            }
        }
        self.raw(b"\"")
    }

    /// Appends a string as [`Line::string`] does, or `null`.
    pub(super) fn optional_string(&mut self, text: Option<&[u8]>, reserve: usize) -> &mut Self {
        match text {
            Some(text) => self.string(text, reserve),
            None => self.raw(b"null"),
        }
    }

    /// Returns the number of free bytes.
    pub(super) fn room(&self) -> usize {
        self.bytes.len() - self.length
    }

    /// Ends the line with `tail` and a newline.
    #[inline]
    pub(super) fn finish(&mut self, tail: &[u8]) {
        self.raw(tail).raw(b"\n");
    }

    /// Returns the finished line, or nothing if it did not fit.
    #[inline]
    pub(super) fn into_bytes(self) -> &'b [u8] {
        if self.overflowed { &[] } else { self.bytes.get(..self.length).unwrap_or(&[]) }
    }
}

/// Escapes `character` for a JSON string.
fn escape(character: char, out: &mut [u8; 6]) -> &[u8] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    match character {
        '"' => b"\\\"",
        '\\' => b"\\\\",
        '\n' => b"\\n",
        '\r' => b"\\r",
        '\t' => b"\\t",
        // Other control characters, including those that terminals interpret: C0, DEL and C1.
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' => {
            let code = character as usize;
            *out = [b'\\', b'u', b'0', b'0', HEX[code >> 4 & 15], HEX[code & 15]];
            out
        }
        _ => {
            let length = character.len_utf8();
            character.encode_utf8(out);
            &out[..length]
        }
    }
}
