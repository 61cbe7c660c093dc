//! The `memlab` command.

fn main() -> std::process::ExitCode {
    memlab_cli::cli::main()
}
