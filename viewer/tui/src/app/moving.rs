//! Moves a program's memory to the host and back: requests by key, and their progress.

use super::state::App;
use crate::overlays::{OffloadQuestion, Overlay};
use crate::screen::Screen;
use memlab_base::text;
use memlab_follow::offload::mover::{MemoryLocation, MoveOrder, WatchedProcess};
use memlab_follow::offload::operation;
use memlab_follow::request::UiRequest;
use memlab_follow::snapshot::ProcessSnapshot;
use memlab_protocol::status::{MoveState, OperationKind};

/// Up to this many processes are all asked for the location of their memory.
const MAX_WATCHED_PROCESSES: usize = 16;

fn watched(process: &ProcessSnapshot) -> WatchedProcess {
    WatchedProcess { pid: process.header.pid, trace_id: process.header.id.clone() }
}

/// A process in words: `train.py (pid 42)`.
pub(super) fn who(process: &ProcessSnapshot) -> String {
    let command = text::short_command(&process.header.command);
    // The options matter less here than the name.
    let name = command.split(' ').next().unwrap_or_default();
    format!("{name} (pid {})", process.header.pid)
}

impl App {
    /// Processes to ask for the location of their memory: the running ones or, if there are many, those on the screen.
    pub fn watched(&self) -> Vec<WatchedProcess> {
        let runs = |process: &&ProcessSnapshot| !process.state.is_over();
        let all = &self.latest.processes;
        if all.iter().filter(runs).count() <= MAX_WATCHED_PROCESSES {
            return all.iter().filter(runs).map(watched).collect();
        }
        let front = self.context.process().into_iter();
        let mut seen: Vec<_> =
            front.chain(self.ranks.seen_processes(&self.context)).filter(runs).map(watched).collect();
        seen.dedup();
        seen
    }

    /// The process that the keys act on: the one shown, or the one under the cursor of its table.
    pub fn moved_process(&self) -> Option<&ProcessSnapshot> {
        match self.screen {
            Screen::Ranks => self.ranks.selected_process(&self.context),
            _ => self.context.process(),
        }
    }

    /// `o`: asks for confirmation before offloading.
    pub(super) fn confirm_offload(&mut self) {
        match self.offload_question() {
            Ok(question) => self.overlay = Some(Overlay::Offload(question)),
            Err(why_not) => self.context.notice = Some(why_not),
        }
    }

    fn offload_question(&self) -> Result<OffloadQuestion, String> {
        let (process, about) = self.movable()?;
        let (who, of) = (who(process), watched(process));
        let moving = about.moving.as_ref();
        match moving.map(|moving| moving.state).unwrap_or_default() {
            MoveState::Offloaded | MoveState::Checkpointed => {
                Err(format!("{who} is already offloaded: press r to restore it"))
            }
            _ => {
                let enabled = moving.filter(|moving| moving.enabled);
                let order = MoveOrder { of, who, kind: OperationKind::Offload, by_driver: enabled.is_none() };
                Ok(OffloadQuestion { order, bytes: enabled.map(|moving| moving.device_bytes) })
            }
        }
    }

    /// `r`: restores, without confirmation, because nothing is lost.
    pub(super) fn restore(&mut self) -> Option<UiRequest> {
        match self.restore_order() {
            Ok(order) => Some(UiRequest::Move(order)),
            Err(why_not) => {
                self.context.notice = Some(why_not);
                None
            }
        }
    }

    fn restore_order(&self) -> Result<MoveOrder, String> {
        let (process, about) = self.movable()?;
        let (who, of) = (who(process), watched(process));
        let moving = about.moving.as_ref();
        let state = moving.map(|moving| moving.state).unwrap_or_default();
        if state == MoveState::Resident && moving.is_none_or(|moving| moving.host_bytes == 0) {
            return Err(format!("{who} has nothing in host memory: press o to offload it"));
        }
        Ok(MoveOrder { of, who, kind: OperationKind::Restore, by_driver: state == MoveState::Checkpointed })
    }

    /// The process that the keys act on, if it accepts requests and no memory is moving yet.
    fn movable(&self) -> Result<(&ProcessSnapshot, &MemoryLocation), String> {
        let process = self.moved_process().ok_or("no process yet")?;
        let who = who(process);
        if process.state.is_over() {
            return Err(format!("{who} has ended and holds no GPU memory"));
        }
        let about = self
            .context
            .memory_location(process)
            .ok_or(format!("{who} has not answered yet: try again in a moment"))?;
        if let (None, Some(problem)) = (&about.moving, &about.problem) {
            return Err(problem.clone());
        }
        if about.is_busy() {
            return Err(format!("memory of {who} is already moving: wait until it is done"));
        }
        Ok((process, about))
    }

    /// Message of the footer while memory moves.
    pub(super) fn move_progress(&self, columns: u16) -> Option<String> {
        let process = self.moved_process()?;
        let location = self.context.memory_location(process).filter(|location| location.is_busy())?;
        let moving = match location.by_driver {
            Some(OperationKind::Restore) => {
                return Some("the CUDA driver is restoring the memory…".to_owned());
            }
            Some(_) => return Some("the CUDA driver is offloading the memory…".to_owned()),
            None => location.moving.as_ref()?,
        };
        let bar = usize::from(columns.saturating_sub(60)).clamp(8, 40);
        let running = moving.operation.as_ref().filter(|operation| !operation.phase.is_over())?;
        let arena_bytes = location.moving.as_ref().map_or(0, |moving| moving.arena_bytes);
        Some(operation::progress(running, arena_bytes, bar, self.context.theme.glyphs.unicode))
    }
}
