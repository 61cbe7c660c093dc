//! Sentences with emphasized parts, for a terminal or a web page.

/// Part of a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// Plain text.
    Plain(String),
    /// Code: a line, a function.
    Code(String),
    /// Emphasized text.
    Strong(String),
}

/// A sentence or two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words(Vec<Word>);

impl Words {
    /// Starts with emphasized text.
    pub fn strong(text: impl Into<String>) -> Self {
        Self(vec![Word::Strong(text.into())])
    }

    /// Appends plain text.
    #[must_use]
    pub fn and(mut self, text: impl Into<String>) -> Self {
        self.0.push(Word::Plain(text.into()));
        self
    }

    /// Appends emphasized text.
    #[must_use]
    pub fn and_strong(mut self, text: impl Into<String>) -> Self {
        self.0.push(Word::Strong(text.into()));
        self
    }

    /// Appends code.
    #[must_use]
    pub fn and_code(mut self, text: impl Into<String>) -> Self {
        self.0.push(Word::Code(text.into()));
        self
    }

    /// Appends the parts of another sentence.
    #[must_use]
    pub fn join(mut self, other: &Self) -> Self {
        self.0.extend(other.0.iter().cloned());
        self
    }

    /// Parts of the sentence.
    pub fn parts(&self) -> &[Word] {
        &self.0
    }

    /// Text without emphasis.
    pub fn text(&self) -> String {
        let text = |word: &Word| match word {
            Word::Plain(text) | Word::Code(text) | Word::Strong(text) => text.clone(),
        };
        self.0.iter().map(text).collect()
    }
}
