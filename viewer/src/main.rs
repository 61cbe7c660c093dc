//! The `memlab` command.

fn main() -> std::process::ExitCode {
    memlab_viewer::cli::main()
}
