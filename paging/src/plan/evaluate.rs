//! Time and size of one layout.

use super::placement::{Placer, Shape};
use super::problem::Problem;
use super::simulate::Program;
use crate::range::ByteRange;

/// A layout with its time and size.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Choice {
    /// Nanoseconds per forward in steady state.
    pub time_ns: u64,
    /// Bytes of resident units and ring.
    pub bytes: u64,
    /// Shape of the ring.
    pub shape: Shape,
    /// Per unit: true if it stays on the device.
    pub resident: Vec<bool>,
}

/// Simulates layouts of one problem.
pub struct Evaluator<'a> {
    pub problem: &'a Problem,
    pub placer: &'a Placer,
    pub program: Program,
    pub(super) placements: Vec<ByteRange>,
    streamed: Vec<bool>,
    pub evaluations: usize,
}

impl<'a> Evaluator<'a> {
    pub fn new(problem: &'a Problem, placer: &'a Placer) -> Self {
        let (program, placements, streamed) = Default::default();
        Self { problem, placer, program, placements, streamed, evaluations: 0 }
    }

    /// Evaluates a layout.
    ///
    /// Returns `None` if units needed together cannot be placed in such a ring.
    pub fn evaluate(&mut self, resident: &[bool], shape: Shape) -> Option<Choice> {
        self.evaluations += 1;
        self.streamed.clear();
        self.streamed.extend(resident.iter().map(|resident| !resident));
        let ring = self.placer.place(shape, &self.streamed, &mut self.placements)?;
        self.program.compile(&self.problem.unit_bytes, &self.problem.points, &self.placements, &self.problem.bus);
        let host = self.problem.host;
        self.program.stretch(host.forward_ns + host.copy_ns * self.program.copied_units());
        let time_ns = self.program.run().period_ns;
        let bytes = ring + resident_bytes(self.placer, resident);
        Some(Choice { time_ns, bytes, shape, resident: resident.to_vec() })
    }
}

pub fn resident_bytes(placer: &Placer, resident: &[bool]) -> u64 {
    placer.bytes.iter().zip(resident).filter(|&(_, &resident)| resident).map(|(bytes, _)| bytes).sum()
}
