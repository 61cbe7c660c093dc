//! Synthetic programs for tests.

use memlab_predict::allocator::PoolKey;
use memlab_predict::plan::{Allocation, Event, Recording, Stages};
use memlab_trace::record::Flags;
use memlab_trace::{Category, Model};

pub const MIB: u64 = 1 << 20;

/// Writes recordings event by event.
pub struct Script {
    pub recording: Recording,
}

impl Script {
    pub fn new() -> Script {
        Script {
            recording: Recording {
                device: 0,
                allocations: Vec::new(),
                events: Vec::new(),
                places: vec![PoolKey::default()],
                steps: Vec::new(),
                passes: Vec::new(),
                stages: Stages::default(),
                has_requested_sizes: true,
                ran_out_of_memory: false,
                outside: 0,
                read_backs: Vec::new(),
                model: Model::new(),
            },
        }
    }

    pub fn allocate(&mut self, size: u64) -> u32 {
        let id = self.recording.allocations.len() as u32;
        self.recording.allocations.push(Allocation {
            size,
            place: 0,
            stack: 0,
            layer: 0,
            owner: 0,
            category: Category::Other,
            flags: Flags::default(),
        });
        self.recording.events.push(Event::Allocate(id));
        id
    }

    pub fn free(&mut self, id: u32) {
        self.recording.events.push(Event::Free(id));
    }

    pub fn end_step(&mut self) {
        self.recording.steps.push(self.recording.events.len());
    }
}
