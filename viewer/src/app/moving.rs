//! Moving a program's memory to the host and back: what the keys ask, and what is known of it.

use crossterm::event::KeyCode;

use super::{App, Overlay, Request, Screen};
use crate::offload::control::{MoveState, OperationKind};
use crate::offload::mover::{MemoryLocation, MoveOrder, MoverUpdate, WatchedProcess};
use crate::offload::operation;
use crate::snapshot::ProcessSnapshot;
use crate::text;

/// Whether to offload a program, with what that means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// What a yes orders.
    pub order: MoveOrder,
    /// How much would go; `None`: not known.
    pub bytes: Option<u64>,
}

fn watched(process: &ProcessSnapshot) -> WatchedProcess {
    WatchedProcess { pid: process.header.pid, trace_id: process.header.id.clone() }
}

/// A process as people call it: `train.py (PID 42)`.
fn who(process: &ProcessSnapshot) -> String {
    let command = text::short_command(&process.header.command);
    // Its options matter less here than its name.
    let name = command.split(' ').next().unwrap_or_default();
    format!("{name} (PID {})", process.header.pid)
}

impl App {
    /// The processes to ask where their memory is: those that run.
    pub fn watched(&self) -> Vec<WatchedProcess> {
        self.latest.processes.iter().filter(|process| !process.state.is_over()).map(watched).collect()
    }

    /// News of where their memory is.
    pub fn on_moves(&mut self, moves: MoverUpdate) {
        self.moves = moves.known;
        for outcome in moves.outcomes {
            match outcome {
                // It is long, and says what to do.
                Err(error) if self.overlay.is_none() && self.prompt.is_none() => {
                    self.overlay = Some(Overlay::Told(error));
                }
                Ok(words) | Err(words) => self.notice = Some(words),
            }
        }
    }

    /// What is known of where a process's memory is, while it runs.
    pub fn whereabouts(&self, process: &ProcessSnapshot) -> Option<&MemoryLocation> {
        self.moves.get(&process.header.pid).filter(|_| !process.state.is_over())
    }

    /// Where a process's memory is, in a few words; `None`: on the devices, or not known.
    pub fn where_it_is(&self, process: &ProcessSnapshot) -> Option<String> {
        let about = self.whereabouts(process)?;
        match about.by_driver {
            Some(OperationKind::Restore) => Some("restoring".to_owned()),
            Some(_) => Some("checkpointing".to_owned()),
            None => operation::where_it_is(about.moving.as_ref()?),
        }
    }

    /// The same in a word.
    pub(super) fn moved_word(&self, process: &ProcessSnapshot) -> Option<&'static str> {
        let about = self.whereabouts(process)?;
        match (about.by_driver, about.moving.as_ref().map(|moving| moving.state)) {
            (Some(OperationKind::Restore), _) => Some("restoring"),
            (Some(_), _) => Some("offloading"),
            (None, None | Some(MoveState::Resident | MoveState::Unknown)) => None,
            (None, Some(state)) => Some(state.short()),
        }
    }

    /// Whether a process waits for its memory.
    pub fn is_away(&self, process: &ProcessSnapshot) -> bool {
        let moving = self.whereabouts(process).and_then(|about| about.moving.as_ref());
        moving.is_some_and(|moving| matches!(moving.state, MoveState::Offloaded | MoveState::Checkpointed))
    }

    /// The process that the keys move: the one shown, or the one under the cursor of its table.
    pub fn moved_process(&self) -> Option<&ProcessSnapshot> {
        if self.screen != Screen::Processes {
            return self.process();
        }
        let item = self.process_items().get(self.processes.selected)?.target;
        let (process, _) = *self.targets().get(item)?;
        self.shown.processes.get(process)
    }

    /// `o`: asks whether to offload.
    pub(super) fn ask_to_offload(&mut self) {
        match self.offload_question() {
            Ok(question) => self.overlay = Some(Overlay::Move(question)),
            Err(why_not) => self.notice = Some(why_not),
        }
    }

    fn offload_question(&self) -> Result<Question, String> {
        let (process, about) = self.movable()?;
        let (who, of) = (who(process), watched(process));
        let moving = about.moving.as_ref();
        match moving.map(|moving| moving.state).unwrap_or_default() {
            MoveState::Offloaded | MoveState::Checkpointed => Err(format!("{who} is offloaded already: r restores it")),
            _ => {
                let enabled = moving.filter(|moving| moving.enabled);
                let order = MoveOrder { of, who, kind: OperationKind::Offload, by_driver: enabled.is_none() };
                Ok(Question { order, bytes: enabled.map(|moving| moving.device_bytes) })
            }
        }
    }

    /// `r`: restores. It does not ask, since nothing is lost.
    pub(super) fn restore(&mut self) -> Option<Request> {
        match self.restore_order() {
            Ok(order) => Some(Request::Move(order)),
            Err(why_not) => {
                self.notice = Some(why_not);
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
            return Err(format!("nothing of {who} is in host memory: o offloads it"));
        }
        Ok(MoveOrder { of, who, kind: OperationKind::Restore, by_driver: state == MoveState::Checkpointed })
    }

    /// The process that the keys move, if it can be asked and nothing moves yet.
    fn movable(&self) -> Result<(&ProcessSnapshot, &MemoryLocation), String> {
        let process = self.moved_process().ok_or("there is no process yet")?;
        let who = who(process);
        if process.state.is_over() {
            return Err(format!("{who} has ended: it has no GPU memory any more"));
        }
        let about = self.whereabouts(process).ok_or(format!("{who} has not answered yet: try again in a moment"))?;
        if let (None, Some(problem)) = (&about.moving, &about.problem) {
            return Err(problem.clone());
        }
        if about.is_busy() {
            return Err(format!("memory of {who} moves already: wait for that to end"));
        }
        Ok((process, about))
    }

    pub(super) fn on_question_key(&mut self, key: KeyCode) -> Option<Request> {
        match key {
            KeyCode::Char('y') => match self.overlay.take() {
                Some(Overlay::Move(question)) => Some(Request::Move(question.order)),
                _ => None,
            },
            KeyCode::Char('n' | 'q' | 'o') | KeyCode::Esc => {
                self.overlay = None;
                None
            }
            _ => None,
        }
    }
}
