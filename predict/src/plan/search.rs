//! The smallest card, the largest batch.

use std::ops::RangeInclusive;

use crate::allocator::{Card, Counters, Placement, ROUND_LARGE, Settings};

use crate::plan::family::Family;
use crate::plan::program::{Families, Program};
use crate::plan::steady::Planned;

/// Settings of the allocator that may take less than a program's: PyTorch's own, and what people recommend.
pub const SETTINGS_TO_TRY: [&str; 3] = ["", "expandable_segments:True", "max_split_size_mb:256"];

/// These, and what is advised where lengths change.
pub const SETTINGS_FOR_LENGTHS: [&str; 4] =
    [SETTINGS_TO_TRY[0], SETTINGS_TO_TRY[1], SETTINGS_TO_TRY[2], "roundup_power2_divisions:8"];

/// In how many orders of addresses segments are tried where these decide.
const PLACEMENTS: u64 = 32;

/// No batch is larger.
const MAX_BATCH: u64 = 1 << 30;

/// What a batch size needs.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// On a card that is never full.
    pub planned: Planned,
    /// The least memory of a card, in bytes, with which it runs: PyTorch gives back what is unused when the card is full.
    pub least: u64,
}

/// Searches among batches and cards, with settings of the allocator.
pub struct Search<'f> {
    families: Families<'f>,
    settings: Settings,
    /// Bytes of the card that are not the allocator's: the context, libraries, other processes.
    outside: u64,
}

impl<'f> Search<'f> {
    /// `outside`: bytes of the card that are not the allocator's.
    pub fn new(families: impl Into<Families<'f>>, settings: Settings, outside: u64) -> Search<'f> {
        Search { families: families.into(), settings, outside }
    }

    /// Among the batches of a program, of which `context` are the bytes of the card that are neither the allocator's nor the
    /// libraries'.
    pub fn of_program(program: &'f Program, settings: Settings, context: u64) -> Search<'f> {
        let recording = &program.last().recording;
        Search::new(program, settings.for_torch(recording.torch_version()), context + recording.outside)
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether a batch size runs on a card with `memory` bytes.
    pub fn fits(&self, batch: Option<u64>, memory: u64) -> bool {
        let (family, batch) = self.families.at(batch);
        self.fits_with(family, &family.sizes(batch), memory)
    }

    /// What a batch size needs.
    pub fn needs(&self, batch: Option<u64>) -> Needs {
        let (family, batch) = self.families.at(batch);
        let sizes = family.sizes(batch);
        let planned = family.run(&sizes, &self.settings, Card::UNLIMITED);
        let least = least_card(&planned.counters, self.outside, |memory| self.fits_with(family, &sizes, memory));
        Needs { planned, least }
    }

    /// The least and the most that a batch size may reserve on a card that is never full, in bytes. Up to PyTorch 2.12 it depends
    /// on the addresses of segments, which nobody knows before a driver has given them: some orders are tried.
    pub fn reserved_range(&self, batch: Option<u64>, planned: &Planned) -> RangeInclusive<u64> {
        let reserved = planned.counters.reserved.peak;
        if !self.settings.depends_on_addresses() {
            return reserved..=reserved;
        }
        let (family, batch) = self.families.at(batch);
        let sizes = family.sizes(batch);
        let tried = (0..PLACEMENTS).map(|seed| {
            let card = Card::UNLIMITED.placing(Placement::Scattered(seed));
            family.run(&sizes, &self.settings, card).counters.reserved.peak
        });
        tried.fold(reserved..=reserved, |range, reserved| *range.start().min(&reserved)..=*range.end().max(&reserved))
    }

    /// The largest batch that runs on a card with `memory` bytes; 0 if none does.
    pub fn largest_batch(&self, memory: u64) -> u64 {
        let fits = |batch: u64| self.fits(Some(batch), memory);
        if !fits(1) {
            return 0;
        }
        let (mut fitting, mut failing) = (1, 2);
        while failing < MAX_BATCH && fits(failing) {
            (fitting, failing) = (failing, failing * 2);
        }
        while failing - fitting > 1 {
            let middle = fitting.midpoint(failing);
            if fits(middle) {
                fitting = middle;
            } else {
                failing = middle;
            }
        }
        fitting
    }

    fn fits_with(&self, family: &Family, sizes: &[u64], memory: u64) -> bool {
        let available = memory.saturating_sub(self.outside);
        family.run(sizes, &self.settings, Card::with_available(memory, available)).fits()
    }
}

/// The least memory of a card on which something runs that has these counters on one that is never full.
pub(crate) fn least_card(counters: &Counters, outside: u64, fits: impl Fn(u64) -> bool) -> u64 {
    // Between: what is allocated at the peak, and what is reserved without pressure.
    let (mut too_little, mut enough) = (counters.allocated.peak / ROUND_LARGE, counters.reserved.peak / ROUND_LARGE);
    if fits(too_little * ROUND_LARGE + outside) {
        enough = too_little;
    }
    while enough.saturating_sub(too_little) > 1 {
        let middle = too_little.midpoint(enough);
        if fits(middle * ROUND_LARGE + outside) {
            enough = middle;
        } else {
            too_little = middle;
        }
    }
    enough * ROUND_LARGE + outside
}
