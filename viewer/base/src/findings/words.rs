//! Sentences with emphasized parts, for a terminal or a web page.

/// Part of a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// As it is.
    Plain(String),
    /// Code: a line, a function.
    Code(String),
    /// What matters.
    Strong(String),
}

/// A sentence or two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words(Vec<Word>);

impl Words {
    /// Something that matters, to begin with.
    pub fn strong(text: impl Into<String>) -> Self {
        Self(vec![Word::Strong(text.into())])
    }

    /// With more of it.
    #[must_use]
    pub fn and(mut self, text: impl Into<String>) -> Self {
        self.0.push(Word::Plain(text.into()));
        self
    }

    /// With more that matters.
    #[must_use]
    pub fn and_strong(mut self, text: impl Into<String>) -> Self {
        self.0.push(Word::Strong(text.into()));
        self
    }

    /// With code.
    #[must_use]
    pub fn and_code(mut self, text: impl Into<String>) -> Self {
        self.0.push(Word::Code(text.into()));
        self
    }

    /// Its parts.
    pub fn parts(&self) -> &[Word] {
        &self.0
    }

    /// All of it without emphasis.
    pub fn text(&self) -> String {
        let text = |word: &Word| match word {
            Word::Plain(text) | Word::Code(text) | Word::Strong(text) => text.clone(),
        };
        self.0.iter().map(text).collect()
    }
}
