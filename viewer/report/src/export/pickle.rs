//! Writes Python's pickle format, protocol 4, without building the objects first.
//!
//! Only opcodes that PyTorch's viewer (`MemoryViz.js`) supports are used. Lists and dictionaries come in batches, as in
//! Python's own pickler: the viewer passes a batch as arguments of one call, whose number is limited. A written value
//! can be referenced later: a trace of a million events repeats the same stacks. The format: `pickletools` in Python's
//! library.

use std::collections::HashMap;
use std::io::{self, Write};

const PROTO: u8 = 0x80;
const STOP: u8 = b'.';
const NEWTRUE: u8 = 0x88;
const NEWFALSE: u8 = 0x89;
const BININT: u8 = b'J';
const BININT1: u8 = b'K';
const BININT2: u8 = b'M';
const LONG1: u8 = 0x8a;
const SHORT_BINUNICODE: u8 = 0x8c;
const BINUNICODE: u8 = b'X';
const EMPTY_LIST: u8 = b']';
const EMPTY_DICT: u8 = b'}';
const MARK: u8 = b'(';
const APPENDS: u8 = b'e';
const SETITEMS: u8 = b'u';
const TUPLE2: u8 = 0x86;
const MEMOIZE: u8 = 0x94;
const BINGET: u8 = b'h';
const LONG_BINGET: u8 = b'j';

/// Elements between two marks.
const BATCH: usize = 1000;

/// Reference to a written value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memo(u32);

/// A pickle being written. Each call writes one value, except where noted.
pub(super) struct Pickler<'o> {
    out: &'o mut dyn Write,
    memos: u32,
    texts: HashMap<String, Memo>,
}

impl<'o> Pickler<'o> {
    /// Starts a pickle. Exactly one value must follow before its end.
    pub(super) fn begin(out: &'o mut dyn Write) -> io::Result<Self> {
        out.write_all(&[PROTO, 4])?;
        Ok(Self { out, memos: 0, texts: HashMap::new() })
    }

    pub(super) fn end(self) -> io::Result<()> {
        self.out.write_all(&[STOP])
    }

    pub(super) fn boolean(&mut self, value: bool) -> io::Result<()> {
        self.out.write_all(&[if value { NEWTRUE } else { NEWFALSE }])
    }

    pub(super) fn integer(&mut self, value: u64) -> io::Result<()> {
        if let Ok(value) = u8::try_from(value) {
            return self.out.write_all(&[BININT1, value]);
        }
        if let Ok(value) = u16::try_from(value) {
            self.out.write_all(&[BININT2])?;
            return self.out.write_all(&value.to_le_bytes());
        }
        if let Ok(value) = i32::try_from(value) {
            self.out.write_all(&[BININT])?;
            return self.out.write_all(&value.to_le_bytes());
        }
        // The shortest form that leaves the highest bit, the sign, clear.
        let length = (64 - value.leading_zeros() as usize) / 8 + 1;
        self.out.write_all(&[LONG1, length as u8])?;
        self.out.write_all(&u128::from(value).to_le_bytes()[..length])
    }

    /// Writes a text that is likely to repeat: keys, names.
    pub(super) fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(memo) = self.texts.get(text) {
            return self.get(*memo);
        }
        match u8::try_from(text.len()) {
            Ok(length) => self.out.write_all(&[SHORT_BINUNICODE, length])?,
            Err(_) => {
                let length = u32::try_from(text.len()).map_err(|_| io::ErrorKind::InvalidData)?;
                self.out.write_all(&[BINUNICODE])?;
                self.out.write_all(&length.to_le_bytes())?;
            }
        }
        self.out.write_all(text.as_bytes())?;
        let memo = self.memoize()?;
        self.texts.insert(text.to_owned(), memo);
        Ok(())
    }

    /// Makes a pair of the last two values.
    pub(super) fn pair(&mut self) -> io::Result<()> {
        self.out.write_all(&[TUPLE2])
    }

    /// Writes a list; `element` writes each item.
    pub(super) fn list<T>(
        &mut self,
        elements: impl IntoIterator<Item = T>,
        mut element: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.out.write_all(&[EMPTY_LIST])?;
        let mut elements = elements.into_iter().peekable();
        while elements.peek().is_some() {
            self.out.write_all(&[MARK])?;
            for value in elements.by_ref().take(BATCH) {
                element(self, value)?;
            }
            self.out.write_all(&[APPENDS])?;
        }
        Ok(())
    }

    /// Writes a dictionary of a few keys; `entries` writes the key and the value of each.
    pub(super) fn dictionary(&mut self, entries: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.out.write_all(&[EMPTY_DICT, MARK])?;
        entries(self)?;
        self.out.write_all(&[SETITEMS])
    }

    /// Remembers the last value.
    pub(super) fn memoize(&mut self) -> io::Result<Memo> {
        self.out.write_all(&[MEMOIZE])?;
        self.memos += 1;
        Ok(Memo(self.memos - 1))
    }

    /// Writes a reference to a remembered value: the same object.
    pub(super) fn get(&mut self, Memo(index): Memo) -> io::Result<()> {
        match u8::try_from(index) {
            Ok(index) => self.out.write_all(&[BINGET, index]),
            Err(_) => {
                self.out.write_all(&[LONG_BINGET])?;
                self.out.write_all(&index.to_le_bytes())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pickled(write: impl FnOnce(&mut Pickler<'_>) -> io::Result<()>) -> Vec<u8> {
        let mut out = Vec::new();
        let mut pickler = Pickler::begin(&mut out).unwrap();
        write(&mut pickler).unwrap();
        pickler.end().unwrap();
        out
    }

    #[test]
    fn integers_are_as_python_writes_them() {
        let bytes = |value| pickled(|pickler| pickler.integer(value));
        assert_eq!(bytes(255), b"\x80\x04K\xff.");
        assert_eq!(bytes(256), b"\x80\x04M\x00\x01.");
        assert_eq!(bytes(65536), b"\x80\x04J\x00\x00\x01\x00.");
        assert_eq!(bytes(1 << 31), b"\x80\x04\x8a\x05\x00\x00\x00\x80\x00.");
        assert_eq!(bytes(0x7f_ffff_ffff), b"\x80\x04\x8a\x05\xff\xff\xff\xff\x7f.");
        assert_eq!(bytes(u64::MAX), b"\x80\x04\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00.");
    }

    #[test]
    fn texts_are_written_once() {
        let twice = pickled(|pickler| pickler.list(["ab", "ab"], |pickler, text| pickler.text(text)));
        assert_eq!(twice, b"\x80\x04](\x8c\x02ab\x94h\x00e.");
        let long = "x".repeat(256);
        assert!(pickled(|pickler| pickler.text(&long)).starts_with(b"\x80\x04X\x00\x01\x00\x00xxx"));
    }

    #[test]
    fn long_lists_come_in_batches() {
        let list = pickled(|pickler| pickler.list(0..2500, |pickler, _| pickler.integer(0)));
        assert_eq!(list.iter().filter(|byte| **byte == APPENDS).count(), 3);
        assert_eq!(pickled(|pickler| pickler.list(0..0, |pickler, _: i32| pickler.integer(0))), b"\x80\x04].");
    }
}
