//! Writes the manual pages of `memlab` and its commands into a folder: `make wheel` puts them into the package.

use std::path::Path;
use std::{env, fs, io};

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

fn main() -> io::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [folder, date] = arguments.as_slice() else {
        return Err(io::Error::other("give the folder for the pages, and their date [2026-11-24]"));
    };
    let mut memlab = memlab_cli::cli::command();
    memlab.build();
    fs::create_dir_all(folder)?;
    write(&memlab, Path::new(folder), date)?;
    let mut commands = memlab.get_subcommands().filter(|command| command.get_name() != "help");
    commands.try_for_each(|command| write(command, Path::new(folder), date))
}

fn write(command: &Command, folder: &Path, date: &str) -> io::Result<()> {
    // `memlab-run` for `memlab run`.
    let name = command.get_display_name().unwrap_or(command.get_name());
    let version = format!("memlab {}", env!("CARGO_PKG_VERSION"));
    let page = Man::new(command.clone()).title(name).date(date).source(version).manual("memlab");
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text)?;
    }
    if let Some(notes) = command.get_after_help() {
        // Keep lines and spaces as they are, because examples are aligned in columns.
        let mut roff = Roff::new();
        roff.control("SH", ["NOTES"]).control("nf", []);
        notes.to_string().lines().for_each(|line| {
            roff.text([roman(line)]);
        });
        roff.control("fi", []).to_writer(&mut text)?;
    }
    fs::write(folder.join(format!("{name}.1")), without_idle_breaks(&String::from_utf8_lossy(&text)))
}

/// Removes line breaks that clap_mangen adds beside paragraph breaks.
///
/// They have no effect and only cause warnings.
fn without_idle_breaks(page: &str) -> String {
    page.replace(".br\n\n.br\n", ".sp\n")
}
