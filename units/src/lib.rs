//! Sizes, durations and dates, as people type and read them: on the command line, in the environment, in reports and in
//! Python.
//!
//! A size is a number with a unit: `8GiB` is 2³³ bytes, `8GB` is 8·10⁹. Case does not matter. A fraction and a space before
//! the unit are allowed. A number without a unit is refused. So is `8G`, which some tools read as GiB and others as GB.
//!
//! ```
//! assert_eq!(memlab_units::parse_size("8GiB"), Ok(1 << 33));
//! assert_eq!(memlab_units::parse_size("1.5 gb"), Ok(1_500_000_000));
//! assert_eq!(memlab_units::parse_size("8").unwrap_err().to_string(), "8 has no unit; did you mean 8GiB?");
//! assert_eq!(memlab_units::format::size(3 << 29), "1.50 GiB");
//! ```
//!
//! # Layers
//!
//! ```text
//! limits                   sizes by device
//! host_memory              how much memory the host has to spare
//! size, duration           read from text
//! format                   written as text
//! ```

#![warn(missing_docs)]

mod duration;
pub mod format;
mod host_memory;
mod limits;
mod size;

pub use duration::parse_duration;
pub use host_memory::available_host_memory;
pub use limits::{Limit, LimitError, parse_limit, parse_limits};
pub use size::{ParseError, parse_size};
