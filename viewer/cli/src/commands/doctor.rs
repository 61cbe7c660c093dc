//! `memlab doctor`: checks of this machine, with causes and remedies.

use std::io::Write as _;

use clap::Args;
use rustix::system::uname;
use serde_json::json;

use crate::doctor::check::{Check, CheckState};
use crate::doctor::{NO_DRIVER, examine};
use memlab_base::table::aligned;
use memlab_base::text::{Color, Style};
use memlab_base::{json, output, text};

/// Help text after the options.
pub const HELP: &str = "\
ok: it works. warning: programs are recorded, but incompletely, or another feature does not work. cannot: programs \
cannot be recorded here. Exit code: 0 if programs can be recorded, else 1.

Paste the output into bug reports. It contains paths, versions and GPU names, and nothing else about this machine.";

/// Options of `memlab doctor`.
#[derive(Clone, Copy, Debug, Args)]
pub struct Options {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the result of each check.
///
/// # Errors
///
/// If programs cannot be recorded here.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let checks = examine();
    let lacking: Vec<&Check> = checks.iter().filter(|check| check.state == CheckState::Cannot).collect();
    let style = Style::of_output();
    let mut output = output::styled_stdout(style);
    if options.json {
        let version = env!("CARGO_PKG_VERSION");
        let report = json!({ "version": version, "system": system(), "records": lacking.is_empty(), "checks": checks });
        json::write_pretty(&mut output, &report)?;
    } else {
        let text =
            format!("memlab {} on {}\n\n{}", env!("CARGO_PKG_VERSION"), text::clean(&system()), table(&checks, style));
        output.write_all(text.as_bytes())?;
    }
    if lacking.is_empty() {
        return Ok(());
    }
    Err(anyhow::anyhow!("Programs cannot be recorded here: {}", causes(&lacking)))
}

/// Names the checks that make recording impossible, and what to do.
fn causes(lacking: &[&Check]) -> String {
    match lacking {
        [only] if only.found.starts_with(NO_DRIVER) => {
            "no CUDA driver. Use `memlab simulate -- memlab run -- …`, or run on the machine with the GPU.".to_owned()
        }
        _ => {
            let names: Vec<&str> = lacking.iter().map(|check| check.name).collect();
            format!("{}. Follow the advice of each check marked `cannot`.", names.join(", "))
        }
    }
}

/// Name of the operating system and its kernel release.
fn system() -> String {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("Linux").trim_matches('"');
    let kernel = uname();
    format!(
        "{name}, {} {}, {}",
        kernel.sysname().to_string_lossy(),
        kernel.release().to_string_lossy(),
        kernel.machine().to_string_lossy()
    )
}

fn table(checks: &[Check], style: Style) -> String {
    /// Least room for the last column, on any terminal.
    const MIN_ROOM: usize = 40;
    let states = CheckState::Warning.as_str().len();
    let names = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    // Output to a file is not wrapped.
    let room = match style.columns {
        usize::MAX => usize::MAX,
        columns => columns.saturating_sub(states + names + 4).max(MIN_ROOM),
    };
    let mut rows = Vec::new();
    for Check { name, state, found, advice } in checks {
        let color = match state {
            CheckState::Ok => Color::Green,
            CheckState::Warning => Color::Yellow,
            CheckState::Cannot => Color::Red,
        };
        let state = format!("{:<states$}", state.as_str());
        let state = if style.colored { color.paint(&state) } else { state };
        let lines = match room {
            usize::MAX => vec![text::clean(found).into_owned()],
            _ => text::filled(Vec::new(), &text::clean(found), "", room),
        };
        let advised = advice.iter().flat_map(|advice| match room {
            usize::MAX => vec![format!("→ {}", text::clean(advice))],
            _ => text::filled(vec!["→".to_owned()], &text::clean(advice), "  ", room),
        });
        let mut starts = [state, (*name).to_owned()].into_iter();
        for line in lines.into_iter().chain(advised) {
            rows.push(vec![starts.next().unwrap_or_default(), starts.next().unwrap_or_default(), line]);
        }
    }
    aligned(&rows, &[], |_| true).iter().map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_stand_in_a_table_with_what_to_do_below_them() {
        let checks = [
            Check::ok("C library", "glibc 2.36"),
            Check::warning("NVML", "not\u{1b} found", "install it"),
            Check::cannot("CUDA driver", "there is none", "run memlab elsewhere"),
        ];
        insta::assert_snapshot!(table(&checks, Style { columns: usize::MAX, colored: false }), @r"
        ok       C library    glibc 2.36
        warning  NVML         not� found
                              → install it
        cannot   CUDA driver  there is none
                              → run memlab elsewhere
        ");
        // AND on a narrow terminal the last column is wrapped
        let long =
            [Check::warning("NVML", "not found, although there is a driver of NVIDIA", "install the library of it")];
        insta::assert_snapshot!(table(&long, Style { columns: 54, colored: false }), @r"
        warning  NVML  not found, although there is a driver of
                       NVIDIA
                       → install the library of it
        ");
        let [.., driver] = &checks;
        assert_eq!(causes(&[driver]), "CUDA driver. Follow the advice of each check marked `cannot`.");
        let none = Check::cannot("CUDA driver", format!("{NO_DRIVER} (libcuda.so.1: no such file)"), "");
        assert!(causes(&[&none]).starts_with("no CUDA driver. Use `memlab simulate"));
        assert!(
            table(&checks, Style { columns: usize::MAX, colored: true })
                .starts_with("\u{1b}[32mok     \u{1b}[0m  C library")
        );
    }
}
