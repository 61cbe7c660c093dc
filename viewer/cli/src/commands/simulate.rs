//! `memlab simulate`: runs a command on simulated GPUs, and lists the known cards.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::{Args, ValueHint};
use simgpu_cards::{MODELS, Model};

use memlab_base::arguments::positive_size;
use memlab_base::error::StartError;
use memlab_base::output;
use memlab_base::preload::check_program;
use memlab_base::simulation::Simulation;
use memlab_units::format::size;

/// Help text after the options.
pub const HELP: &str = "\
Examples:
  memlab simulate -- python train.py
  memlab simulate --card a100-40gb -- memlab run -- python train.py
  memlab simulate --card 24GiB --devices 2 -- torchrun --nproc_per_node 2 train.py

Memory behaves as on the card: PyTorch's allocator, library workspaces, out-of-memory errors. Kernels compute nothing, so \
losses are 0 and speeds mean nothing. memlab exits with the exit code of the command.";

/// Options of `memlab simulate`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// The card (such as a100-40gb; `memlab simulate --list` shows all), or the memory size of an H100 (such as 24GiB).
    #[arg(long, value_name = "CARD", value_parser = known_card)]
    card: Option<String>,
    /// Memory of the simulated GPU, in place of that of the card. Without --card: a generic GPU whose CUDA context takes
    /// 256 MiB [default: 8GiB].
    #[arg(long, value_name = "SIZE", value_parser = positive_size)]
    memory: Option<u64>,
    /// Number of GPUs, at most 16.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        env = "SIMGPU_DEVICES",
        hide_env_values = true,
        value_parser = clap::value_parser!(u8).range(1..=16)
    )]
    devices: u8,
    /// List the known cards.
    #[arg(long, conflicts_with = "command")]
    list: bool,
    /// The command and its arguments.
    #[arg(trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments, required_unless_present = "list", value_name = "CMD")]
    command: Vec<OsString>,
}

fn known_card(text: &str) -> Result<String, String> {
    simgpu_cards::find(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Replaces this process with the command, or lists the cards.
///
/// # Errors
///
/// If the simulated libraries are missing, or the command cannot be started.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let Some((program, arguments)) = options.command.split_first() else {
        return Ok(output::stdout().write_all(table().as_bytes())?);
    };
    check_program(program, "simulate")?;
    let mut command = Command::new(program);
    command.args(arguments);
    let Options { card, memory, devices, .. } = options.clone();
    Simulation { card, memory, devices }.apply(&mut command)?;
    let error = command.exec();
    Err(StartError::of(&command, &error).into())
}

/// The cards, one per line.
fn table() -> String {
    let mut table = format!(
        "{:<14}{:<32}{:>12}  {:>10}  {:>15}  {:>10}\n",
        "card", "name in CUDA", "memory", "capability", "multiprocessors", "context"
    );
    for Model { name, device_name, memory, is_memory_read, capability, multiprocessors, context, .. } in MODELS {
        let memory = approximate(memory, is_memory_read);
        let capability = format!("{}.{}", capability.0, capability.1);
        let context = approximate(context.bytes, context.is_measured);
        let _ = writeln!(
            table,
            "{name:<14}{device_name:<32}{memory:>12}  {capability:>10}  {multiprocessors:>15}  {context:>10}"
        );
    }
    table + "\n~: not measured on such a card. context: memory of a process beyond its allocations.\n"
}

fn approximate(bytes: u64, is_exact: bool) -> String {
    format!("{}{}", if is_exact { "" } else { "~" }, size(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_marks_measured_cards() {
        let table = table();
        let line = |card: &str| table.lines().find(|line| line.starts_with(card)).unwrap_or_default().to_owned();
        assert!(
            line("h200 ").ends_with(" 764 MiB")
                && line("t4 ").contains('~')
                && line("rtx-4060 ").matches('~').count() == 2
        );
    }
}
