//! Settings from the environment, read once when the library is loaded.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::SystemTime;

use memlab_units::ParseError;
use parking_lot::Mutex;

/// Default maximum of a trace: 2 GiB.
const DEFAULT_TRACE_MAX: u64 = 2 << 30;
/// Minimum size of a trace: a smaller one could not hold its definitions.
const MIN_TRACE_MAX: u64 = 4 << 20;
/// Maximum size of a trace that is kept in memory.
const IN_MEMORY_MAX: u64 = 256 << 20;
const DEFAULT_OUTPUT: &str = "memlab-%n-%p.jsonl";

static CONFIG: OnceLock<Config> = OnceLock::new();
static OUTPUT: Mutex<Option<String>> = Mutex::new(None);

/// The settings, read from the environment at the first call.
#[inline]
pub fn config() -> &'static Config {
    CONFIG.get_or_init(Config::from_environment)
}

/// Returns true if memlab records at all.
///
/// `MEMLAB=0` switches it off.
#[inline]
pub fn enabled() -> bool {
    // Hooks may be called before the library's constructor has run, when the environment cannot be read yet.
    CONFIG.get().is_some_and(|config| config.enabled)
}

/// Returns true if copies of device memory to the host are recorded.
///
/// Like [`enabled`], callable before the constructor has run.
#[inline]
pub fn notes_read_backs() -> bool {
    CONFIG.get().is_some_and(|config| config.note_read_backs)
}

pub struct Config {
    pub enabled: bool,
    /// Pattern from `MEMLAB_OUTPUT`, with `%p %r %h %n` not yet expanded.
    pub output: String,
    pub trace_max: u64,
    /// Parse error of `MEMLAB_TRACE_MAX`.
    ///
    /// Only processes that use CUDA report it, not every shell that starts them.
    pub trace_max_error: Option<ParseError>,
    /// The value of `MEMLAB_LIMIT`: see [`crate::limit`].
    pub limit: Option<String>,
    /// The value of `MEMLAB_ON_LIMIT`.
    pub on_limit: Option<String>,
    /// The value of `MEMLAB_ON_OOM`.
    pub on_oom: Option<String>,
    /// True if the program's memory can be moved: `MEMLAB_OFFLOAD=1`.
    pub offload: bool,
    /// True if host memory for moved bytes is pinned in advance: `MEMLAB_OFFLOAD=ready`.
    pub offload_ready: bool,
    /// True if the source text of allocating lines is kept; `MEMLAB_SOURCE=0` switches it off.
    pub keep_source: bool,
    /// True if copies of device memory to the host are recorded: `MEMLAB_READBACKS=1`.
    pub note_read_backs: bool,
    /// True if GPU work is recorded: `MEMLAB_TIME=1`.
    pub time: bool,
    /// The value of `MEMLAB_TIME_EVERY`: GPU work is recorded in one of this many optimizer steps.
    pub time_every: Option<String>,
    /// The value of `MEMLAB_TIMELINE`: how much of the GPU work is kept piece by piece.
    pub timeline: Option<String>,
    /// Id of the enclosing `memlab run`, from `MEMLAB_RUN`; `OUTER/INNER` for nested runs.
    pub run: Option<String>,
    /// Time at which the library was loaded.
    pub began: SystemTime,
    /// Maximum host memory for moved bytes: `MEMLAB_HOST_MAX`.
    pub host_max: Option<u64>,
    /// Parse error of `MEMLAB_HOST_MAX`.
    pub host_max_error: Option<ParseError>,
}

impl Config {
    pub fn from_environment() -> Self {
        let enabled = std::env::var_os("MEMLAB").is_none_or(|value| value != "0");
        let output = match std::env::var("MEMLAB_OUTPUT") {
            Ok(pattern) if !pattern.is_empty() => pattern,
            _ => DEFAULT_OUTPUT.to_owned(),
        };
        let (trace_max, trace_max_error) = environment_size("MEMLAB_TRACE_MAX");
        let (host_max, host_max_error) = environment_size("MEMLAB_HOST_MAX");
        Self {
            enabled,
            output,
            trace_max: trace_max.unwrap_or(DEFAULT_TRACE_MAX).max(MIN_TRACE_MAX),
            trace_max_error,
            limit: environment_text("MEMLAB_LIMIT"),
            on_limit: environment_text("MEMLAB_ON_LIMIT"),
            on_oom: environment_text("MEMLAB_ON_OOM"),
            offload: is_on("MEMLAB_OFFLOAD"),
            offload_ready: environment_text("MEMLAB_OFFLOAD").as_deref() == Some("ready"),
            keep_source: std::env::var_os("MEMLAB_SOURCE").is_none_or(|value| value != "0"),
            note_read_backs: is_on("MEMLAB_READBACKS"),
            time: is_on("MEMLAB_TIME"),
            time_every: environment_text("MEMLAB_TIME_EVERY"),
            timeline: environment_text("MEMLAB_TIMELINE"),
            run: environment_text("MEMLAB_RUN").filter(|run| is_run(run)),
            began: SystemTime::now(),
            host_max,
            host_max_error,
        }
    }
}

