//! The result of planning.

use std::fmt;

use crate::range::ByteRange;

/// Resident units, and the places of the other units in the ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Per unit: true if it stays on the device.
    pub resident: Vec<bool>,
    /// Placement of each unit in the ring; `None` if it is resident.
    pub placements: Vec<Option<ByteRange>>,
    /// Size of the ring.
    pub ring_bytes: u64,
    /// Bytes of the units that stay.
    pub resident_bytes: u64,
    /// Nanoseconds per forward in steady state.
    pub predicted_ns: u64,
    /// Lower bound in nanoseconds: no schedule of these copies is faster.
    pub floor_ns: u64,
    /// Nanoseconds of compute per forward.
    pub compute_ns: u64,
    /// Bytes copied per forward.
    pub streamed_bytes: u64,
}

/// Reason why planning failed.
///
/// The text is for the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PlanError {
    /// The problem is invalid.
    Invalid(String),
    /// The weights do not fit into the allowed bytes.
    TooSmall {
        /// Bytes allowed.
        limit: u64,
        /// Bytes of the smallest layout.
        needed: u64,
        /// Bytes of units that must stay, included in `needed`.
        resident: u64,
        /// Point that needs that much memory, if a single one does.
        point: Option<usize>,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(what) => f.write_str(what),
            Self::TooSmall { limit, needed, resident, point } => {
                write!(
                    f,
                    "the weights need at least {needed} bytes of device memory, and {limit} bytes are allowed: "
                )?;
                match point {
                    Some(point) => write!(f, "point {point} of the forward needs {} bytes at once", needed - resident)?,
                    None => write!(f, "what is needed at once takes {} bytes", needed - resident)?,
                }
                if *resident > 0 {
                    write!(f, ", beside {resident} bytes that must stay on the device")?;
                }
                write!(f, ". Raise the budget, or split the model into smaller units")
            }
        }
    }
}

impl std::error::Error for PlanError {}
