//! A line of Python code.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// One line of code. A stack counts at its innermost frame of the best [`CodeOrigin`](super::CodeOrigin).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Line {
    /// The source file, as Python names it.
    pub file: Arc<str>,
    /// The line, from 1; `None` where Python knows none.
    pub line: Option<u32>,
    /// The function's qualified name.
    pub function: Arc<str>,
}
