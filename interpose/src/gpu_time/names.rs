//! Numbers of what ran, by its name.

use hashbrown::HashMap;
use memlab_trace::encode::{self, LineBuffer};

use super::finished_work::WorkKind;
use crate::recorder::Recorder;

/// The most names of kernels; libraries and compilers make some thousands.
const MAX_NAMES: usize = 1 << 16;

#[derive(Default)]
pub struct KernelNames {
    numbers: HashMap<Vec<u8>, u32>,
    /// Those that the trace does not know yet.
    unwritten: Vec<(u32, Vec<u8>)>,
}

impl KernelNames {
    /// The number of what ran, from 1; 0 if there are too many.
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

    /// Writes those that the trace does not know yet.
    pub fn write(&mut self, recorder: &Recorder) {
        for (number, name) in self.unwritten.drain(..) {
            recorder.log.append(encode::kernel(&mut LineBuffer::<4096>::new(), number, &name));
        }
    }
}
