//! A validated configuration: the copies of each unit, its placement, and the order of use.

use std::collections::HashMap;

use super::configuration::{Configuration, Unit, WeightRange};
use crate::arena::Arena;
use crate::backend::Transfer;
use crate::error::{Error, Result};
use crate::range::ByteRange;

/// The units that a thread needs, for a point of the schedule or for a key outside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    Point(usize),
    Fallback(usize),
}

#[derive(Default)]
pub struct CheckedConfiguration {
    transfers: Vec<Vec<Transfer>>,
    divisible: Vec<bool>,
    bytes: Vec<u64>,
    placements: Vec<Option<ByteRange>>,
    points: Vec<Vec<Unit>>,
    keys: Vec<i64>,
    /// Key → its points, ascending.
    points_of: HashMap<i64, Vec<usize>>,
    fallbacks: Vec<Vec<Unit>>,
    fallback_of: HashMap<i64, usize>,
    /// Units of the ring in order of use, point by point.
    uses: Vec<Unit>,
    /// Point → index of its first use, plus one entry for the end.
    first_use: Vec<usize>,
    /// Unit → its uses, ascending.
    uses_of: Vec<Vec<usize>>,
    pub lookahead: Option<usize>,
    pub least_piece: u64,
}

impl CheckedConfiguration {
    pub fn new(arena: &Arena, configuration: Configuration) -> Result<Self> {
        let Configuration { units, placements, schedule, fallback, lookahead, least_piece } = configuration;
        if units.len() != placements.len() {
            return Err(Error::Invalid(format!("{} units have {} places", units.len(), placements.len())));
        }
        let transfers = (units.iter().enumerate())
            .map(|(unit, ranges)| transfers(arena, ranges).map_err(|error| of_unit(unit, &error)))
            .collect::<Result<Vec<_>>>()?;
        // A unit without bytes overlaps nothing.
        let placements: Vec<_> =
            placements.into_iter().map(|placement| placement.filter(|placement| placement.length > 0)).collect();
        for (unit, placement) in placements.iter().enumerate() {
            if placement.is_some_and(|placement| placement.checked_end().is_none()) {
                return Err(of_unit(unit, &"its place ends beyond all addresses"));
            }
        }
        let mut configuration = Self {
            divisible: transfers.iter().map(|all| are_adjacent(all)).collect(),
            bytes: transfers.iter().map(|all| all.iter().map(|transfer| transfer.bytes).sum()).collect(),
            uses_of: vec![Vec::new(); transfers.len()],
            transfers,
            placements,
            first_use: vec![0],
            lookahead,
            least_piece,
            ..Self::default()
        };
        for (point, (key, units)) in schedule.into_iter().enumerate() {
            let units = configuration
                .checked(units)
                .map_err(|why| Error::Invalid(format!("point {point} (key {key}): {why}")))?;
            for &unit in units.iter().filter(|&&unit| configuration.placements[unit as usize].is_some()) {
                configuration.uses_of[unit as usize].push(configuration.uses.len());
                configuration.uses.push(unit);
            }
            configuration.first_use.push(configuration.uses.len());
            configuration.points_of.entry(key).or_default().push(point);
            configuration.keys.push(key);
            configuration.points.push(units);
        }
        for (key, units) in fallback {
            let units = configuration.checked(units).map_err(|why| Error::Invalid(format!("key {key}: {why}")))?;
            configuration.fallback_of.insert(key, configuration.fallbacks.len());
            configuration.fallbacks.push(units);
        }
        Ok(configuration)
    }

