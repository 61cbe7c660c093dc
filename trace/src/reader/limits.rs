//! Limits of reading.

/// Bytes read at once.
pub(super) const BUFFER_BYTES: usize = 1 << 20;

/// Bytes of a chunk. With the events decoded from it, a chunk stays in a processor's cache.
pub(super) const CHUNK_BYTES: usize = 256 << 10;

/// Size from which another thread reads and decodes ahead.
pub(super) const READ_AHEAD_BYTES: u64 = 4 << 20;

/// Maximum length of a line, in bytes; a longer line is garbled.
pub(super) const MAX_LINE_BYTES: usize = 16 << 20;

/// Maximum bytes of lines per byte of a compressed trace.
///
/// Real traces have between five and twenty, since times and addresses hardly repeat.
pub(super) const MAX_EXPANSION: u64 = 200;
