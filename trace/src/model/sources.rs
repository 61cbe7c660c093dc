//! The text of source lines at the time they ran.

use std::collections::BTreeMap;
use std::sync::Arc;

use memlab_format::record;

/// Maximum number of bytes kept of all lines together. The writer keeps less; this bounds hostile traces.
const MAX_TEXT_BYTES: usize = 8 << 20;

/// The text of the source lines that a trace contains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    files: BTreeMap<Arc<str>, BTreeMap<u32, Arc<str>>>,
    bytes: usize,
}

impl Sources {
    pub(crate) fn define(&mut self, source: &record::Source<'_>) {
        /// Overhead of an entry.
        const ENTRY_OVERHEAD_BYTES: usize = 64;
        if !self.files.contains_key(&*source.source) {
            self.bytes += source.source.len() + ENTRY_OVERHEAD_BYTES;
        }
        self.bytes += source.text.len() + ENTRY_OVERHEAD_BYTES;
        if self.bytes <= MAX_TEXT_BYTES {
            let lines = self.files.entry((&*source.source).into()).or_default();
            lines.insert(source.line, (&*source.text).into());
        }
    }

    /// Returns the text of one line.
    pub fn line(&self, file: &str, line: u32) -> Option<&Arc<str>> {
        self.files.get(file)?.get(&line)
    }

    /// Returns the lines of a file, by number.
    pub fn of_file(&self, file: &str) -> impl Iterator<Item = (u32, &Arc<str>)> {
        self.files.get(file).into_iter().flatten().map(|(line, text)| (*line, text))
    }

    /// Returns all lines: file, number and text.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u32, &str)> {
        self.files.iter().flat_map(|(file, lines)| lines.iter().map(move |(line, text)| (&**file, *line, &**text)))
    }

    /// Returns the approximate heap size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.min(MAX_TEXT_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, decode_line};

    #[test]
    fn a_keyframe_keeps_the_text_of_lines() {
        let mut model = Model::new();
        for line in [
            r#"{"memlab":1,"pid":42,"start_unix_ns":0,"command":[]}"#,
            r#"{"source":"/gpt/train.py","line":31,"text":"    x = self.fc(x)  # \u00e4"}"#,
            r#"{"source":"/gpt/train.py","line":7,"text":"import \"torch\""}"#,
        ] {
            model.apply(decode_line(line.as_bytes()).unwrap());
        }
        let mut keyframe = Vec::new();
        model.write_keyframe(&mut keyframe).unwrap();
        let mut restored = Model::new();
        for line in keyframe.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            restored.apply(decode_line(line).unwrap());
        }
        assert_eq!(restored.sources(), model.sources());
        assert_eq!(restored.sources().line("/gpt/train.py", 31).map(|text| &**text), Some("    x = self.fc(x)  # ä"));
        assert_eq!(restored.sources().of_file("/gpt/train.py").map(|(line, _)| line).collect::<Vec<_>>(), [7, 31]);
    }

    #[test]
    fn a_hostile_trace_does_not_fill_the_memory() {
        let mut sources = Sources::default();
        for line in 0..100_000 {
            let text = "x".repeat(1000).into();
            sources.define(&record::Source { source: format!("/{line}.py").into(), line, text });
        }
        assert!(sources.iter().map(|(_, _, text)| text.len()).sum::<usize>() <= MAX_TEXT_BYTES);
    }
}