    /// Removes duplicates from units that are needed at the same time.
    ///
    /// The units must exist and must not overlap.
    fn checked(&self, mut units: Vec<Unit>) -> std::result::Result<Vec<Unit>, String> {
        let mut seen = vec![false; self.transfers.len()];
        if let Some(unknown) = units.iter().find(|&&unit| unit as usize >= seen.len()) {
            return Err(format!("there is no unit {unknown}, only {}", seen.len()));
        }
        units.retain(|&unit| !std::mem::replace(&mut seen[unit as usize], true));
        let mut placements: Vec<(ByteRange, Unit)> =
            units.iter().filter_map(|&unit| Some((self.placement(unit)?, unit))).collect();
        placements.sort_unstable_by_key(|(placement, _)| placement.start);
        match placements.windows(2).find(|pair| pair[0].0.overlaps(pair[1].0)) {
            Some(pair) => Err(format!(
                "units {} and {} are needed at the same time and overlap in the ring",
                pair[0].1, pair[1].1
            )),
            None => Ok(units),
        }
    }

    pub fn units(&self) -> usize {
        self.transfers.len()
    }

    pub fn points(&self) -> usize {
        self.points.len()
    }

    pub fn transfers(&self, unit: Unit) -> &[Transfer] {
        &self.transfers[unit as usize]
    }

    /// Returns the parts of a unit's copies that lie in `range`, a range of the ring inside the unit's placement.
    pub fn transfers_in(&self, unit: Unit, range: ByteRange) -> impl Iterator<Item = Transfer> {
        let placement = self.placement(unit).unwrap_or_default();
        let transfers = self.transfers(unit);
        let is_divisible = self.is_divisible(unit);
        let first = transfers.first().map_or(0, |transfer| transfer.to);
        transfers.iter().filter_map(move |&Transfer { from, to, bytes }| {
            if !is_divisible {
                return Some(Transfer { from, to, bytes });
            }
            let there = ByteRange::new(placement.start + (to - first), bytes);
            let part = there.intersection(range);
            let behind = part.start - there.start;
            (part.length > 0).then_some(Transfer { from: from + behind, to: to + behind, bytes: part.length })
        })
    }

    /// Returns true if a unit's copies are contiguous on the device, like its placement.
    ///
    /// Such a unit can be copied in pieces.
    pub fn is_divisible(&self, unit: Unit) -> bool {
        self.divisible[unit as usize]
    }

    pub fn bytes(&self, unit: Unit) -> u64 {
        self.bytes[unit as usize]
    }

    /// Placement in the ring; `None` for a unit that stays.
    pub fn placement(&self, unit: Unit) -> Option<ByteRange> {
        self.placements[unit as usize]
    }

    /// Returns true if two units have bytes of the ring in common.
    pub fn overlap(&self, one: Unit, other: Unit) -> bool {
        matches!((self.placement(one), self.placement(other)), (Some(one), Some(other)) if one.overlaps(other))
    }

    pub fn needed(&self, target: Target) -> &[Unit] {
        match target {
            Target::Point(point) => &self.points[point],
            Target::Fallback(index) => &self.fallbacks[index],
        }
    }

    /// Returns the target of `key` for a thread at `position` (`None`: before the first point), and true if it is the
    /// expected target.
    pub fn find(&self, position: Option<usize>, key: i64) -> Option<(Target, bool)> {
        let points = self.points();
        let next = position.map_or(0, |position| if position + 1 < points { position + 1 } else { 0 });
        if self.keys.get(next) == Some(&key) {
            return Some((Target::Point(next), true));
        }
        if let Some(all) = self.points_of.get(&key) {
            let later = all.partition_point(|&point| point < next);
            return Some((Target::Point(*all.get(later).unwrap_or(&all[0])), false));
        }
        self.fallback_of.get(&key).map(|&index| (Target::Fallback(index), false))
    }

    /// Units of the ring in the order of the schedule.
    pub fn uses(&self) -> &[Unit] {
        &self.uses
    }

    /// Index of the first use after `position`.
    pub fn uses_after(&self, position: Option<usize>) -> usize {
        position.map_or(0, |point| self.first_use[point + 1])
    }

    /// Number of uses at a point.
    pub fn uses_at(&self, point: usize) -> usize {
        self.first_use[point + 1] - self.first_use[point]
    }

