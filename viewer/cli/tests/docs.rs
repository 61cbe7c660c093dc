//! Checks that `memlab` accepts the commands in the docs, and that commands that only read a trace run.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::child::{alone, output};
use clap::error::ErrorKind;
use regex::Regex;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A command of a page: its place, and its words from `memlab` on.
struct Shown {
    place: String,
    words: Vec<String>,
}

fn pages() -> Vec<PathBuf> {
    let folders = ["docs", "docs/tools", "docs/internals"].map(|folder| Path::new(ROOT).join(folder));
    let files =
        folders.iter().flat_map(|folder| fs::read_dir(folder).expect("a folder")).map(|file| file.unwrap().path());
    let mut pages: Vec<PathBuf> = files.filter(|file| file.extension().is_some_and(|ending| ending == "md")).collect();
    pages.push(Path::new(ROOT).join("README.md"));
    pages.sort();
    pages
}

/// Returns the command lines in a page's code blocks, indented or fenced, with their numbers.
///
/// Lines continued with `\` are joined. In a block with prompts (`$ `), the other lines are output.
fn code(page: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut block: Vec<(usize, String)> = Vec::new();
    let (mut is_fenced, mut is_continued) = (false, false);
    for (number, line) in page.lines().chain([""]).enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        if is_fence || !(is_fenced || line.starts_with("    ") || line.is_empty()) {
            lines.append(&mut commands_of_block(std::mem::take(&mut block)));
            continue;
        }
        let (text, continues) = match line.trim().strip_suffix('\\') {
            Some(text) => (text, true),
            None => (line.trim(), false),
        };
        match block.last_mut().filter(|_| is_continued) {
            Some((_, last)) => last.push_str(text),
            None => block.push((number + 1, text.to_owned())),
        }
        is_continued = continues;
    }
    lines.append(&mut commands_of_block(block));
    lines
}

fn commands_of_block(block: Vec<(usize, String)>) -> Vec<(usize, String)> {
    let has_prompts = block.iter().any(|(_, line)| line.starts_with("$ "));
    block.into_iter().filter(|(_, line)| !has_prompts || line.starts_with("$ ")).collect()
}

/// Returns the mentions of `memlab …` in a page's text, outside of code blocks.
fn mentions(page: &str) -> Vec<Vec<String>> {
    let text: Vec<&str> = page.split("```").step_by(2).collect();
    let text: Vec<&str> = text.iter().flat_map(|text| text.lines()).filter(|line| !line.starts_with("    ")).collect();
    let text = text.join(" ");
    let spans = text.split('`').skip(1).step_by(2).filter(|span| !span.contains(['…', '[', '|']));
    spans.flat_map(commands).collect()
}

/// The commands in a line of code: `$ memlab …`, `A=b memlab …`, `memlab … && memlab …`.
fn commands(line: &str) -> Vec<Vec<String>> {
    let line = line.strip_prefix("$ ").unwrap_or(line);
    // A remark about a command follows two spaces or `#`.
    let line = line.split("  ").next().unwrap_or(line);
    let Some(words) = shlex::split(line) else { return Vec::new() };
    let ends = |word: &String| ["&&", "|", ";", ">", "&", "2>", "#"].contains(&word.as_str());
    let parts = words.split(ends).map(|part| {
        let sets = |word: &&String| {
            word.split_once('=').is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
        };
        part.iter().skip_while(sets).map(|word| word.trim_end_matches(';').to_owned()).collect::<Vec<String>>()
    });
    parts.filter(|words| words.first().is_some_and(|word| word == "memlab") && words.len() > 1).collect()
}

fn shown() -> Vec<Shown> {
    let mut all = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        let name = page.strip_prefix(ROOT).unwrap_or(&page).display().to_string();
        for (number, line) in code(&text) {
            all.extend(commands(&line).into_iter().map(|words| Shown { place: format!("{name}:{number}"), words }));
        }
    }
    all
}

/// Returns the reason why memlab refuses the command line.
///
/// Also checks memlab commands inside `memlab simulate` and `memlab run`.
fn refusal(words: &[String]) -> Option<String> {
    match memlab_cli::cli::command().try_get_matches_from(words) {
        Err(error) if error.use_stderr() => return Some(error.to_string()),
        Ok(matches) => {
            // `memlab run` passes an unknown option to the program.
            let started = matches.subcommand().and_then(|(_, of_it)| of_it.try_get_raw("command").ok()?);
            let option = started.and_then(|mut words| words.next()).map(|word| word.to_string_lossy());
            if let Some(option) = option.filter(|option| option.starts_with('-')) {
                return Some(format!("there is no option {option}"));
            }
        }
        Err(_) => {}
    }
    words.iter().skip(1).position(|word| word == "memlab").and_then(|inner| refusal(&words[inner + 1..]))
}

