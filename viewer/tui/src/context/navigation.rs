//! Choice of the displayed moment: the latest, the peak, or one given by time, step or out-of-memory error.

use memlab_trace::SeekTarget;

use super::hit_targets::TimeScale;
use super::moment::{ChartWindow, ShownMoment};
use super::state::Context;
use memlab_base::moment;
use memlab_base::moment::NamedMoment;
use memlab_base::query::Cursor;
use memlab_follow::snapshot::{DeviceSnapshot, ProcessSnapshot};
use memlab_units::format;

/// Shortest time in the chart, in nanoseconds: a point is at least some microseconds long.
const MIN_WINDOW_NS: u64 = 1_000_000;

impl Context {
    /// Shows the peak of an ended program, and the present of a running one, unless the user chose a moment.
    pub fn settle_moment(&mut self) {
        if !self.moment_was_chosen {
            self.go_home();
        }
    }

    /// Shows the peak of an ended program, and the present of a running one.
    pub fn go_home(&mut self) {
        let is_over = self.process().is_some_and(|process| process.state.is_over());
        self.show(if is_over { ShownMoment::Peak } else { ShownMoment::Now });
        self.moment_was_chosen = false;
    }

    /// Shows the latest moment or the peak.
    pub fn show(&mut self, moment: ShownMoment) {
        self.cursor = None;
        self.set_moment(moment);
    }

    /// Switches between the latest moment and the peak.
    pub fn toggle_peak(&mut self) {
        self.show(if self.moment == ShownMoment::Peak { ShownMoment::Now } else { ShownMoment::Peak });
    }

    fn set_moment(&mut self, moment: ShownMoment) {
        self.moment = moment;
        self.moment_was_chosen = true;
    }

    /// Chosen moment; `None`: the latest or the peak.
    pub fn cursor(&self) -> Option<&Cursor> {
        self.cursor.as_ref()
    }

    /// Time of the cursor, in nanoseconds since the start of the displayed trace; `None`: the latest or the peak.
    pub fn cursor_time(&self) -> Option<u64> {
        let cursor = self.cursor.as_ref()?;
        let start = self.process()?.header.start_unix_ns;
        Some(cursor.unix_ns.saturating_sub(start))
    }

    /// Puts the cursor at a time of the displayed trace.
    pub fn go_to_time(&mut self, time: u64) {
        let Some(process) = self.process() else { return };
        let time = time.min(process.until(self.now_unix_ns));
        self.cursor = Some(cursor_at(process, SeekTarget::Time(time), time));
        self.set_moment(ShownMoment::Cursor);
    }

    /// Puts the cursor right after an event of the displayed trace.
    ///
    /// Times of different threads are not strictly ordered, so the number of an event is more exact than its time.
    pub fn go_to_event(&mut self, number: u64, time: u64) {
        let Some(process) = self.process() else { return };
        self.cursor = Some(cursor_at(process, SeekTarget::event(number, time), time));
        self.set_moment(ShownMoment::Cursor);
    }

    /// Start and end of the chart, unless it shows the whole run. It moves to include a chosen moment.
    pub fn chart_span(&self) -> Option<(u64, u64)> {
        let end = self.process()?.until(self.now_unix_ns);
        let (centre, length) = match self.window {
            ChartWindow::Run => return None,
            ChartWindow::Last(seconds) => (None, seconds.saturating_mul(1_000_000_000)),
            ChartWindow::Around(centre, length) => (centre, length),
        };
        let latest = end.checked_sub(length)?;
        let start = centre.map_or(latest, |centre| centre.saturating_sub(length / 2).min(latest));
        let start = match self.cursor_time() {
            Some(time) if time < start || time > start.saturating_add(length) => {
                time.saturating_sub(length / 2).min(latest)
            }
            _ => start,
        };
        Some((start, start.saturating_add(length)))
    }

    /// Halves the chart's time around the displayed moment, or doubles it.
    pub fn zoom(&mut self, nearer: bool) {
        let Some(end) = self.process().map(|process| process.until(self.now_unix_ns)) else { return };
        let length = self.chart_span().map_or(end, |(start, end)| end - start);
        let length = if nearer { (length / 2).max(MIN_WINDOW_NS) } else { length.saturating_mul(2) };
        let centre = if self.moment == ShownMoment::Now { None } else { self.moment_time() };
        // Halving and doubling may leave it slightly shorter than the run.
        self.window = if length > end - end / 8 { ChartWindow::Run } else { ChartWindow::Around(centre, length) };
    }

    /// Moves the cursor by columns of the chart, starting from the displayed moment.
    pub fn move_cursor(&mut self, columns: i64) {
        let (Some(process), Some(device)) = (self.process(), self.device()) else { return };
        let end = process.until(self.now_unix_ns);
        let from = match self.moment {
            ShownMoment::Cursor => self.cursor_time().unwrap_or(end),
            ShownMoment::Peak => device.totals.peak_time,
            ShownMoment::Now => end,
        };
        let scale = self.hit_targets.time_scale().unwrap_or_else(|| TimeScale::even(0, 0, (end / 200).max(1), 200));
        self.go_to_time(scale.moved(from, columns));
    }

