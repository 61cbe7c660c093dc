//! The units that the user chooses for sizes.

use memlab_units::format;
use serde::Deserialize;

/// Format of sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Units {
    /// The unit that fits each size: KiB, MiB, GiB …
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// MiB for all, to compare the sizes of a column at a glance.
    #[serde(rename = "MiB")]
    Mebibytes,
    /// GiB for all.
    #[serde(rename = "GiB")]
    Gibibytes,
    /// Exact bytes.
    #[serde(rename = "bytes")]
    Bytes,
}

impl Units {
    /// The next unit, in a cycle of four.
    pub fn next(self) -> Self {
        match self {
            Self::Auto => Self::Mebibytes,
            Self::Mebibytes => Self::Gibibytes,
            Self::Gibibytes => Self::Bytes,
            Self::Bytes => Self::Auto,
        }
    }

    /// Name for the footer.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Mebibytes => "MiB",
            Self::Gibibytes => "GiB",
            Self::Bytes => "bytes",
        }
    }

    /// Formats a size in this unit.
    pub fn size(self, bytes: u64) -> String {
        match self {
            Self::Auto => format::size(bytes),
            Self::Mebibytes => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
            Self::Gibibytes => format!("{:.3} GiB", bytes as f64 / f64::from(1 << 30)),
            Self::Bytes => format::grouped(bytes),
        }
    }

    /// Formats the change of a size, with its sign.
    pub fn change(self, change: i64) -> String {
        format::change(change, |bytes| self.size(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_a_unit() {
        assert_eq!(Units::Mebibytes.size(1 << 20), "1.0 MiB");
        assert_eq!(Units::Gibibytes.size(3 << 29), "1.500 GiB");
        assert_eq!(Units::Bytes.size(1_234_567), "1,234,567");
    }
}
