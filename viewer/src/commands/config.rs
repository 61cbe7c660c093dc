//! `memlab config`: what the dashboard is told to prefer.

use std::io::Write;

use crate::config::Config;
use crate::error::bad_input;

/// Prints the preferences in force, or where their file is.
///
/// # Errors
///
/// If the file is wrong, or there is nowhere to look for one.
pub fn run(path: bool) -> anyhow::Result<()> {
    let text = if path {
        let path = Config::path().ok_or_else(|| bad_input("neither HOME nor XDG_CONFIG_HOME names a folder"))?;
        format!("{}\n", path.display())
    } else {
        Config::read().map_err(bad_input)?.text()
    };
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}
