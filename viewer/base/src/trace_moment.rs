//! `FILE@MOMENT`: a trace and a moment of it, as typed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::bad_input;
use crate::moment::NamedMoment;

/// A trace and a moment of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceMoment {
    /// The trace.
    pub path: PathBuf,
    /// The moment.
    pub moment: NamedMoment,
}

impl TraceMoment {
    /// Parses `FILE` or `FILE@MOMENT`. A file whose name equals the whole argument takes precedence.
    ///
    /// # Errors
    ///
    /// If the text after the `@` is not a moment.
    pub fn parse(argument: &Path, moment: NamedMoment) -> anyhow::Result<Self> {
        let whole = Self { path: argument.to_owned(), moment };
        if argument.exists() {
            return Ok(whole);
        }
        // A file name need not be text; a moment is text.
        let bytes = argument.as_os_str().as_bytes();
        let Some(at) = bytes.iter().rposition(|byte| *byte == b'@') else { return Ok(whole) };
        let path = Path::new(OsStr::from_bytes(&bytes[..at]));
        let Ok(text) = std::str::from_utf8(&bytes[at + 1..]) else { return Ok(whole) };
        match text.parse() {
            Ok(moment) => Ok(Self { path: path.to_owned(), moment }),
            Err(_) if !path.exists() => Ok(whole),
            Err(error) => Err(bad_input(format!("{}: {error}", argument.display()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_stands_after_any_name() {
        // GIVEN a trace whose name is not text
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &[u8]| folder.path().join(OsStr::from_bytes(name));
        std::fs::write(at(b"\xff.jsonl"), "").unwrap();
        let parse = |name: &[u8]| TraceMoment::parse(&at(name), NamedMoment::Peak);
        // THEN a moment after it is parsed, and a wrong one is refused
        let named = parse(b"\xff.jsonl@step:3").unwrap();
        assert_eq!((named.path, named.moment), (at(b"\xff.jsonl"), NamedMoment::Step(3)));
        assert!(parse(b"\xff.jsonl@then").is_err());
        // AND an @ in the name of a missing file, or before bytes that are not text, is part of the name
        for name in [b"a@then".as_slice(), b"\xff.jsonl@\xff"] {
            assert_eq!(parse(name).unwrap().path, at(name));
        }
    }
}
