//! Text of a record.

use std::borrow::Cow;

/// Text, borrowed from the line where it has no escapes.
pub type Text<'a> = Cow<'a, str>;