#[test]
fn the_docs_show_existing_commands() {
    // GIVEN all commands in the docs, which include each command of memlab
    let shown = shown();
    let spoken: Vec<String> = pages()
        .iter()
        .flat_map(|page| mentions(&fs::read_to_string(page).expect("a page")))
        .map(|words| words[1].clone())
        .collect();
    let used: BTreeSet<&str> = shown.iter().map(|shown| &shown.words[1]).chain(&spoken).map(String::as_str).collect();
    let command = memlab_cli::cli::command();
    let missing: Vec<&str> =
        command.get_subcommands().map(clap::Command::get_name).filter(|name| !used.contains(name)).collect();
    assert!(missing.is_empty(), "the docs show no {missing:?}");
    // THEN memlab accepts each, with its options
    let wrong: Vec<String> = shown
        .iter()
        .filter_map(|Shown { place, words }| Some(format!("{place}: {}\n  {}", words.join(" "), refusal(words)?)))
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn the_docs_name_existing_commands_and_options() {
    // GIVEN the mentions of the command line in the docs' text, with arguments or without
    let mut wrong = Vec::new();
    let mut spoken = 0;
    for page in pages() {
        for words in mentions(&fs::read_to_string(&page).expect("a page")) {
            spoken += 1;
            // THEN memlab knows the command and the options
            if let Err(error) = memlab_cli::cli::command().try_get_matches_from(&words)
                && [ErrorKind::UnknownArgument, ErrorKind::InvalidSubcommand].contains(&error.kind())
            {
                wrong.push(format!("{}: {}\n  {error}", page.display(), words.join(" ")));
            }
        }
    }
    assert!(spoken > 0 && wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn commands_of_the_docs_that_read_a_trace_read_it() {
    // GIVEN a trace under each name that the docs give one
    const READERS: [&str; 7] = ["report", "advise", "diff", "export", "config", "ps", "completions"];
    let folder = tempfile::tempdir().expect("a folder");
    let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings/gpt.jsonl.zst");
    let plain = Command::new("zstd").args(["-dqc"]).arg(&recording).output();
    let plain = plain.ok().filter(|done| done.status.success()).map(|done| done.stdout);
    // AND a job of two ranks
    fs::create_dir(folder.path().join("job")).expect("made");
    for rank in ["gpt", "gpt-eager"] {
        let name = format!("{rank}.jsonl.zst");
        fs::copy(recording.with_file_name(&name), folder.path().join("job").join(name)).expect("copied");
    }
    // AND a newest trace, for commands that name none
    fs::copy(&recording, folder.path().join("memlab-train.jsonl.zst")).expect("copied");
    // The recording has two steps; the docs' runs have more.
    let steps = Regex::new("step:[0-9]+").expect("a pattern");
    let mut done = BTreeSet::new();
    let mut wrong = Vec::new();
    for Shown { place, words } in shown() {
        let has = |option: &str| words.iter().any(|word| word == option);
        let is_once = words[1] == "view" && (has("--once") || has("--svg")) || words[1] == "simulate" && has("--list");
        if !(READERS.contains(&words[1].as_str()) || is_once) || !done.insert(words.clone()) {
            continue;
        }
        // The docs' names for a job's folder that hosts share.
        let here = |word: &String| word.replace("/shared/traces", "job").replace("$folder", "job");
        let words: Vec<String> =
            words.iter().map(here).map(|word| steps.replace_all(&word, "step:1").into_owned()).collect();
        let names = words.iter().map(|word| word.split('@').next().unwrap_or(word));
        let files = names.filter(|word| word.contains(".jsonl") || ["FILE", "A", "B"].contains(word));
        for file in files {
            let path = folder.path().join(file);
            match &plain {
                Some(plain) if !file.ends_with(".zst") => fs::write(path, plain).expect("written"),
                _ => drop(fs::copy(&recording, path).expect("copied")),
            }
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_memlab"));
        alone(command.args(&words[1..]).current_dir(&folder).env_remove("MEMLAB_OUTPUT"));
        // THEN each command succeeds
        let output = output(&mut command);
        if !output.status.success() {
            wrong.push(format!("{place}: {}\n  {}", words.join(" "), String::from_utf8_lossy(&output.stderr)));
        }
    }
    assert!(done.len() > READERS.len(), "{done:?}");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
