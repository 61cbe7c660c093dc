//! Memory of a rank over the time of the job.

use crate::context::Context;
use memlab_follow::snapshot::{DeviceSnapshot, ProcessSnapshot};

/// Time from the first start to the last end, divided into columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobTime {
    /// Start of the first rank: nanoseconds since 1970.
    pub begin: u64,
    /// Nanoseconds until now, or until the last rank ended.
    pub duration: u64,
    /// Number of columns.
    pub columns: u16,
}

impl JobTime {
    /// Time of all displayed processes; `None`: there are none.
    pub fn of(context: &Context, columns: u16) -> Option<Self> {
        let processes = &context.snapshot.processes;
        let begin = processes.iter().map(|process| began(context, process)).min()?;
        let end = processes.iter().map(|process| began(context, process).saturating_add(process.time)).max()?;
        Some(Self { begin, duration: (end - begin).max(1), columns: columns.max(1) })
    }

    /// Column of a moment, in nanoseconds since 1970.
    pub fn column(&self, unix_ns: u64) -> u16 {
        let since = u128::from(unix_ns.saturating_sub(self.begin));
        let column = since * u128::from(self.columns) / (u128::from(self.duration) + 1);
        column.min(u128::from(self.columns) - 1) as u16
    }

    /// Start of a column: nanoseconds after `begin`.
    fn start(&self, column: u16) -> u64 {
        (u128::from(self.duration) * u128::from(column) / u128::from(self.columns)) as u64
    }

    /// Maximum allocated bytes in each column; `None`: before its start or after its end.
    pub fn peaks(&self, context: &Context, process: &ProcessSnapshot, device: &DeviceSnapshot) -> Vec<Option<u64>> {
        let parts = device.strip.len() as u128;
        let began = began(context, process);
        let offset = began.saturating_sub(self.begin);
        let (first, last) = (self.column(began), self.column(began.saturating_add(process.time)));
        let part = |time: u64| {
            let since = u128::from(time.saturating_sub(offset).min(process.time));
            (since * parts / (u128::from(process.time) + 1)) as usize
        };
        let most = |column: u16| {
            if parts == 0 || column < first || column > last {
                return None;
            }
            let (from, to) = (part(self.start(column)), part(self.start(column + 1).saturating_sub(1)));
            device.strip[from..=to.max(from)].iter().copied().max()
        };
        (0..self.columns).map(most).collect()
    }
}

/// Start of a process, by the clock of the first rank's host: nanoseconds since 1970.
pub fn began(context: &Context, process: &ProcessSnapshot) -> u64 {
    let clocks = context.snapshot.job.iter().flat_map(|job| &job.clocks);
    let ahead =
        clocks.filter(|clock| clock.host == process.header.host).map(|clock| clock.ahead_ns).next().unwrap_or(0);
    process.header.start_unix_ns.saturating_add_signed(ahead.saturating_neg())
}

/// Minimum, median and maximum of several ranks by column, over the ranks that run at that time.
pub fn spread(rows_of_peaks: &[Vec<Option<u64>>], columns: u16) -> [Vec<Option<u64>>; 3] {
    let mut rows = [const { Vec::new() }; 3];
    let mut values = Vec::with_capacity(rows_of_peaks.len());
    for column in 0..usize::from(columns) {
        values.clear();
        values.extend(rows_of_peaks.iter().filter_map(|peaks| peaks.get(column).copied().flatten()));
        let middle = values.len().saturating_sub(1) / 2;
        let median = (!values.is_empty()).then(|| *values.select_nth_unstable(middle).1);
        for (row, value) in
            std::iter::zip(&mut rows, [values.iter().min().copied(), median, values.iter().max().copied()])
        {
            row.push(value);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use memlab_trace::record::Header;

    use super::*;
    use memlab_base::theme::{Depth, Palette, Theme};
    use memlab_follow::snapshot::Snapshot;

    fn rank(start_unix_ns: u64, time: u64, strip: Vec<u64>) -> ProcessSnapshot {
        let header = Header { start_unix_ns, ..Header::default() };
        let device = DeviceSnapshot { strip, ..DeviceSnapshot::default() };
        ProcessSnapshot { header, time, devices: vec![device], ..ProcessSnapshot::default() }
    }

    #[test]
    fn ranks_lie_below_each_other_by_the_clock() {
        // GIVEN a rank that runs for 100 ns, and one that runs for the second half of that time
        let mut context = Context::new(Theme::new(Palette::Mono, Depth::Ansi, true));
        let ranks = vec![rank(1000, 100, vec![1, 2, 3, 4]), rank(1050, 50, vec![7, 9])];
        context.snapshot = Arc::new(Snapshot { processes: ranks, ..Snapshot::default() });
        // WHEN drawn in four columns THEN each has its maximum there, and nothing before its start
        let time = JobTime::of(&context, 4).unwrap();
        assert_eq!((time.begin, time.duration), (1000, 100));
        let [first, second] = [0, 1].map(|at| {
            let process = &context.snapshot.processes[at];
            time.peaks(&context, process, &process.devices[0])
        });
        assert_eq!(first, [1, 2, 3, 4].map(Some));
        assert_eq!(second[..1], [None]);
        assert_eq!(second[2..], [Some(7), Some(9)]);
        // AND one column has the overall maximum
        let whole = JobTime { columns: 1, ..time };
        assert_eq!(
            whole.peaks(&context, &context.snapshot.processes[1], &context.snapshot.processes[1].devices[0]),
            [Some(9)]
        );
        // AND the spread covers only running ranks
        let [least, median, most] = spread(&[first, second], 4);
        assert_eq!((least[0], median[0], most[0]), (Some(1), Some(1), Some(1)));
        assert_eq!((least[3], median[3], most[3]), (Some(4), Some(4), Some(9)));
    }

    #[test]
    fn a_rank_that_ends_beyond_the_clock_runs_to_the_end() {
        // GIVEN a trace whose rank starts just before the last moment of the clock, and runs for longer
        let mut context = Context::new(Theme::new(Palette::Mono, Depth::Ansi, true));
        let ranks = vec![rank(u64::MAX - 10, 100, vec![1, 2])];
        context.snapshot = Arc::new(Snapshot { processes: ranks, ..Snapshot::default() });
        let process = &context.snapshot.processes[0];
        // WHEN drawn, THEN no column is empty
        let peaks = JobTime::of(&context, 4).unwrap().peaks(&context, process, &process.devices[0]);
        assert_eq!(peaks, [Some(1); 4]);
    }
}
