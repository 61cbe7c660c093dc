//! The columns of the layers.

use std::cmp::Ordering;

use super::item::LayerItem;
use crate::context::ShownMoment;
use crate::size_units::Units;
use crate::widgets::columns::{Column, GPU_TIME_COLUMNS, bytes_text, gpu_time_text};
use memlab_base::text::compare_names;

/// Columns of the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerColumn {
    /// Live bytes at the displayed moment.
    Now,
    /// Live bytes at the device's peak.
    AtPeak,
    /// Part of the displayed moment's bytes that inner layers do not hold.
    Own,
    /// GPU time, and its share of the device's time.
    GpuTime,
    /// Maximum of its parameters.
    Parameters,
    /// Maximum of their gradients.
    Gradients,
    /// Maximum of its optimizer state.
    Optimizer,
    /// Maximum of its activations.
    Activations,
    /// Bytes allocated in forward over the run.
    Forward,
    /// Bytes allocated in backward over the run.
    Backward,
    /// Name.
    Name,
}

impl Column for LayerColumn {
    type Item = LayerItem;

    const ALL: &'static [Self] = &[
        Self::Now,
        Self::AtPeak,
        Self::Own,
        Self::GpuTime,
        Self::Parameters,
        Self::Gradients,
        Self::Optimizer,
        Self::Activations,
        Self::Forward,
        Self::Backward,
        Self::Name,
    ];

    const GPU_TIME: Option<Self> = Some(Self::GpuTime);

    fn title(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::AtPeak => "at peak",
            Self::Own => "own",
            Self::GpuTime => "GPU time",
            Self::Parameters => "params",
            Self::Gradients => "grads",
            Self::Optimizer => "optim",
            Self::Activations => "activ",
            Self::Forward => "Σ forward",
            Self::Backward => "Σ backwd",
            Self::Name => "layer",
        }
    }

    fn columns(self) -> u16 {
        match self {
            Self::GpuTime => GPU_TIME_COLUMNS,
            Self::Name => 0,
            _ => 10,
        }
    }

    fn shown_from(self) -> u16 {
        match self {
            Self::Now | Self::AtPeak | Self::Name => 0,
            Self::GpuTime | Self::Own => 60,
            Self::Parameters | Self::Activations => 72,
            Self::Gradients | Self::Optimizer => 96,
            Self::Forward | Self::Backward => 124,
        }
    }

    fn figure(self, row: &LayerItem) -> Option<f64> {
        match self {
            Self::GpuTime => Some(row.time().map_or(0, |time| time.totals.nanoseconds) as f64),
            _ => self.bytes(row).map(|bytes| bytes as f64),
        }
    }

    fn bar(row: &LayerItem, moment: ShownMoment) -> Option<u64> {
        Some(row.bytes_at(moment))
    }

    fn compare_names(a: &LayerItem, b: &LayerItem) -> Ordering {
        compare_layer_names(a, b)
    }

    fn text(self, row: &LayerItem, units: Units) -> String {
        match (self, row.time()) {
            (Self::GpuTime, Some(time)) => gpu_time_text(time.totals.nanoseconds, time.device_nanoseconds),
            _ => self.bytes(row).map(|bytes| bytes_text(bytes, units)).unwrap_or_default(),
        }
    }

    fn of_moment(moment: ShownMoment) -> Option<Self> {
        Some(match moment {
            ShownMoment::Now | ShownMoment::Cursor => Self::Now,
            ShownMoment::Peak => Self::AtPeak,
        })
    }
}

impl LayerColumn {
    fn bytes(self, row: &LayerItem) -> Option<u64> {
        let view = row.figures();
        Some(match self {
            Self::Now => view.live_bytes,
            Self::AtPeak => view.live_bytes_at_peak,
            Self::Own => row.own_bytes,
            Self::Parameters => view.parameter_bytes,
            Self::Gradients => view.gradient_bytes,
            Self::Optimizer => view.optimizer_state_bytes,
            Self::Activations => view.activation_bytes,
            Self::Forward => view.forward_bytes,
            Self::Backward => view.backward_bytes,
            Self::GpuTime | Self::Name => return None,
        })
    }
}

/// Order of names, in which `h.2` comes before `h.10`.
pub fn compare_layer_names(a: &LayerItem, b: &LayerItem) -> Ordering {
    a.key.0.cmp(&b.key.0).then_with(|| compare_names(a.key.1.as_deref(), b.key.1.as_deref()))
}
