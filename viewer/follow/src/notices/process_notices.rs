//! Decides which notices are due after each read of a trace.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memlab_trace::{AccumulationSpan, DeviceView, Model};

use super::notice::{Notice, NoticeKind, NoticedProcess};
use super::options::Options;
use memlab_base::category::category_names;
use memlab_base::findings::{self, Finding};
use memlab_units::format::size;

/// Shortest and longest interval between leak checks, which use at most 1/40 of a core.
const LEAK_INTERVAL: Duration = Duration::from_millis(500);
const MAX_LEAK_INTERVAL: Duration = Duration::from_secs(30);

/// The notices of one process.
pub struct ProcessNotices {
    free_bytes: Option<u64>,
    leak_steps: u64,
    process: Arc<NoticedProcess>,
    /// Bytes in the last notice, by kind and device.
    reported: HashMap<(NoticeKind, i32), u64>,
    looked_for_leaks: Option<Instant>,
    leak_interval: Duration,
    /// True if the model has changed since the last leak check, which was too recent for another.
    owes_leaks: bool,
}

impl ProcessNotices {
    /// Creates the notices of a process without earlier notices.
    pub fn new(options: &Options, process: NoticedProcess) -> Self {
        Self {
            free_bytes: options.notify_free,
            leak_steps: options.notify_leak_steps,
            process: Arc::new(process),
            reported: HashMap::new(),
            looked_for_leaks: None,
            leak_interval: LEAK_INTERVAL,
            owes_leaks: false,
        }
    }

    /// Returns true if a leak check is due, even without further changes.
    pub fn is_overdue(&self) -> bool {
        self.owes_leaks && self.is_time_for_leaks()
    }

    fn is_time_for_leaks(&self) -> bool {
        self.looked_for_leaks.is_none_or(|looked| looked.elapsed() >= self.leak_interval)
    }

    /// Returns the notices that are due.
    ///
    /// `is_over`: the trace is complete.
    pub fn due(&mut self, model: &mut Model, is_over: bool) -> Vec<Notice> {
        model.set_scope(None);
        let devices = model.devices();
        let several = devices.len() > 1;
        let mut notices = Vec::new();
        for device in &devices {
            if !self.was_reported(NoticeKind::OutOfMemory, device)
                && let Some(finding) = findings::out_of_memory(model, device, several)
            {
                notices.push(self.found(NoticeKind::OutOfMemory, model, device, finding));
            }
            notices.extend(self.low_memory(model, device));
        }
        self.owes_leaks = !(is_over || self.is_time_for_leaks());
        if !self.owes_leaks {
            let now = Instant::now();
            notices.extend(devices.iter().filter_map(|device| self.leak(model, device, several)));
            self.leak_interval = (now.elapsed() * 40).clamp(LEAK_INTERVAL, MAX_LEAK_INTERVAL);
            self.looked_for_leaks = Some(Instant::now());
        }
        notices
    }

    /// Checks for growth over enough steps; in a program without an optimizer, over forward passes.
    fn leak(&mut self, model: &Model, device: &DeviceView, several: bool) -> Option<Notice> {
        let steps = model.device_steps(device.index).len();
        let is_long = |span: &AccumulationSpan| match span {
            AccumulationSpan::Steps { from, to }
            | AccumulationSpan::Iterations { from, to }
            | AccumulationSpan::AfterSteps { from, to }
            | AccumulationSpan::Released { from, to, .. } => to - from >= self.leak_steps,
            AccumulationSpan::Passes => steps == 0,
        };
        let growing = findings::growing(model, device, several);
        let mut growing: Vec<Finding> =
            growing.into_iter().filter(|growing| is_long(&growing.span)).map(|growing| growing.finding).collect();
        let bytes = growing.iter().fold(0_u64, |sum, finding| sum.saturating_add(finding.bytes));
        let reported = self.reported.get(&(NoticeKind::Leak, device.index)).copied();
        if growing.is_empty() || reported.is_some_and(|reported| bytes < reported.saturating_mul(2)) {
            return None;
        }
        growing.sort_by_key(|finding| std::cmp::Reverse(finding.bytes));
        let first = growing.swap_remove(0);
        let notice = self.found(NoticeKind::Leak, model, device, first);
        self.reported.insert((NoticeKind::Leak, device.index), bytes);
        Some(notice)
    }

    fn low_memory(&mut self, model: &Model, device: &DeviceView) -> Option<Notice> {
        let free = device.total_bytes.saturating_sub(device.peak_used_bytes);
        let wanted = self.free_bytes.filter(|wanted| device.total_bytes > 0 && free < *wanted)?;
        if self.was_reported(NoticeKind::LowMemory, device) {
            return None;
        }
        let most = model.categories(device.index).into_iter().max_by_key(|view| view.bytes)?;
        let message = format!(
            "Low memory on cuda:{}: {} of {} were free, less than {}; largest category: {} ({}).",
            device.index,
            size(free),
            size(device.total_bytes),
            size(wanted),
            category_names(most.category).0,
            size(most.bytes),
        );
        let next = format!("memlab view {} shows the memory by line and layer.", self.process.trace.display());
        Some(self.notice(NoticeKind::LowMemory, model, device, free, message, next))
    }

    fn was_reported(&self, kind: NoticeKind, device: &DeviceView) -> bool {
        self.reported.contains_key(&(kind, device.index))
    }

    fn found(&mut self, kind: NoticeKind, model: &Model, device: &DeviceView, finding: Finding) -> Notice {
        self.notice(kind, model, device, finding.bytes, finding.what.text(), finding.next)
    }

    fn notice(
        &mut self,
        kind: NoticeKind,
        model: &Model,
        device: &DeviceView,
        bytes: u64,
        message: String,
        next: String,
    ) -> Notice {
        self.reported.insert((kind, device.index), bytes);
        let steps = model.device_steps(device.index).iter().fold(0_u64, |sum, step| sum.saturating_add(step.steps));
        Notice {
            kind,
            process: self.process.clone(),
            device: device.index,
            bytes,
            message,
            next,
            time: model.time(),
            steps,
            allocated_bytes: device.allocated_bytes,
            reserved_bytes: device.reserved_bytes,
            used_bytes: device.used_bytes,
            total_bytes: device.total_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use memlab_trace::record::Header;

    use super::*;

    #[test]
    fn a_look_for_leaks_that_was_too_soon_is_made_up_for() {
        // GIVEN a process that was checked a moment ago
        let process = NoticedProcess { header: Header::default(), trace: "trace.jsonl".into() };
        let mut notices = ProcessNotices::new(&Options::default(), process);
        let mut model = Model::new();
        notices.due(&mut model, false);
        assert!(!notices.is_overdue());
        // WHEN it changes once more before the next leak check is due, and then idles
        notices.leak_interval = Duration::from_secs(3600);
        notices.due(&mut model, false);
        assert!(!notices.is_overdue());
        notices.leak_interval = Duration::ZERO;
        // THEN it is checked once more, and not again
        assert!(notices.is_overdue());
        notices.due(&mut model, false);
        notices.leak_interval = Duration::ZERO;
        assert!(!notices.is_overdue());
    }
}
