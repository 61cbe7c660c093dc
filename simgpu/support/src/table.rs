//! Handles and the objects behind them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Returns an unused handle: distinct and never null.
pub fn new_handle() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0x0062_6c61_7300);
    NEXT.fetch_add(64, Ordering::Relaxed)
}

/// Objects by handle.
pub struct Table<T> {
    objects: Mutex<Option<HashMap<usize, T>>>,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table::new()
    }
}

impl<T> Table<T> {
    /// Returns an empty table.
    pub const fn new() -> Table<T> {
        Table { objects: Mutex::new(None) }
    }

    /// Runs `body` on all objects.
    pub fn with<R>(&self, body: impl FnOnce(&mut HashMap<usize, T>) -> R) -> R {
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        body(objects.get_or_insert_default())
    }

    /// Adds an object under a new handle.
    pub fn add(&self, object: T) -> usize {
        let handle = new_handle();
        self.with(|objects| objects.insert(handle, object));
        handle
    }

    /// Removes an object.
    pub fn remove(&self, handle: usize) -> Option<T> {
        self.with(|objects| objects.remove(&handle))
    }

    /// Runs `body` on one object.
    pub fn get<R>(&self, handle: usize, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.with(|objects| objects.get_mut(&handle).map(body))
    }
}
