//! A history in bounded space: time bins of equal width. The width doubles when the bins become too many.

/// The initial width of a bin: 2^12 ns, 4 µs.
const FIRST_WIDTH_LOG2: u32 = 12;

/// Contents of one bin.
pub(crate) trait TimeBin {
    /// Returns the start of the bin.
    fn time(&self) -> u64;

    fn set_time(&mut self, time: u64);

    /// Merges the next bin into this one.
    fn join(&mut self, later: &Self);
}

/// At most `MAX_BINS` bins (a power of two), and at least half of `MIN_BINS` if space is short.
#[derive(Clone)]
pub(crate) struct TimeBins<S, const MAX_BINS: u64, const MIN_BINS: usize> {
    pub(crate) origin: u64,
    pub(crate) width_log2: u32,
    pub(crate) list: Vec<S>,
}

impl<S, const MAX_BINS: u64, const MIN_BINS: usize> Default for TimeBins<S, MAX_BINS, MIN_BINS> {
    fn default() -> Self {
        Self { origin: 0, width_log2: FIRST_WIDTH_LOG2, list: Vec::new() }
    }
}

impl<S: TimeBin, const MAX_BINS: u64, const MIN_BINS: usize> TimeBins<S, MAX_BINS, MIN_BINS> {
    /// Width at which `MAX_BINS` bins cover all times.
    const MAX_WIDTH_LOG2: u32 = u64::BITS - MAX_BINS.ilog2();

    /// Returns the bin of `time`, if it is the latest one. Events that are late by microseconds count there too.
    #[inline]
    pub(crate) fn open(&mut self, time: u64) -> Option<&mut S> {
        let width_log2 = self.width_log2;
        self.list.last_mut().filter(|last| time.saturating_sub(last.time()) >> width_log2 == 0)
    }

    /// Returns the start of a new bin for `time`; `None`: the latest bin covers it after widening.
    pub(crate) fn next(&mut self, time: u64) -> Option<u64> {
        if self.list.is_empty() {
            self.origin = time;
        }
        while time.saturating_sub(self.origin) >> self.width_log2 >= MAX_BINS && self.width_log2 < Self::MAX_WIDTH_LOG2
        {
            self.widen();
        }
        let begin = self.begin_of(time);
        self.list.last().is_none_or(|last| last.time() < begin).then_some(begin)
    }

    pub(crate) fn begin_of(&self, time: u64) -> u64 {
        let index = time.saturating_sub(self.origin) >> self.width_log2;
        self.origin.saturating_add(index << self.width_log2)
    }

    /// Halves the number of bins. Returns false if only a few exist.
    pub(crate) fn shorten(&mut self) -> bool {
        let is_long = self.list.len() > MIN_BINS && self.width_log2 < Self::MAX_WIDTH_LOG2;
        if is_long {
            self.widen();
        }
        is_long
    }

    /// Doubles the width and merges bins.
    fn widen(&mut self) {
        self.width_log2 += 1;
        let mut list = std::mem::take(&mut self.list);
        for stretch in &mut list {
            stretch.set_time(self.begin_of(stretch.time()));
        }
        list.dedup_by(|later, earlier| {
            let is_same = later.time() == earlier.time();
            if is_same {
                earlier.join(later);
            }
            is_same
        });
        self.list = list;
    }

    /// Restores the scale from a keyframe.
    pub(crate) fn restore_scale(&mut self, origin: u64, width_log2: u32) {
        self.origin = origin;
        self.width_log2 = width_log2.clamp(FIRST_WIDTH_LOG2, Self::MAX_WIDTH_LOG2);
    }

    /// Restores the next bin of a keyframe; `None` if the keyframe has too many.
    pub(crate) fn restore(&mut self, stretch: S) -> Option<()> {
        let fits = self.list.len() as u64 <= MAX_BINS;
        fits.then(|| self.list.push(stretch))
    }
}
