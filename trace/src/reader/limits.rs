//! Bounds on what is read.

/// Bytes read at once.
pub(super) const BUFFER_BYTES: usize = 1 << 20;

/// Bytes of a chunk: with the events decoded from it, it stays in a processor's cache.
pub(super) const CHUNK_BYTES: usize = 256 << 10;

/// From this many bytes on, reading and decoding run ahead on a thread of their own.
pub(super) const READ_AHEAD_BYTES: u64 = 4 << 20;

/// The longest line, in bytes; a longer one is garbled.
pub(super) const MAX_LINE_BYTES: usize = 16 << 20;

/// The most bytes of lines for each byte of a compressed trace. Real traces have between five and twenty, since times and
/// addresses hardly repeat.
pub(super) const MAX_EXPANSION: u64 = 200;
