//! A program at any batch, from more than two recordings.

use crate::allocator::{Card, Settings};

use crate::plan::family::{Family, FamilyError};
use crate::plan::recording::Recording;

/// Beyond this multiple of the recorded batches, a program may behave differently, so larger batches need a recording.
pub const EXTRAPOLATION_LIMIT: u64 = 8;

/// A forecast holds if its peaks differ by at most 1/N.
const TOLERANCE: u64 = 200;

/// Families of one program: exact ones for single batches, and pairs for batches between and beyond them.
pub struct Program {
    /// Recordings at single batches.
    single: Vec<(u64, Family)>,
    /// Pairs of recordings, smaller batches first.
    pairs: Vec<Family>,
    is_uneven: bool,
}

impl Program {
    /// Builds families from recordings at several batches: one of the two smallest, and one for each larger recording.
    ///
    /// # Errors
    ///
    /// If fewer than two recordings are given, two batches are equal, or the recordings are not of one program.
    pub fn of_recordings(mut recordings: Vec<(u64, Recording)>) -> Result<Program, FamilyError> {
        recordings.sort_by_key(|(batch, _)| *batch);
        let mut recordings = recordings.into_iter();
        let (Some(low), Some(high)) = (recordings.next(), recordings.next()) else {
            return Err(FamilyError::TooFew);
        };
        let mut program = Program::new(Family::of_two(low, high)?);
        for larger in recordings {
            program.add_beyond(program.last().beyond(larger)?);
        }
        Ok(program)
    }

    /// Returns the program of a family of one or two recordings.
    pub fn new(family: Family) -> Program {
        Program { single: Vec::new(), pairs: vec![family], is_uneven: false }
    }

    /// Adds a family for batches beyond the largest recorded one ([`Family::beyond`]).
    pub fn add_beyond(&mut self, family: Family) {
        self.pairs.push(family);
    }

    /// Adds a recording that holds for one batch only.
    pub fn add_single(&mut self, batch: u64, family: Family) {
        self.single.push((batch, family));
    }

    /// Returns true if the pairs' forecast of a batch matches its recording to half a percent.
    pub fn predicts(&self, recorded: &Family, batch: u64) -> bool {
        let settings = Settings::default().for_torch(recorded.recording.torch_version());
        let peaks = |family: &Family, batch| {
            let counters = family.run(&family.sizes(batch), &settings, Card::UNLIMITED).counters;
            [counters.allocated.peak, counters.reserved.peak]
        };
        let (nearest, in_it) = self.at(Some(batch));
        std::iter::zip(peaks(nearest, in_it), peaks(recorded, None))
            .all(|(foretold, real)| foretold.abs_diff(real) <= real / TOLERANCE)
    }

    /// Returns true if more than half a percent of the peak at the largest recorded batch is neither constant nor
    /// proportional to the batch.
    pub fn has_irregular_growth(&self) -> bool {
        let family = self.last();
        let settings = Settings::default().for_torch(family.recording.torch_version());
        let peak = family.run(&family.sizes(None), &settings, Card::UNLIMITED).counters.allocated.peak;
        family.irregular_bytes() > peak / TOLERANCE
    }

    /// Records that the pairs do not predict other batches, which are then recorded individually.
    pub fn grows_unevenly(&mut self) {
        self.is_uneven = true;
    }

    /// Returns true if the pairs do not predict other batches.
    pub fn is_uneven(&self) -> bool {
        self.is_uneven
    }

    /// Returns the family nearest to a batch, and the batch to use in it.
    pub fn at(&self, batch: Option<u64>) -> (&Family, Option<u64>) {
        if let Some((_, family)) = self.single.iter().find(|(single, _)| Some(*single) == batch) {
            return (family, None);
        }
        let reaches = |index: &usize| batch.is_some_and(|batch| self.reaches(*index, batch));
        let nearest = (0..self.pairs.len()).find(reaches).map_or(self.last(), |index| &self.pairs[index]);
        (nearest, batch)
    }

    /// Returns true if a pair applies to a batch.
    ///
    /// Between two recordings, kernel selection changes from that of the smaller batch to that of the larger. The
    /// smaller pair applies up to half of the way, in powers of two. If growth changes between the smaller recordings
    /// instead, the larger pair applies from the recording that both share.
    fn reaches(&self, index: usize, batch: u64) -> bool {
        let (pair, next) = (&self.pairs[index], self.pairs.get(index + 1));
        let Some((_, high)) = pair.recorded_batches() else { return false };
        let Some((next, (_, further))) = next.and_then(|next| Some((next, next.recorded_batches()?))) else {
            return false;
        };
        if !pair.is_same_order && next.is_same_order {
            return batch <= high;
        }
        u128::from(batch).pow(2) <= u128::from(high) * u128::from(further)
    }

    /// Returns the family of the largest batches.
    pub fn last(&self) -> &Family {
        self.pairs.last().expect("there is one from the start")
    }

    /// Returns true if a batch exceeds [`EXTRAPOLATION_LIMIT`] times the largest recorded one.
    pub fn is_far(&self, batch: u64) -> bool {
        self.last().recorded_batches().is_some_and(|(_, high)| batch > high.saturating_mul(EXTRAPOLATION_LIMIT))
    }

    /// Returns all recorded batches, in order.
    pub fn recorded_batches(&self) -> Vec<u64> {
        let pairs = self.pairs.iter().filter_map(Family::recorded_batches).flat_map(|(low, high)| [low, high]);
        let mut batches: Vec<u64> = self.single.iter().map(|(batch, _)| *batch).chain(pairs).collect();
        batches.sort_unstable();
        batches.dedup();
        batches
    }
}

/// One family, or several.
#[derive(Clone, Copy)]
pub enum Families<'f> {
    /// One family.
    One(&'f Family),
    /// Several families.
    Several(&'f Program),
}

impl<'f> Families<'f> {
    /// Returns the family for a batch, and the batch to use in it.
    pub fn at(self, batch: Option<u64>) -> (&'f Family, Option<u64>) {
        match self {
            Self::One(family) => (family, batch),
            Self::Several(program) => program.at(batch),
        }
    }
}

impl<'f> From<&'f Family> for Families<'f> {
    fn from(family: &'f Family) -> Self {
        Self::One(family)
    }
}

impl<'f> From<&'f Program> for Families<'f> {
    fn from(program: &'f Program) -> Self {
        Self::Several(program)
    }
}
