//! Location of the processes' GPU memory: on the devices, or moved to host memory.

use super::state::Context;
use memlab_follow::offload::mover::MemoryLocation;
use memlab_follow::offload::operation;
use memlab_follow::snapshot::ProcessSnapshot;
use memlab_protocol::status::{MoveState, OperationKind};

impl Context {
    /// Known location of a process's memory, while it runs.
    pub fn memory_location(&self, process: &ProcessSnapshot) -> Option<&MemoryLocation> {
        self.memory_locations.get(&process.header.pid).filter(|_| !process.state.is_over())
    }

    /// Location of a process's memory in a few words; `None`: on the devices, or unknown.
    pub fn memory_location_words(&self, process: &ProcessSnapshot) -> Option<String> {
        let location = self.memory_location(process)?;
        match location.by_driver {
            Some(OperationKind::Restore) => Some("restoring".to_owned()),
            Some(_) => Some("checkpointing".to_owned()),
            None => operation::where_it_is(location.moving.as_ref()?),
        }
    }

    /// Location of a process's memory in one word.
    pub fn memory_location_word(&self, process: &ProcessSnapshot) -> Option<&'static str> {
        let location = self.memory_location(process)?;
        match (location.by_driver, location.moving.as_ref().map(|moving| moving.state)) {
            (Some(OperationKind::Restore), _) => Some("restoring"),
            (Some(_), _) => Some("offloading"),
            (None, None | Some(MoveState::Resident | MoveState::Unknown)) => None,
            (None, Some(state)) => Some(state.short()),
        }
    }

    /// True if a process waits for its memory.
    pub fn is_offloaded(&self, process: &ProcessSnapshot) -> bool {
        let moving = self.memory_location(process).and_then(|location| location.moving.as_ref());
        moving.is_some_and(|moving| matches!(moving.state, MoveState::Offloaded | MoveState::Checkpointed))
    }
}
