//! `memlab config`: the preferences of the dashboard.

use std::io::Write;

use clap::Args;

use memlab_base::error::bad_input;
use memlab_base::output;
use memlab_tui::config::Config;

/// Options of `memlab config`.
#[derive(Clone, Copy, Debug, Args)]
pub struct Options {
    /// Print the preferences in force, in the file's format (default).
    #[arg(long)]
    print: bool,
    /// Print the path of the preferences file, even if it does not exist.
    #[arg(long, conflicts_with = "print")]
    path: bool,
}

/// Prints the preferences in force, or the path of their file.
///
/// # Errors
///
/// If the file is invalid, or no folder for it can be determined.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let text = if options.path {
        let path = Config::path().ok_or_else(|| bad_input("neither HOME nor XDG_CONFIG_HOME names a folder"))?;
        format!("{}\n", path.display())
    } else {
        Config::read().map_err(bad_input)?.text()
    };
    Ok(output::stdout().write_all(text.as_bytes())?)
}
