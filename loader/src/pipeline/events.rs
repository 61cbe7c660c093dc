//! A pool of events.

use crate::backend::{Backend, Event};
use crate::error::Result;

/// An event of the pool; [`Events::keep`] and [`Events::drop`] count its users.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Id(u32);

#[derive(Default)]
pub struct Events {
    slots: Vec<(Event, u32)>,
    free: Vec<Id>,
}

impl Events {
    /// Takes an event with one user.
    pub fn take(&mut self, backend: &dyn Backend) -> Result<Id> {
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                let id = Id(self.slots.len() as u32);
                self.slots.push((backend.create_event(false)?, 0));
                id
            }
        };
        self.slots[id.0 as usize].1 = 1;
        Ok(id)
    }

    pub fn event(&self, id: Id) -> Event {
        self.slots[id.0 as usize].0
    }

    /// Adds a user.
    pub fn keep(&mut self, id: Id) {
        self.slots[id.0 as usize].1 += 1;
    }

    /// Removes a user; without users, the event returns to the pool.
    pub fn drop(&mut self, id: Id) {
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