/// Returns true if `text` is a valid run id.
fn is_run(text: &str) -> bool {
    /// A trace header has room for an id of this length, and readers find it within the first bytes that they read.
    const MAX_RUN_ID_BYTES: usize = 128;
    (1..=MAX_RUN_ID_BYTES).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_hexdigit() || b"-/".contains(&byte))
}

fn is_on(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value != "0" && !value.is_empty())
}

/// Path pattern of the trace, for [`output_path`]: the last one set by `memlab_output`, else `MEMLAB_OUTPUT`.
pub fn output() -> String {
    OUTPUT.lock().clone().unwrap_or_else(|| config().output.clone())
}

/// Sets the path pattern for traces that begin from now on.
pub fn set_output(pattern: String) {
    *OUTPUT.lock() = Some(pattern);
}

/// The maximum size of a trace.
pub fn trace_max(in_memory: bool) -> u64 {
    let trace_max = config().trace_max;
    if in_memory { trace_max.min(IN_MEMORY_MAX) } else { trace_max }
}

/// Path of this process's trace.
///
/// In `pattern`, `%p` is the process id, `%r` the rank (0 without a launcher), `%h` the host, `%n` the program's name, `%%`
/// a percent sign.
pub fn output_path(pattern: &str, program: &str) -> PathBuf {
    let mut path = String::with_capacity(pattern.len() + 32);
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            path.push(character);
            continue;
        }
        match characters.next() {
            Some('p') => path.push_str(&std::process::id().to_string()),
            Some('r') => path.push_str(&rank().unwrap_or(0).to_string()),
            Some('h') => path.push_str(&host_name()),
            Some('n') => path.push_str(program),
            Some('%') => path.push('%'),
            Some(other) => path.extend(['%', other]),
            None => path.push('%'),
        }
    }
    PathBuf::from(path)
}

/// A variable's value; invalid UTF-8 is replaced.
fn environment_text(name: &str) -> Option<String> {
    std::env::var_os(name).map(|text| text.to_string_lossy().into_owned())
}

/// Reads a size from a variable; an invalid value gives its parse error.
fn environment_size(name: &str) -> (Option<u64>, Option<ParseError>) {
    match environment_text(name).filter(|text| !text.trim().is_empty()).map(|text| memlab_units::parse_size(&text)) {
        None => (None, None),
        Some(Ok(bytes)) => (Some(bytes), None),
        Some(Err(error)) => (None, Some(error)),
    }
}

fn environment_number<T: std::str::FromStr>(names: &[&str]) -> Option<T> {
    names.iter().find_map(|name| std::env::var(name).ok()?.parse().ok())
}

/// The process's rank, as set by torchrun, MPI or SLURM.
pub fn rank() -> Option<u32> {
    environment_number(&["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"])
}

pub fn local_rank() -> Option<u32> {
    environment_number(&["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"])
}

pub fn world_size() -> Option<u32> {
    environment_number(&["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"])
}

pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The program's name for file names: the script without its ending, or the executable.
pub fn program_name(command: &[String]) -> String {
    let executable = command.first().map_or("program", String::as_str);
    let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let name = if base(executable).starts_with("python") {
        let script = script_of(&command[1..]);
        script.map_or_else(|| base(executable), |script| base(script).trim_end_matches(".py").to_owned())
    } else {
        base(executable)
    };
    name.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' }).take(64).collect()
}

/// Returns the script (or `-m` module) among Python's arguments.
fn script_of(arguments: &[String]) -> Option<&str> {
    let mut arguments = arguments.iter().map(String::as_str);
    while let Some(argument) = arguments.next() {
        match argument {
            "-m" => return arguments.next(),
            "-c" | "-" => return None,
            "-W" | "-X" | "--check-hash-based-pycs" => {
                arguments.next();
            }
            _ if argument.starts_with('-') => {}
            _ => return Some(argument),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_names() {
        let name = |command: &str| program_name(&command.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(name("/usr/bin/python3 -u runs/train.py --lr 1"), "train");
        assert_eq!(name("python -m torch.distributed.run x.py"), "torch.distributed.run");
        assert_eq!(name("python3.12 -W ignore -c pass"), "python3.12");
        assert_eq!(name("./bench"), "bench");
    }

    #[test]
    fn patterns() {
        let path = output_path("a-%n-%p-100%%-%x%", "train");
        assert_eq!(path.to_string_lossy(), format!("a-train-{}-100%-%x%", std::process::id()));
    }
}
