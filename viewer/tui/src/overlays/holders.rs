//! Holders of the memory of a line or layer: of a new search if the program runs, else of the last recorded one.

use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::scrolled_lines::{ScrolledLine, ScrolledLines, ScrolledText};
use crate::context::Context;
use crate::widgets::pane::wrapped;
use memlab_base::query::{HoldersAnswer, HoldersQuery};
use memlab_follow::holders::{SEARCH_TIMEOUT, gave_up, request_search};
use memlab_follow::snapshot::{ProcessSnapshot, Snapshot};
use memlab_report::holders;

/// Reply of a program to the request for a search: the trace time from which it may begin, or the reason for its refusal.
type SearchReply = Arc<OnceLock<Result<u64, String>>>;

/// Holders of the memory of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldersView {
    query: HoldersQuery,
    /// Name of the row.
    row: String,
    /// The program for messages.
    who: String,
    /// `None`: the program has ended, so no search was requested.
    reply: Option<SearchReply>,
    requested: Instant,
    answer: Option<Arc<HoldersAnswer>>,
    /// True once the answer has been drawn.
    is_shown: bool,
    /// Visible part.
    pub(super) scrolled: ScrolledLines,
}

impl HoldersView {
    /// Asks the process for a search if it runs. A separate thread waits for its reply.
    pub fn open(query: HoldersQuery, row: String, who: String, process: &ProcessSnapshot) -> Self {
        let reply = (!process.state.is_over()).then(|| request(process.header.pid, process.header.id.clone()));
        let (requested, scrolled) = (Instant::now(), ScrolledLines::default());
        Self { query, row, who, reply, requested, answer: None, is_shown: false, scrolled }
    }

    /// True if it must be redrawn because the answer is not on the screen yet.
    pub fn is_waiting(&self) -> bool {
        !self.is_shown
    }

    /// Query for the next snapshot; `None`: the answer is here, or the process has not replied yet.
    pub fn query(&self) -> Option<HoldersQuery> {
        let since = match self.reply.as_ref().filter(|_| self.problem().is_none()) {
            Some(reply) => Some(*reply.get()?.as_ref().ok()?),
            None => None,
        };
        self.answer.is_none().then(|| HoldersQuery { since, ..self.query.clone() })
    }

    /// Takes the answer from a snapshot. If the program has ended, the last recorded search answers.
    pub fn on_snapshot(&mut self, snapshot: &Snapshot) {
        let has_ended = |process: &ProcessSnapshot| process.path == self.query.trace && process.state.is_over();
        if snapshot.processes.iter().any(has_ended) {
            self.reply = None;
        }
        let is_its = |answer: &&Arc<HoldersAnswer>| Some(&answer.of) == self.query().as_ref();
        if let Some(answer) = snapshot.holders.as_ref().filter(is_its) {
            self.answer = Some(answer.clone());
        }
    }

    /// Reason why no new search answers.
    fn problem(&self) -> Option<String> {
        match self.reply.as_ref()?.get() {
            _ if self.answer.as_ref().is_some_and(|answer| answer.of.since.is_some()) => None,
            Some(Err(reason)) => Some(reason.clone()),
            _ if self.requested.elapsed() > SEARCH_TIMEOUT => Some(gave_up(&self.who)),
            _ => None,
        }
    }

    /// Draws the overlay over the screen.
    pub fn draw(&mut self, buffer: &mut Buffer, area: Rect, context: &Context) {
        self.is_shown = self.answer.is_some();
        let (problem, title) = (self.problem(), format!("Holders of the memory of {}", self.row));
        let text = |columns: usize| {
            let mut lines = problem.map_or_else(Vec::new, |problem| wrapped(&problem, columns));
            if !lines.is_empty() {
                lines.push(String::new());
            }
            lines.extend(match &self.answer {
                None => vec![format!("Waiting for {} to search its objects, about a second…", self.who)],
                Some(answer) => match &answer.held {
                    Err(reason) => wrapped(reason, columns),
                    Ok(held) => holders::lines(answer.of.device, held, Some(&self.row), &context.file_names(), columns),
                },
            });
            let is_detail = |line: &String| line.starts_with(' ');
            let style = |line: &String| if is_detail(line) { context.theme.text } else { context.theme.key };
            let lines = lines.into_iter().map(|words| ScrolledLine { style: style(&words), words, item: None });
            ScrolledText { title, keys: "", lines: lines.collect() }
        };
        self.scrolled.draw(buffer, area, context, text);
    }
}

/// Asks a process for a search in a thread.
fn request(pid: u32, trace_id: String) -> SearchReply {
    let reply = SearchReply::default();
    let told = reply.clone();
    thread::spawn(move || {
        told.get_or_init(|| {
            let asked = request_search(pid, Some(&trace_id));
            asked.map(|(time, _)| time).map_err(|error| error.to_string())
        });
    });
    reply
}
