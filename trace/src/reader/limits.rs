//! Bounds on what is read.

/// Bytes read at once.
pub(super) const BUFFER: usize = 1 << 20;

/// The longest line, in bytes; a longer one is garbled.
pub(super) const LONGEST_LINE: usize = 16 << 20;

/// The most bytes of lines for each byte of a compressed trace. Real traces have between five and twenty, since times and
/// addresses hardly repeat.
pub(super) const MAX_EXPANSION: u64 = 200;
