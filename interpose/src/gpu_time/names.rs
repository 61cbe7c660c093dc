//! Numbers for kernels and other GPU work, by name.

use hashbrown::HashMap;
use memlab_trace::encode::{self, LineBuffer};

use super::finished_work::WorkKind;
use crate::recorder::Recorder;

/// Maximum number of kernel names; libraries and compilers generate a few thousand.
const MAX_NAMES: usize = 1 << 16;

#[derive(Default)]
pub struct KernelNames {
    numbers: HashMap<Vec<u8>, u32>,
    /// Names that are not in the trace yet.
    unwritten: Vec<(u32, Vec<u8>)>,
}

impl KernelNames {
    /// Returns the number of a kind of work, from 1; 0 once the table is full.
    pub fn number(&mut self, what: WorkKind<'_>) -> u32 {
        let copy;
        let name = match what {
            WorkKind::Kernel(name) => name,
            WorkKind::Copy(from, to) => {
                copy = format!("copy {} to {}", from.name(), to.name());
                copy.as_bytes()
            }
            WorkKind::Fill => b"fill",
        };
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        if self.numbers.len() == MAX_NAMES {
            return 0;
        }
        let number = self.numbers.len() as u32 + 1;
        self.numbers.insert(name.to_vec(), number);
        self.unwritten.push((number, name.to_vec()));
        number
    }

    /// Writes the names that are not in the trace yet.
    pub fn write(&mut self, recorder: &Recorder) {
        for (number, name) in self.unwritten.drain(..) {
            recorder.log.append(encode::kernel(&mut LineBuffer::<4096>::new(), number, &name));
        }
    }
}
