//! The line of a program that stores a name, by a search of its source text.

use hashbrown::HashMap;
use interpose_base::source_file;

/// Methods by which containers grow.
const GROWING: [&str; 9] =
    ["append", "extend", "add", "insert", "put", "setdefault", "update", "appendleft", "put_nowait"];

/// Source files, read once each, and the lines found in them.
#[derive(Default)]
pub struct Sources {
    files: HashMap<String, Vec<String>>,
    /// By file, first line of the function and name: many objects of a class have the same attributes.
    found: HashMap<(String, u32, String), u32>,
}

impl Sources {
    /// Line of a file that stores or fills the variable `name`; 0 if none is found.
    ///
    /// `from`: first line of the function; 0 for the whole file. A line that adds to a container is preferred to one that
    /// assigns.
    pub fn line_of(&mut self, file: &str, from: u32, name: &str) -> u32 {
        if name.is_empty() || file.starts_with('<') {
            return 0;
        }
        let key = (file.to_owned(), from, name.to_owned());
        if let Some(&line) = self.found.get(&key) {
            return line;
        }
        let line = self.searched(file, from, name);
        self.found.insert(key, line);
        line
    }

    fn searched(&mut self, file: &str, from: u32, name: &str) -> u32 {
        let lines = self.files.entry(file.to_owned()).or_insert_with(|| read(file));
        let body = match from {
            0 => 0..lines.len(),
            from => (from as usize).min(lines.len())..end_of_function(lines, from as usize),
        };
        let mut assigned = 0;
        for index in body {
            match stores(&lines[index], name) {
                Some(Stored::Added) => return index as u32 + 1,
                Some(Stored::Assigned) if assigned == 0 => assigned = index as u32 + 1,
                _ => {}
            }
        }
        assigned
    }
}

fn read(file: &str) -> Vec<String> {
    let bytes = source_file::read(file).unwrap_or_default();
    String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()
}

/// Index after the last line of the function that begins at line `first`: the next line that is indented no further.
fn end_of_function(lines: &[String], first: usize) -> usize {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let Some(head) = lines.get(first.saturating_sub(1)) else { return lines.len() };
    let outer = indent(head);
    let mut decorators = head.trim_start().starts_with('@');
    let after = lines.iter().enumerate().skip(first).find(|(_, line)| {
        let text = line.trim_start();
        let is_code = !text.is_empty() && !text.starts_with('#') && !text.starts_with(')');
        if decorators {
            decorators = !text.starts_with("def ") && !text.starts_with("async def ");
            return false;
        }
        is_code && indent(line) <= outer
    });
    after.map_or(lines.len(), |(index, _)| index)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stored {
    Added,
    Assigned,
}

/// Returns the way in which a line stores the variable: `name.append(…)`, `name[…] = …`, `name += …`, `name = …`, `name, other = …`.
fn stores(line: &str, name: &str) -> Option<Stored> {
    let code = line.trim_start();
    if code.starts_with('#') {
        return None;
    }
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    let mut found = None;
    for (at, _) in code.match_indices(name) {
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        if before.chars().next_back().is_some_and(|last| is_word(last) || last == '"' || last == '\'')
            || after.chars().next().is_some_and(is_word)
        {
            continue;
        }
        let rest = after.trim_start();
        if let Some(method) = rest.strip_prefix('.')
            && GROWING
                .iter()
                .any(|growing| method.strip_prefix(growing).is_some_and(|call| call.trim_start().starts_with('(')))
        {
            return Some(Stored::Added);
        }
        if rest.starts_with('[') && assigns(after_brackets(rest)) || rest.starts_with("+=") {
            return Some(Stored::Added);
        }
        let is_target = !before.contains('=') && !before.contains('(');
        let is_unpacked =
            rest.starts_with(',') && rest.split_once('=').is_some_and(|(targets, _)| !targets.contains('('));
        if is_target && (assigns(rest) || is_unpacked)
            || before.trim_end().ends_with(" as")
            || before.starts_with("for ")
        {
            found = Some(Stored::Assigned);
        }
    }
    found
}

fn assigns(rest: &str) -> bool {
    let rest = rest.trim_start();
    let is_annotated = rest.starts_with(':') && rest.split_once('=').is_some();
    (rest.starts_with('=') && !rest.starts_with("==")) || rest.starts_with(":=") || is_annotated
}

fn after_brackets(text: &str) -> &str {
    let mut depth = 0;
    for (at, character) in text.char_indices() {
        match character {
            '[' => depth += 1,
            ']' => {
                depth -= 1;
                if depth == 0 {
                    return &text[at + 1..];
                }
            }
            _ => {}
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_store_a_name() {
        // GIVEN lines and how they store `out`
        for (line, expected) in [
            ("    out.append(loss)", Some(Stored::Added)),
            ("out[key] = value", Some(Stored::Added)),
            ("self.out[self.count] = value", Some(Stored::Added)),
            ("out += [loss]", Some(Stored::Added)),
            ("out = net(x)", Some(Stored::Assigned)),
            ("out, loss = net(x), 1", Some(Stored::Assigned)),
            ("loss, out = net(x)", Some(Stored::Assigned)),
            ("out: list = []", Some(Stored::Assigned)),
            ("except Error as out:", Some(Stored::Assigned)),
            ("if out == 3:", None),
            ("print(out)", None),
            ("layout = 3", None),
            ("output.append(3)", None),
            ("f(out=3)", None),
            ("# out = 3", None),
            ("x = out[3]", None),
        ] {
            // WHEN a line is searched, THEN the result is that
            assert_eq!(stores(line, "out"), expected, "{line}");
        }
    }

    #[test]
    fn the_search_ends_with_the_function() {
        // GIVEN two functions that fill a list of the same name
        let text = "def f():\n    kept = []\n    kept.append(1)\n\ndef g():\n    kept = []\n    if x:\n        kept.append(2)\n";
        let mut sources = Sources::default();
        sources.files.insert("a.py".into(), text.lines().map(str::to_owned).collect());
        // WHEN each is searched, THEN its own line is found, and the whole file gives the first
        assert_eq!(sources.line_of("a.py", 1, "kept"), 3);
        assert_eq!(sources.line_of("a.py", 5, "kept"), 8);
        assert_eq!(sources.line_of("a.py", 0, "kept"), 3);
        assert_eq!(sources.line_of("a.py", 1, "missing"), 0);
    }
}
