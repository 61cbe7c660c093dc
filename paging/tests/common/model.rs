//! Random models: units, their places, and the order of use.

use memlab_paging::{ByteRange, Configuration, WeightRange};
use proptest::prelude::*;

pub const GRAIN: u64 = 64;

/// A model to configure a pipeline with.
#[derive(Clone, Debug)]
pub struct Model {
    /// Bytes per unit.
    pub bytes: Vec<u64>,
    /// Offset in the ring, or `None` for a resident unit.
    pub places: Vec<Option<u64>>,
    pub ring_bytes: u64,
    /// Units per point.
    ///
    /// The key of a point is at its index in `keys`.
    pub points: Vec<Vec<u32>>,
    pub keys: Vec<i64>,
    pub lookahead: Option<usize>,
    /// One or two grains, so that units are copied in pieces, or more than any unit has.
    pub least_piece: u64,
    /// Compute per point, in nanoseconds.
    pub compute: Vec<u64>,
}

impl Model {
    pub fn arena_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    pub fn arena_offset(&self, unit: u32) -> u64 {
        self.bytes[..unit as usize].iter().sum()
    }

    /// Offset of the unit on the device: the ring first, then the resident units.
    pub fn device_offset(&self, unit: u32) -> u64 {
        self.places[unit as usize].unwrap_or_else(|| self.ring_bytes + self.arena_offset(unit))
    }

    pub fn device_bytes(&self) -> u64 {
        self.ring_bytes + self.arena_bytes()
    }

    pub fn overlap(&self, one: u32, other: u32) -> bool {
        let place = |unit: u32| self.places[unit as usize].map(|at| (at, at + self.bytes[unit as usize]));
        match (place(one), place(other)) {
            (Some(one), Some(other)) => one.0 < other.1 && other.0 < one.1,
            _ => false,
        }
    }

    /// Configuration for device memory that starts at `device`.
    ///
    /// Each unit has two ranges.
    pub fn configuration(&self, device: u64) -> Configuration {
        let unit = |unit: u32| {
            let (bytes, half) = (self.bytes[unit as usize], self.bytes[unit as usize] / 2);
            let (offset, to) = (self.arena_offset(unit), device + self.device_offset(unit));
            vec![
                WeightRange { arena: ByteRange::new(offset, half), device_address: to },
                WeightRange { arena: ByteRange::new(offset + half, bytes - half), device_address: to + half },
            ]
        };
        let units = 0..self.bytes.len() as u32;
        Configuration {
            units: units.map(unit).collect(),
            placements: (self.places.iter().zip(&self.bytes))
                .map(|(place, &bytes)| Some(ByteRange::new((*place)?, bytes)))
                .collect(),
            schedule: self.keys.iter().zip(&self.points).map(|(key, units)| (*key, units.clone())).collect(),
            fallback: self.fallback(),
            lookahead: self.lookahead,
            least_piece: self.least_piece,
        }
    }

    /// One key per unit, outside the schedule.
    pub fn fallback(&self) -> Vec<(i64, Vec<u32>)> {
        (0..self.bytes.len() as u32).map(|unit| (1000 + i64::from(unit), vec![unit])).collect()
    }
}

/// Units of a few sizes anywhere in a ring that holds at least the largest, and points that need up to three disjoint units.
pub fn models() -> impl Strategy<Value = Model> {
    (1usize..9, 0u64..12).prop_flat_map(|(count, spare)| {
        let bytes = prop::collection::vec((1u64..6).prop_map(|grains| grains * GRAIN), count);
        bytes.prop_flat_map(move |bytes| {
            let ring_bytes = bytes.iter().max().unwrap() + spare * GRAIN;
            let places: Vec<_> = (bytes.iter())
                .map(|bytes| {
                    let last = (ring_bytes - bytes) / GRAIN;
                    prop_oneof![1 => Just(None), 4 => (0..=last).prop_map(|grain| Some(grain * GRAIN))]
                })
                .collect();
            let point = (prop::collection::vec(0..count as u32, 0..4), 0i64..12, 0u64..500);
            let points = prop::collection::vec(point, 1..14);
            let lookahead = prop_oneof![3 => Just(None), 2 => (0usize..4).prop_map(Some)];
            let least_piece = prop_oneof![Just(GRAIN), Just(2 * GRAIN), Just(u64::MAX)];
            let rest = (lookahead, least_piece);
            (Just(bytes), places, points, rest).prop_map(move |(bytes, places, points, (lookahead, least_piece))| {
                let (keys, compute) = Default::default();
                let mut model =
                    Model { bytes, places, ring_bytes, points: vec![], keys, lookahead, least_piece, compute };
                for (wanted, key, compute) in points {
                    let mut units: Vec<u32> = Vec::new();
                    for unit in wanted {
                        if !units.contains(&unit) && !units.iter().any(|&other| model.overlap(unit, other)) {
                            units.push(unit);
                        }
                    }
                    model.points.push(units);
                    model.keys.push(key);
                    model.compute.push(compute);
                }
                model
            })
        })
    })
}

/// The same models with unique keys, as required for forwards in order.
///
/// Units are copied whole or grain by grain.
pub fn models_in_order() -> impl Strategy<Value = Model> {
    models().prop_map(|mut model| {
        model.keys = (0..model.points.len() as i64).collect();
        if model.least_piece == 2 * GRAIN {
            model.least_piece = GRAIN;
        }
        model
    })
}
