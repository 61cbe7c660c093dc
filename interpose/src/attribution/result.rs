//! The result of attribution, as an event in the trace holds it.

/// The cause of an event: its stack, layer and flags. All zeros if nothing is known.
#[derive(Clone, Copy, Default)]
pub struct Attribution {
    pub stack: u32,
    pub layer: u32,
    /// Bits of the trace's `flags`.
    pub flags: u32,
}
