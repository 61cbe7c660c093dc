//! Sizes in bytes, as people type and read them: on the command line, in the environment, in filters and in Python.
//!
//! A size is a number with a unit: `8GiB` is 2³³ bytes, `8GB` is 8·10⁹. Case does not matter, a fraction and a space before
//! the unit are allowed. A number without a unit is refused, and so is `8G`, which some tools read as GiB and others as GB.
//!
//! ```
//! assert_eq!(memlab_sizes::parse("8GiB"), Ok(1 << 33));
//! assert_eq!(memlab_sizes::parse("1.5 gb"), Ok(1_500_000_000));
//! assert_eq!(memlab_sizes::parse("8").unwrap_err().to_string(), "8 has no unit; did you mean 8GiB?");
//! assert_eq!(memlab_sizes::format(3 << 29), "1.50 GiB");
//! ```
//!
//! # Layers
//!
//! ```text
//! limits         sizes by device
//! host_memory    how much memory the host has to spare
//! size           one size
//! ```

#![warn(missing_docs)]

mod host_memory;
mod limits;
mod size;

pub use host_memory::available_host_memory;
pub use limits::{Limit, LimitError, parse_limit, parse_limits};
pub use size::{ParseError, format, parse, three_digits};
