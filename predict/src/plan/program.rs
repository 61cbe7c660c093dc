//! A program at any batch, from more than two recordings.

use crate::allocator::{Card, Settings};

use crate::plan::family::{Family, FamilyError};
use crate::plan::recording::Recording;

/// A batch this many times larger than the recorded ones may behave otherwise, and should be recorded as well.
pub const EXTRAPOLATION_LIMIT: u64 = 8;

/// A batch is foretold if its peaks are, to this part of them.
const TOLERANCE: u64 = 200;

/// Families of one program: what is exact for some batches, and what holds between and beyond them.
pub struct Program {
    /// Recordings at single batches.
    single: Vec<(u64, Family)>,
    /// Pairs of recordings, smaller batches first.
    pairs: Vec<Family>,
    is_uneven: bool,
}

impl Program {
    /// What recordings at several batches say: the two smallest, and then each beyond those before it.
    ///
    /// # Errors
    ///
    /// If there are fewer than two, two batches are equal, or the recordings are not of one program.
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

    /// What two recordings say, or one.
    pub fn new(family: Family) -> Program {
        Program { single: Vec::new(), pairs: vec![family], is_uneven: false }
    }

    /// Adds what holds beyond the largest recorded batch ([`Family::beyond`]).
    pub fn add_beyond(&mut self, family: Family) {
        self.pairs.push(family);
    }

    /// Adds a recording that is right for one batch only.
    pub fn add_single(&mut self, batch: u64, family: Family) {
        self.single.push((batch, family));
    }

    /// Whether the pairs say of a batch what its own recording says, to half a percent.
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

    /// Whether at the largest recorded batch half a percent of the peak grows otherwise than tensors do: in proportion, or not at all.
    pub fn has_irregular_growth(&self) -> bool {
        let family = self.last();
        let settings = Settings::default().for_torch(family.recording.torch_version());
        let peak = family.run(&family.sizes(None), &settings, Card::UNLIMITED).counters.allocated.peak;
        family.irregular_bytes() > peak / TOLERANCE
    }

    /// Notes that the pairs do not foretell other batches, which are recorded themselves.
    pub fn grows_unevenly(&mut self) {
        self.is_uneven = true;
    }

    /// Whether the pairs do not foretell other batches.
    pub fn is_uneven(&self) -> bool {
        self.is_uneven
    }

    /// The family that is nearest to a batch, and what the batch is called in it.
    pub fn at(&self, batch: Option<u64>) -> (&Family, Option<u64>) {
        if let Some((_, family)) = self.single.iter().find(|(single, _)| Some(*single) == batch) {
            return (family, None);
        }
        let reaches = |index: &usize| batch.is_some_and(|batch| self.reaches(*index, batch));
        let nearest = (0..self.pairs.len()).find(reaches).map_or(self.last(), |index| &self.pairs[index]);
        (nearest, batch)
    }

    /// Whether a pair is the one for a batch. Somewhere between two recordings kernels begin to choose as in the larger one: the
    /// smaller ones hold up to half of the way, in powers of two. If they do not change there, but between the smaller ones, it
    /// is the larger ones that hold from the recording that both have.
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

    /// The family of the largest batches.
    pub fn last(&self) -> &Family {
        self.pairs.last().expect("there is one from the start")
    }

    /// Whether a batch is more than [`EXTRAPOLATION_LIMIT`] times the largest that was recorded.
    pub fn is_far(&self, batch: u64) -> bool {
        self.last().recorded_batches().is_some_and(|(_, high)| batch > high.saturating_mul(EXTRAPOLATION_LIMIT))
    }

    /// All batches that were recorded, in order.
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
    /// One.
    One(&'f Family),
    /// Several.
    Several(&'f Program),
}

impl<'f> Families<'f> {
    /// The family for a batch, and what the batch is called in it.
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