    /// Puts the cursor at the end of the next step (`forward`) or the previous one.
    pub fn go_to_next_step(&mut self, forward: bool) {
        let (Some(device), Some(now)) = (self.device(), self.moment_time()) else { return };
        let mut steps = device.steps.iter();
        let step =
            if forward { steps.find(|step| step.end_time > now) } else { steps.rev().find(|step| step.end_time < now) };
        match step.map(|step| (step.end_event, step.end_time)) {
            Some((event, time)) => self.go_to_event(event, time),
            None => self.notice = Some(if forward { "no later step" } else { "no earlier step" }.into()),
        }
    }

    /// Puts the cursor at the next out-of-memory error; after the last, at the first.
    ///
    /// # Errors
    ///
    /// If none occurred.
    pub fn go_to_next_oom(&mut self) -> Result<(), String> {
        let now = self.cursor_time();
        let ooms = || self.process().into_iter().flat_map(|process| &process.ooms);
        let next = ooms().find(|oom| now.is_some_and(|now| oom.time > now)).or_else(|| ooms().next());
        let (event, time) = next.map(|oom| (oom.event, oom.time)).ok_or("no out-of-memory error")?;
        self.go_to_event(event, time);
        Ok(())
    }

    /// Puts the cursor at the first out-of-memory error of a device.
    ///
    /// # Errors
    ///
    /// If the snapshot has none.
    pub fn go_to_oom_of(&mut self, device: i32) -> Result<(), String> {
        let mut ooms = self.process().into_iter().flat_map(|process| &process.ooms);
        let oom = ooms.find(|oom| oom.device == device).ok_or("the error is no longer in the trace")?;
        let (event, time) = (oom.event, oom.time);
        self.go_to_event(event, time);
        Ok(())
    }

    /// Puts the cursor at a typed moment: a time, `step 12`, `peak`, `oom`, `end`.
    ///
    /// # Errors
    ///
    /// A message for the user about the mistake.
    pub fn go_to(&mut self, text: &str) -> Result<(), String> {
        let moment = match text.trim().to_lowercase() {
            text if text == "now" => NamedMoment::End,
            text if text == "oom" => return self.go_to_next_oom(),
            // Accepts hasty forms: `step 12` for `step:12`, `12.5` for `12.5s`.
            text if text.starts_with("step ") => text.replacen("step ", "step:", 1).parse()?,
            text if text.parse::<f64>().is_ok() => format!("{text}s").parse()?,
            text => text.parse()?,
        };
        match moment {
            NamedMoment::Peak => self.show(ShownMoment::Peak),
            NamedMoment::End => self.show(ShownMoment::Now),
            NamedMoment::Oom(number) => self.go_to_oom(number)?,
            NamedMoment::Step(number) => self.go_to_step(number)?,
            NamedMoment::Time(time) => {
                let end = self.process().map_or(0, |process| process.until(self.now_unix_ns));
                if time > end {
                    return Err(format!("{moment} is after the end, {}", format::duration(end)));
                }
                self.go_to_time(time);
            }
        }
        Ok(())
    }

    fn go_to_oom(&mut self, number: u64) -> Result<(), String> {
        let Some(process) = self.process() else { return Ok(()) };
        let oom = moment::oom(&process.ooms, process.oom_count, number)?;
        let (event, time) = (oom.event, oom.time);
        self.go_to_event(event, time);
        Ok(())
    }

    fn go_to_step(&mut self, number: u64) -> Result<(), String> {
        let step = moment::step(self.device().map_or(&[], |device| &device.steps), number)?;
        let (event, time) = (step.end_event, step.end_time);
        self.go_to_event(event, time);
        Ok(())
    }

    /// Time of the displayed moment, in nanoseconds since the trace's start.
    pub fn moment_time(&self) -> Option<u64> {
        let (process, device) = (self.process()?, self.device()?);
        Some(match self.moment {
            ShownMoment::Now => process.until(self.now_unix_ns),
            ShownMoment::Peak => device.totals.peak_time,
            ShownMoment::Cursor => self.cursor_time()?,
        })
    }

    /// Latest moment of the displayed process.
    pub fn latest_cursor(&self) -> Option<Cursor> {
        let process = self.process()?;
        Some(cursor_at(process, SeekTarget::Event(process.events_read), process.time))
    }

    /// The peak as a moment to look up.
    pub fn peak_cursor(&self) -> Option<Cursor> {
        let (process, DeviceSnapshot { totals, .. }) = (self.process()?, self.device()?);
        Some(cursor_at(process, SeekTarget::event(totals.peak_event, totals.peak_time), totals.peak_time))
    }
}

fn cursor_at(process: &ProcessSnapshot, at: SeekTarget, time: u64) -> Cursor {
    let unix_ns = process.header.start_unix_ns.saturating_add(time);
    Cursor { trace: process.path.clone(), at, unix_ns }
}
