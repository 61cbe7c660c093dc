//! Classes and functions of a Python file, by line.
//!
//! A stack trace contains the plain name of a function (`forward`), while frames of a running program have qualified
//! names (`Block.forward`, `outer.<locals>.inner`). The source text maps a line and a plain name to the qualified name.

/// Definitions of a file.
#[derive(Debug, Default)]
pub struct Definitions {
    /// In the order of their first lines.
    all: Vec<Definition>,
}

#[derive(Debug)]
struct Definition {
    name: String,
    is_function: bool,
    /// The enclosing definition.
    parent: Option<usize>,
    indentation: usize,
    /// Line of `class` or `def`.
    first_line: u32,
    /// Line of the colon before the body.
    colon_line: u32,
    last_line: u32,
}

impl Definitions {
    /// Parses a file and skips invalid Python.
    pub fn parse(source: &str) -> Self {
        let mut definitions = Self::default();
        let mut innermost: Option<usize> = None;
        let mut last_line = 0;
        let mut text = StatementState::default();
        // The definition whose header continues and has no colon yet.
        let mut unfinished: Option<usize> = None;
        for (line, written) in (1..).zip(source.trim_start_matches('\u{feff}').lines()) {
            let code = written.trim_start();
            let header = Header::parse(code).filter(|_| text.quote.is_none());
            let continues = text.continues() && header.is_none();
            if continues {
                text.read(written);
            } else {
                unfinished = None;
                text = StatementState::default();
                text.read(written);
                if code.is_empty() || code.starts_with('#') {
                    continue;
                }
                let indentation = width(&written[..written.len() - code.len()]);
                while let Some(index) = innermost
                    && let Some(around) = definitions.all.get_mut(index)
                    && around.indentation >= indentation
                {
                    around.last_line = last_line;
                    innermost = around.parent;
                }
                if let Some(Header { name, is_function }) = header {
                    unfinished = Some(definitions.all.len());
                    definitions.all.push(Definition {
                        name: name.to_owned(),
                        is_function,
                        parent: innermost,
                        indentation,
                        first_line: line,
                        colon_line: line,
                        last_line: line,
                    });
                    innermost = unfinished;
                }
            }
            if let Some(definition) = unfinished.and_then(|index| definitions.all.get_mut(index)) {
                definition.colon_line = line;
            }
            last_line = line;
        }
        while let Some(around) = innermost.and_then(|index| definitions.all.get_mut(index)) {
            around.last_line = last_line;
            innermost = around.parent;
        }
        definitions
    }

    /// Returns the qualified name of the function around a line, given its plain name.
    ///
    /// Returns `None` if the innermost function has another name, as in a file that changed after the program read it.
    pub fn qualified_name(&self, line: u32, function: &str) -> Option<String> {
        let next = self.all.partition_point(|definition| definition.first_line <= line);
        let mut index = next.checked_sub(1)?;
        loop {
            let definition = &self.all[index];
            if definition.last_line >= line {
                if definition.is_function && definition.name == function {
                    return Some(self.path(index));
                }
                // The enclosing code evaluates defaults, annotations and base classes.
                if line > definition.colon_line {
                    return None;
                }
            }
            index = definition.parent?;
        }
    }

    fn path(&self, innermost: usize) -> String {
        let around = |index: &usize| self.all[*index].parent;
        let mut chain: Vec<usize> = std::iter::successors(Some(innermost), around).collect();
        chain.reverse();
        let mut path = String::new();
        for (position, index) in chain.into_iter().enumerate() {
            let definition = &self.all[index];
            if position > 0 {
                path.push('.');
            }
            path.push_str(&definition.name);
            if definition.is_function && index != innermost {
                path.push_str(".<locals>");
            }
        }
        path
    }
}

/// Start of a definition.
struct Header<'a> {
    name: &'a str,
    is_function: bool,
}

impl<'a> Header<'a> {
    fn parse(code: &'a str) -> Option<Self> {
        let (is_function, rest) = match after_keyword(code, "class") {
            Some(rest) => (false, rest),
            None => (true, after_keyword(after_keyword(code, "async").unwrap_or(code), "def")?),
        };
        let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len());
        // `class` and `def` are keywords, so this cannot be an expression, even if brackets appear to be open.
        (end > 0).then(|| Self { name: &rest[..end], is_function })
    }
}

fn after_keyword<'a>(code: &'a str, keyword: &str) -> Option<&'a str> {
    let rest = code.strip_prefix(keyword)?;
    rest.starts_with([' ', '\t']).then(|| rest.trim_start())
}

/// Returns the indentation width of white space.
fn width(space: &str) -> usize {
    space.chars().fold(0, |width, letter| match letter {
        '\t' => (width / 8 + 1) * 8,
        '\x0c' => 0,
        _ => width + 1,
    })
}

/// Position of the parser within a statement.
#[derive(Default)]
struct StatementState {
    /// Quotes that end the string that continues on the next line.
    quote: Option<&'static str>,
    /// Number of open brackets.
    depth: usize,
    /// The line ended in a backslash.
    is_joined: bool,
}

impl StatementState {
    /// Returns true if the next line belongs to the same statement.
    fn continues(&self) -> bool {
        self.quote.is_some() || self.depth > 0 || self.is_joined
    }

    fn read(&mut self, line: &str) {
        let mut rest = line;
        self.is_joined = false;
        loop {
            if let Some(quote) = self.quote {
                let Some(after) = after_string(rest, quote) else {
                    self.is_joined = rest.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1;
                    if quote.len() == 1 && !self.is_joined {
                        self.quote = None;
                    }
                    return;
                };
                rest = after;
                self.quote = None;
            }
            let Some(at) = rest.find(['\'', '"', '#', '\\', '(', ')', '[', ']', '{', '}']) else { return };
            let special = &rest[at..];
            rest = &special[1..];
            match special.as_bytes()[0] {
                b'#' => return,
                b'\\' => self.is_joined = rest.is_empty(),
                b'(' | b'[' | b'{' => self.depth += 1,
                b')' | b']' | b'}' => self.depth = self.depth.saturating_sub(1),
                _ => {
                    let quote = ["'''", "\"\"\"", "'", "\""].into_iter().find(|quote| special.starts_with(quote));
                    rest = &special[quote.map_or(1, str::len)..];
                    self.quote = quote;
                }
            }
        }
    }
}

/// Returns the text after the end of a string.
fn after_string<'a>(text: &'a str, quote: &str) -> Option<&'a str> {
    let mut rest = text;
    loop {
        let at = rest.find(['\\', quote.chars().next()?])?;
        let special = &rest[at..];
        if let Some(after) = special.strip_prefix(quote) {
            return Some(after);
        }
        let mut letters = special.chars();
        if letters.next() == Some('\\') {
            letters.next();
        }
        rest = letters.as_str();
    }
}
