//! Names of files created in a folder, including files that are gone again.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};

/// Watches one folder.
pub struct CreatedNames {
    events: OwnedFd,
    names: BTreeSet<String>,
}

impl CreatedNames {
    /// Starts watching; `None` if the system has no watch left.
    pub fn watch(folder: &Path) -> Option<Self> {
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        inotify::add_watch(&events, folder, WatchFlags::CREATE | WatchFlags::ONLYDIR).ok()?;
        Some(Self { events, names: BTreeSet::new() })
    }

    /// Keeps the new names for which `is_wanted` is true, and returns all kept names.
    pub fn read(&mut self, is_wanted: impl Fn(&str) -> bool) -> &BTreeSet<String> {
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut events = Reader::new(&self.events, &mut buffer);
        // An error means that no more events are pending.
        while let Ok(event) = events.next() {
            let name = event.file_name().and_then(|name| name.to_str().ok());
            self.names.extend(name.filter(|name| is_wanted(name)).map(str::to_owned));
        }
        &self.names
    }
}
