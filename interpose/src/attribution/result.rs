//! Result of attribution, as stored in a trace event.

/// Cause of an event: its stack, layer and flags.
///
/// All zeros if unknown.
#[derive(Clone, Copy, Default)]
pub struct Attribution {
    pub stack: u32,
    pub layer: u32,
    /// Bits of the trace's `flags`.
    pub flags: u32,
}
