//! Keys while a line is typed at the bottom of the screen.

use crossterm::event::KeyCode;

use super::prompt::{Prompt, PromptKind};
use super::state::App;
use memlab_base::filter::Filter;
use memlab_base::text;

/// Maximum length of typed text.
const MAX_LENGTH: usize = 256;

impl App {
    pub(super) fn ask_for(&mut self, kind: PromptKind) {
        let text = if kind == PromptKind::Filter { self.context.filter_text.clone() } else { String::new() };
        self.prompt = Some(Prompt { kind, text, error: None });
    }

    pub(super) fn on_prompt_key(&mut self, key: KeyCode) {
        let Some(prompt) = &mut self.prompt else { return };
        match key {
            KeyCode::Esc => {
                if prompt.kind == PromptKind::Filter {
                    self.context.clear_filter();
                }
                self.prompt = None;
                return;
            }
            KeyCode::Enter => return self.on_prompt_end(),
            KeyCode::Backspace => {
                prompt.text.pop();
            }
            KeyCode::Char(character) if !text::is_unsafe(character) && prompt.text.len() < MAX_LENGTH => {
                prompt.text.push(character);
            }
            _ => return,
        }
        // A filter applies while it is typed, as far as it is complete.
        if prompt.kind == PromptKind::Filter {
            let (filter, whole) = Filter::parse_typed(&prompt.text);
            prompt.error = whole.err();
            self.context.filter = filter;
            self.context.filter_text.clone_from(&prompt.text);
        }
    }

    fn on_prompt_end(&mut self) {
        let Some(mut prompt) = self.prompt.take() else { return };
        let error = match prompt.kind {
            PromptKind::Filter => self.context.set_filter(&prompt.text).err(),
            PromptKind::GoTo if prompt.text.trim().is_empty() => None,
            PromptKind::GoTo => self.context.go_to(&prompt.text).err(),
        };
        if error.is_some() {
            prompt.error = error;
            self.prompt = Some(prompt);
        }
    }
}
