//! A row of the kernels, or of the copies and fills.

use memlab_trace::WorkTotals;

use memlab_base::filter::{Field, Filterable};
use memlab_base::kernels::KernelTime;

/// A row of either table.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelItem {
    /// The kernel with its time.
    pub kernel: KernelTime,
    /// GPU time of the whole device.
    pub device_nanoseconds: u64,
    /// Speed of the device's link to the host; `None`: not known.
    pub link_bytes_per_second: Option<u64>,
}

impl KernelItem {
    /// Number of calls and total time.
    pub fn totals(&self) -> WorkTotals {
        self.kernel.totals
    }

    /// Average time per call.
    pub fn each_nanoseconds(&self) -> u64 {
        self.totals().nanoseconds / self.totals().calls.max(1)
    }
}

impl Filterable for KernelItem {
    fn texts(&self) -> Vec<&str> {
        vec![&self.kernel.name, &self.kernel.whole_name]
    }

    fn bytes(&self) -> u64 {
        self.totals().bytes
    }

    fn field(&self, field: Field) -> Vec<&str> {
        if field == Field::Kind { vec![self.kernel.kind.as_str()] } else { Vec::new() }
    }
}
