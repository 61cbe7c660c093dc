//! Searches for the smallest card and the largest batch.

use std::ops::RangeInclusive;

use crate::allocator::{Card, Counters, Placement, ROUND_LARGE, Settings};

use crate::plan::family::Family;
use crate::plan::program::{Families, Program};
use crate::plan::steady::Planned;

/// Allocator settings that may need less than a program's: PyTorch's defaults, and common recommendations.
pub const SETTINGS_TO_TRY: [&str; 3] = ["", "expandable_segments:True", "max_split_size_mb:256"];

/// The same, and the setting advised for changing lengths.
pub const SETTINGS_FOR_LENGTHS: [&str; 4] =
    [SETTINGS_TO_TRY[0], SETTINGS_TO_TRY[1], SETTINGS_TO_TRY[2], "roundup_power2_divisions:8"];

/// Number of address orders tried where addresses decide.
const PLACEMENTS: u64 = 32;

/// Upper limit of batches.
const MAX_BATCH: u64 = 1 << 30;

/// Memory needs of a batch size.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Plan on a card that is never full.
    pub planned: Planned,
    /// Bytes of the smallest card on which it runs. PyTorch gives back unused memory when the card is full.
    pub least: u64,
}

/// Search over batches and cards, with fixed allocator settings.
pub struct Search<'f> {
    families: Families<'f>,
    settings: Settings,
    /// Bytes of the card outside the allocator: the context, libraries, other processes.
    outside: u64,
}

impl<'f> Search<'f> {
    /// Returns a search; `outside` is the bytes of the card outside the allocator.
    pub fn new(families: impl Into<Families<'f>>, settings: Settings, outside: u64) -> Search<'f> {
        Search { families: families.into(), settings, outside }
    }

    /// Returns a search over the batches of a program; `context` is the bytes of the card outside the allocator and
    /// libraries.
    pub fn of_program(program: &'f Program, settings: Settings, context: u64) -> Search<'f> {
        let recording = &program.last().recording;
        Search::new(program, settings.for_torch(recording.torch_version()), context + recording.outside)
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns true if a batch size runs on a card with `memory` bytes.
    pub fn fits(&self, batch: Option<u64>, memory: u64) -> bool {
        let (family, batch) = self.families.at(batch);
        self.fits_with(family, &family.sizes(batch), memory)
    }

    /// Returns the memory needs of a batch size.
    pub fn needs(&self, batch: Option<u64>) -> Needs {
        let (family, batch) = self.families.at(batch);
        let sizes = family.sizes(batch);
        let planned = family.run(&sizes, &self.settings, Card::UNLIMITED);
        let least = least_card(&planned.counters, self.outside, |memory| self.fits_with(family, &sizes, memory));
        Needs { planned, least }
    }

    /// Returns the least and the most bytes that a batch size may reserve on a card that is never full.
    ///
    /// Up to PyTorch 2.12, reserved bytes depend on the addresses of segments, which only the driver determines. The
    /// search tries several orders.
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

    /// Returns the largest batch that runs on a card with `memory` bytes, or 0.
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

/// Returns the bytes of the smallest card for a run that has these counters on a card that is never full.
pub(crate) fn least_card(counters: &Counters, outside: u64, fits: impl Fn(u64) -> bool) -> u64 {
    // The result lies between the allocated peak and the reserved peak without memory pressure.
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