    /// Number of uses between `from` and the next use of the unit, in the circular schedule; `usize::MAX` if it has none.
    pub fn distance(&self, unit: Unit, from: usize) -> usize {
        let uses = &self.uses_of[unit as usize];
        let later = uses.partition_point(|&index| index < from);
        match (uses.get(later), uses.first()) {
            (Some(index), _) => index - from,
            (None, Some(first)) => first + self.uses.len() - from,
            (None, None) => usize::MAX,
        }
    }
}

fn are_adjacent(transfers: &[Transfer]) -> bool {
    transfers.windows(2).all(|pair| pair[0].to + pair[0].bytes == pair[1].to)
}

fn of_unit(unit: usize, why: &dyn std::fmt::Display) -> Error {
    Error::Invalid(format!("unit {unit}: {why}"))
}

/// Returns the copies of some ranges.
///
/// Ranges that are adjacent on both sides become one copy. No copy crosses a border between pinned chunks.
pub(super) fn transfers(arena: &Arena, ranges: &[WeightRange]) -> Result<Vec<Transfer>> {
    let mut merged: Vec<WeightRange> = Vec::new();
    for &range in ranges {
        let WeightRange { arena: ByteRange { start, length }, device_address } = range;
        arena.at(start, length)?;
        if device_address.checked_add(length).is_none() {
            return Err(Error::Invalid(format!(
                "{length} bytes at device address {device_address:#x} end beyond all addresses"
            )));
        }
        match merged.last_mut() {
            Some(last) if last.arena.end() == start && last.device_address + last.arena.length == device_address => {
                last.arena.length += length;
            }
            _ if length == 0 => {}
            _ => merged.push(range),
        }
    }
    let mut transfers = Vec::with_capacity(merged.len());
    for WeightRange { arena: range, device_address } in merged {
        let mut copied = 0;
        while copied < range.length {
            let offset = range.start + copied;
            let bytes = (range.length - copied).min(arena.chunk_end(offset) - offset);
            transfers.push(Transfer { from: arena.address() + offset, to: device_address + copied, bytes });
            copied += bytes;
        }
    }
    Ok(transfers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::PIN_GRANULE;

    #[test]
    fn copies_are_merged_where_they_can_be_and_end_at_borders() {
        // GIVEN ranges: the first two are contiguous on both sides, the third only in the arena, and the last crosses a
        // border between chunks
        let arena = Arena::new(3 * PIN_GRANULE).unwrap();
        let ranges =
            [(0, 5000, 512), (512, 5512, 512), (1024, 9000, 512), (7, 1, 0), (PIN_GRANULE - 1024, 20_000, 4096)].map(
                |(start, device_address, length)| WeightRange { arena: ByteRange { start, length }, device_address },
            );
        // WHEN they are turned into copies
        let copies = transfers(&arena, &ranges).unwrap();
        // THEN contiguous ranges become one copy, and the range across the border becomes two
        let seen: Vec<_> = copies.iter().map(|copy| (copy.from - arena.address(), copy.to, copy.bytes)).collect();
        let expected =
            [(0, 5000, 1024), (1024, 9000, 512), (PIN_GRANULE - 1024, 20_000, 1024), (PIN_GRANULE, 21_024, 3072)];
        assert_eq!(seen, expected);
    }

    fn configuration(schedule: &[(i64, &[Unit])], fallback: &[(i64, &[Unit])]) -> Result<CheckedConfiguration> {
        let arena = Arena::new(4096).unwrap();
        CheckedConfiguration::new(
            &arena,
            Configuration {
                units: (0..4)
                    .map(|unit| {
                        vec![WeightRange { arena: ByteRange::new(unit * 512, 512), device_address: unit * 512 }]
                    })
                    .collect(),
                placements: vec![
                    Some(ByteRange::new(0, 512)),
                    Some(ByteRange::new(512, 512)),
                    Some(ByteRange::new(0, 1024)),
                    None,
                ],
                schedule: schedule.iter().map(|(key, units)| (*key, units.to_vec())).collect(),
                fallback: fallback.iter().map(|(key, units)| (*key, units.to_vec())).collect(),
                lookahead: None,
                least_piece: 0,
            },
        )
    }

    #[test]
    fn a_piece_has_the_parts_of_the_copies_that_are_in_it() {
        // GIVEN a unit of three copies that are contiguous on the device and apart in the arena, and a unit whose copies are
        // apart on the device too
        let arena = Arena::new(8192).unwrap();
        let unit = |ranges: &[(u64, u64, u64)]| {
            let range = |&(start, device_address, length): &_| WeightRange {
                arena: ByteRange { start, length },
                device_address,
            };
            ranges.iter().map(range).collect::<Vec<_>>()
        };
        let adjacent = unit(&[(4096, 10_000, 512), (0, 10_512, 1024), (2048, 11_536, 512)]);
        let apart = unit(&[(4096, 10_000, 512), (0, 20_000, 1024)]);
        let configuration = CheckedConfiguration::new(
            &arena,
            Configuration {
                units: vec![adjacent, apart],
                placements: vec![Some(ByteRange::new(512, 2048)), Some(ByteRange::new(0, 1536))],
                ..Configuration::default()
            },
        )
        .unwrap();
        let seen = |unit, start, length| -> Vec<_> {
            let transfers = configuration.transfers_in(unit, ByteRange { start, length });
            transfers.map(|copy| (copy.from - arena.address(), copy.to, copy.bytes)).collect()
        };
        // WHEN a part of the first unit is copied, THEN that part of each copy is copied
        assert_eq!(seen(0, 512, 2048), [(4096, 10_000, 512), (0, 10_512, 1024), (2048, 11_536, 512)]);
        assert_eq!(seen(0, 768, 1024), [(4352, 10_256, 256), (0, 10_512, 768)]);
        assert_eq!(seen(0, 1280, 256), [(256, 10_768, 256)]);
        // THEN the second unit can only be copied as a whole
        assert!(configuration.is_divisible(0) && !configuration.is_divisible(1));
        assert_eq!(seen(1, 0, 1536), [(4096, 10_000, 512), (0, 20_000, 1024)]);
    }

    #[test]
    fn keys_are_looked_up_in_order() {
        use Target::{Fallback, Point};
        // GIVEN a schedule that contains one key twice, and a key outside it
        let configuration = configuration(&[(10, &[0]), (11, &[1, 3]), (10, &[2]), (12, &[3])], &[(99, &[3])]).unwrap();
        // WHEN keys come in order, THEN they are expected, also around the end
        assert_eq!(configuration.find(None, 10), Some((Point(0), true)));
        assert_eq!(configuration.find(Some(1), 10), Some((Point(2), true)));
        assert_eq!(configuration.find(Some(3), 10), Some((Point(0), true)));
        // WHEN they do not, THEN the target is the next point with that key, around the end if necessary
        assert_eq!(configuration.find(None, 12), Some((Point(3), false)));
        assert_eq!(configuration.find(Some(0), 10), Some((Point(2), false)));
        assert_eq!(configuration.find(Some(2), 10), Some((Point(0), false)));
        // WHEN the schedule lacks the key, THEN it is a fallback key, or unknown
        assert_eq!(configuration.find(Some(2), 99), Some((Fallback(0), false)));
        assert_eq!(configuration.find(Some(2), 98), None);
        // THEN the uses omit units that stay, and distances wrap around
        assert_eq!(configuration.uses(), [0, 1, 2]);
        assert_eq!(
            [configuration.distance(0, 0), configuration.distance(0, 1), configuration.distance(3, 0)],
            [0, 2, usize::MAX]
        );
    }

    #[test]
    fn overlapping_and_unknown_units_are_errors() {
        // GIVEN points that need overlapping or unknown units, WHEN they are checked, THEN the error names them.
        let error = configuration(&[(10, &[0, 2])], &[]).err().unwrap().to_string();
        assert_eq!(error, "point 0 (key 10): units 0 and 2 are needed at the same time and overlap in the ring");
        let error = configuration(&[], &[(7, &[4])]).err().unwrap().to_string();
        assert_eq!(error, "key 7: there is no unit 4, only 4");
    }
}
