//! GPU work by readable names.

use std::borrow::Cow;

use cpp_demangle::{DemangleOptions, Symbol};
use memlab_trace::{KernelView, WorkTotals};

/// Meaning of a kernel name in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kernel<'n> {
    /// A kernel, by its full C++ name, or by its recorded name if that is not C++.
    Named(Cow<'n, str>),
    /// A copy, from one kind of memory to another.
    Copy(&'n str, &'n str),
    /// A fill.
    Fill,
}

/// Kind of GPU work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelKind {
    Kernel,
    Copy,
    Fill,
}

impl KernelKind {
    /// Name in reports and filters.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Copy => "copy",
            Self::Fill => "fill",
        }
    }
}

impl<'n> Kernel<'n> {
    pub fn of(name: &'n str) -> Self {
        if name == "fill" {
            return Self::Fill;
        }
        if let Some((from, to)) = name.strip_prefix("copy ").and_then(|ends| ends.split_once(" to ")) {
            return Self::Copy(from, to);
        }
        let options = DemangleOptions::new().no_params().no_return_type();
        let demangled = Symbol::new(name).ok().and_then(|symbol| symbol.demangle_with_options(&options).ok());
        Self::Named(demangled.map_or(Cow::Borrowed(name), Cow::Owned))
    }
}

/// True if a copy between these kinds of memory uses the device's link to the host.
fn crosses_link(from: &str, to: &str) -> bool {
    let is_host = |kind: &str| matches!(kind, "pageable" | "pinned");
    let is_device = |kind: &str| kind == "device";
    is_host(from) && is_device(to) || is_device(from) && is_host(to)
}

/// Time of a kernel, a kind of copy, or all fills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTime {
    /// Kind of work.
    pub kind: KernelKind,
    /// Short name; for a copy, its direction.
    pub name: String,
    /// Full name.
    pub whole_name: String,
    /// True for a copy over the device's link to the host.
    pub crosses_link: bool,
    /// Count, time and bytes.
    pub totals: WorkTotals,
}

impl KernelTime {
    /// Adds readable names to a view.
    pub fn new(view: &KernelView) -> Self {
        Self::named(&view.name, view.totals)
    }

    /// Work recorded under a name, with readable names.
    pub fn named(recorded_name: &str, totals: WorkTotals) -> Self {
        let recorded = Kernel::of(recorded_name);
        let crosses_link = matches!(recorded, Kernel::Copy(from, to) if crosses_link(from, to));
        let (kind, name, whole_name) = match recorded {
            Kernel::Named(whole) => (KernelKind::Kernel, short(&whole), whole.into_owned()),
            Kernel::Copy(from, to) => (KernelKind::Copy, format!("{from} to {to}"), recorded_name.to_owned()),
            Kernel::Fill => (KernelKind::Fill, "fill".to_owned(), "fill".to_owned()),
        };
        Self { kind, name, whole_name, crosses_link, totals }
    }

    /// Speed of a copy or fill, in bytes per nanosecond, which equals gigabytes per second.
    pub fn gigabytes_per_second(&self) -> f64 {
        self.totals.bytes as f64 / self.totals.nanoseconds.max(1) as f64
    }

    /// Share of the link's speed, from 0 to 1, if the link is known and used.
    pub fn share_of_link(&self, link_bytes_per_second: Option<u64>) -> Option<f64> {
        let link = link_bytes_per_second.filter(|_| self.crosses_link)?;
        Some(self.gigabytes_per_second() * 1e9 / link as f64)
    }
}

/// Shortens a kernel's name: removes template arguments and namespaces, as in `vectorized_elementwise_kernel`.
///
/// PyTorch's kernels differ in a name among the template arguments, such as `GeluCUDAKernelImpl`. The first such name
/// is appended.
pub fn short(name: &str) -> String {
    let (outer, inner) = name.split_once('<').unwrap_or((name, ""));
    let base = outer.trim_start_matches("void ").rsplit("::").next().unwrap_or(outer).trim();
    let says = |word: &&str| {
        ["Functor", "KernelImpl", "Kernel", "Ops", "_kernel_cuda", "kernel_impl"].iter().any(|end| word.ends_with(end))
    };
    let words = inner.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    match words.filter(|word| !word.is_empty()).find(says) {
        Some(word) => format!("{base} ({word})"),
        None => base.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinguished() {
        assert_eq!(Kernel::of("fill"), Kernel::Fill);
        assert_eq!(Kernel::of("copy pinned to device"), Kernel::Copy("pinned", "device"));
        assert_eq!(Kernel::of("triton_poi_fused_gelu_1"), Kernel::Named("triton_poi_fused_gelu_1".into()));
        assert!(crosses_link("pinned", "device") && crosses_link("device", "pageable"));
        assert!(
            !crosses_link("device", "device") && !crosses_link("device", "peer") && !crosses_link("pageable", "pinned")
        );
        let mangled =
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EELb0EEEviT0_T1_";
        let Kernel::Named(name) = Kernel::of(mangled) else { panic!() };
        assert!(name.starts_with("at::native::vectorized_elementwise_kernel<4"), "{name}");
        assert_eq!(short(&name), "vectorized_elementwise_kernel");
        assert_eq!(short("triton_poi_fused_gelu_1"), "triton_poi_fused_gelu_1");
    }
}
