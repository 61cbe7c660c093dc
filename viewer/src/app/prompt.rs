//! A line that is typed at the bottom of the screen: a filter, or a moment to go to.

use crossterm::event::KeyCode;

use super::App;
use crate::filter::Filter;
use crate::text;

/// What a line is typed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptKind {
    /// Which rows to show.
    Filter,
    /// Which moment to go to.
    GoTo,
}

/// A line being typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// What for.
    pub kind: PromptKind,
    /// So far.
    pub text: String,
    /// What is wrong with it.
    pub error: Option<String>,
}

const LONGEST: usize = 256;

impl App {
    pub(super) fn ask_for(&mut self, kind: PromptKind) {
        let text = if kind == PromptKind::Filter { self.filter_text.clone() } else { String::new() };
        self.prompt = Some(Prompt { kind, text, error: None });
    }

    pub(super) fn on_prompt_key(&mut self, key: KeyCode) {
        let Some(prompt) = &mut self.prompt else { return };
        match key {
            KeyCode::Esc => {
                if prompt.kind == PromptKind::Filter {
                    self.set_filter("");
                }
                self.prompt = None;
                return;
            }
            KeyCode::Enter => return self.on_prompt_end(),
            KeyCode::Backspace => {
                prompt.text.pop();
            }
            KeyCode::Char(character) if !text::is_unsafe(character) && prompt.text.len() < LONGEST => {
                prompt.text.push(character);
            }
            _ => return,
        }
        // A filter is in force while it is typed, as far as it can be understood.
        if prompt.kind == PromptKind::Filter {
            let text = prompt.text.clone();
            let error = self.set_filter(&text);
            if let Some(prompt) = &mut self.prompt {
                prompt.error = error;
            }
        }
    }

    fn on_prompt_end(&mut self) {
        let Some(mut prompt) = self.prompt.take() else { return };
        let error = match prompt.kind {
            PromptKind::Filter => prompt.error.clone(),
            PromptKind::GoTo if prompt.text.trim().is_empty() => None,
            PromptKind::GoTo => self.go_to(&prompt.text).err(),
        };
        if error.is_some() {
            prompt.error = error;
            self.prompt = Some(prompt);
        }
    }

    /// Puts a filter in force; what is wrong with it, if it cannot be.
    pub fn set_filter(&mut self, text: &str) -> Option<String> {
        match Filter::parse(text) {
            Ok(filter) => {
                self.filter = filter;
                self.filter_text = text.to_owned();
                None
            }
            Err(error) => Some(error),
        }
    }
}
