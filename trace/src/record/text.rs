//! Text of a record.

use std::borrow::Cow;

/// A text of a line, borrowed from it where JSON allows.
pub type Text<'a> = Cow<'a, str>;
