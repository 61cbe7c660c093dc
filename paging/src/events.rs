//! A pool of events.

use crate::backend::{Backend, Event};
use crate::error::Result;

/// An event of the pool. [`Events::retain`] and [`Events::release`] count its users.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventId(u32);

#[derive(Default)]
pub struct Events {
    slots: Vec<(Event, u32)>,
    free: Vec<EventId>,
}

impl Events {
    /// Returns an event with one user.
    pub fn acquire(&mut self, backend: &dyn Backend) -> Result<EventId> {
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                let id = EventId(self.slots.len() as u32);
                self.slots.push((backend.create_event(false)?, 0));
                id
            }
        };
        self.slots[id.0 as usize].1 = 1;
        Ok(id)
    }

    pub fn event(&self, id: EventId) -> Event {
        self.slots[id.0 as usize].0
    }

    /// Adds a user.
    pub fn retain(&mut self, id: EventId) {
        self.slots[id.0 as usize].1 += 1;
    }

    /// Removes a user.
    ///
    /// An event without users returns to the pool.
    pub fn release(&mut self, id: EventId) {
        let uses = &mut self.slots[id.0 as usize].1;
        *uses -= 1;
        if *uses == 0 {
            self.free.push(id);
        }
    }

    pub fn destroy(&mut self, backend: &dyn Backend) {
        self.free.clear();
        for (event, _) in self.slots.drain(..) {
            backend.destroy_event(event);
        }
    }
}
