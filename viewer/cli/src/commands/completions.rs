//! `memlab completions`: scripts that let a shell complete memlab's command line.

use std::io::Write;

use clap::{Args, Command, ValueEnum};
use clap_complete::aot::{Shell as Generator, generate};

use memlab_base::output;

/// Help text after the options.
pub const HELP: &str = "\
Examples:
  memlab completions bash > ~/.local/share/bash-completion/completions/memlab
  memlab completions zsh > ~/.zfunc/_memlab            with ~/.zfunc in fpath, before compinit
  memlab completions fish > ~/.config/fish/completions/memlab.fish

The Python package has these files in share/, where shells look for them if it is installed beside them.";

/// Supported shells.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Options of `memlab completions`.
#[derive(Clone, Copy, Debug, Args)]
pub struct Options {
    /// The shell.
    shell: Shell,
}

/// Prints the completion script of a shell for `command`.
///
/// # Errors
///
/// If standard output cannot be written.
pub fn run(options: &Options, command: &mut Command) -> anyhow::Result<()> {
    let generator = match options.shell {
        Shell::Bash => Generator::Bash,
        Shell::Zsh => Generator::Zsh,
        Shell::Fish => Generator::Fish,
    };
    let (name, mut script) = (command.get_name().to_owned(), Vec::new());
    generate(generator, command, name, &mut script);
    Ok(output::stdout().write_all(&script)?)
}
