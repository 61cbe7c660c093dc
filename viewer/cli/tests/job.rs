//! `memlab report` on the ranks of a job, as text, as JSON and as a page.

use std::path::Path;

use crate::common::{GIB, MIB, Story, hostile};
use memlab_base::text::Style;
use memlab_job::Job;
use memlab_report::report::{write_job_html, write_job_json, write_job_text};
use serde_json::Value;

fn job_of(stories: &[Story]) -> Job {
    let folder = tempfile::tempdir().unwrap();
    let path = |rank: usize| folder.path().join(format!("{rank}.jsonl"));
    for (rank, story) in stories.iter().enumerate() {
        std::fs::write(path(rank), &story.text).unwrap();
    }
    let mut job = Job::read(&(0..stories.len()).map(path).collect::<Vec<_>>(), None).unwrap();
    // The folder has another name each time.
    for rank in &mut job.ranks {
        rank.path = Path::new("job").join(rank.path.file_name().unwrap());
    }
    job
}

fn text_of(job: &Job, columns: usize) -> String {
    let mut out = Vec::new();
    write_job_text(&mut out, job, Style { columns, colored: false }).unwrap();
    String::from_utf8(out).unwrap()
}

fn json_of(job: &Job) -> Value {
    let mut out = Vec::new();
    write_job_json(&mut out, job).unwrap();
    serde_json::from_slice(&out).unwrap()
}

fn page_of(job: &Job) -> String {
    let mut out = Vec::new();
    write_job_html(&mut out, job).unwrap();
    String::from_utf8(out).unwrap()
}

fn snapshot(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("reports");
    settings.set_prepend_module_to_snapshot(false);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// A rank that trains for three steps.
fn rank(rank: u32, of: u32) -> Story {
    let mut story = Story::begin(4300 + rank, Some((rank, of)));
    story.train(0, 3);
    story
}

/// Eight ranks: rank 5 keeps batches and runs out of memory, rank 2 also has a context on rank 5's device, and rank 7 has no
/// trace.
fn failing() -> Vec<Story> {
    let mut ranks: Vec<Story> = (0..7).map(|number| rank(number, 8)).collect();
    for _ in 0..3 {
        ranks[5].alloc(0, 4 * GIB, 6, 0, 0);
    }
    ranks[5].out_of_memory(0);
    ranks[5].line(r#"{"others":0,"processes":[[4302,536870912]]}"#);
    for (number, story) in ranks.iter_mut().enumerate() {
        // Each rank has a separate card.
        story.text = story.text.replace("1B:00", &format!("1B:0{number}"));
        let code = if number == 5 { "1" } else { "null" };
        story.end(code, if number == 5 { "null" } else { "15" });
    }
    ranks
}

#[test]
fn a_job_that_ran_out_of_memory_fits_a_screen() {
    let text = text_of(&job_of(&failing()), 110);
    snapshot("job-oom", &text);
    assert!(text.lines().count() < 60 && text.lines().all(|line| line.chars().count() <= 110), "{text}");
}

#[test]
fn alike_ranks_are_reported_as_alike() {
    let ranks: Vec<Story> = (0..100).map(|number| rank(number, 100)).collect();
    let text = text_of(&job_of(&ranks), 70);
    snapshot("job-alike", &text);
}

#[test]
fn json_has_the_same_figures() {
    // GIVEN that job WHEN it is written as JSON
    let job = job_of(&failing());
    let json = json_of(&job);
    // THEN it contains ranks, figures and the out-of-memory error
    let numbers: Vec<u64> =
        json["ranks"].as_array().unwrap().iter().map(|rank| rank["rank"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(json["job"]["first_missing_ranks"], serde_json::json!([7]));
    assert_eq!((&json["ranks"][5]["exit"], &json["ranks"][0]["signal"]), (&1.into(), &15.into()));
    let peak = &json["differences"][0];
    assert_eq!((&peak["kind"], &peak["ranks"][0]["rank"]), (&"peak".into(), &5.into()));
    let figure = &json["figures"][0];
    assert_eq!((&figure["name"], &figure["most_rank"]), (&"peak_allocated_bytes".into(), &5.into()));
    assert_eq!(peak["ranks"][0]["bytes"], figure["most"]);
    assert_eq!(
        (&json["out_of_memory"]["rank"], &json["out_of_memory"]["requested_bytes"]),
        (&5.into(), &(48 * GIB).into())
    );
    assert_eq!(json["out_of_memory"]["others"].as_array().unwrap().len(), 6);
    let stray = &json["stray_contexts"][0];
    assert_eq!((&stray["rank"], &stray["owner"], &stray["bytes"]), (&2.into(), &5.into(), &(512 * MIB).into()));
    let kinds: Vec<&str> =
        json["findings"].as_array().unwrap().iter().map(|row| row["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["out_of_memory", "difference", "stray_context"]);
    // AND categories sum to the use at the peak
    for rank in json["ranks"].as_array().unwrap() {
        let device = &rank["devices"][0];
        let sum: u64 =
            device["categories"].as_array().unwrap().iter().map(|row| row["bytes_at_peak"].as_u64().unwrap()).sum();
        assert_eq!(device["used_bytes_at_peak"], sum);
    }
}

#[test]
fn ranks_of_a_pipeline_are_compared_within_their_stage() {
    // GIVEN two stages on four ranks each; the second stage holds more, and rank 6 holds more than the other ranks of its
    // stage
    let mut ranks: Vec<Story> = (0..8).map(|number| rank(number, 8)).collect();
    for (number, story) in ranks.iter_mut().enumerate() {
        story.line(&format!(r#"{{"mesh":[["pp",{},2],["dp",{},4]]}}"#, number / 4, number % 4));
        story.line(&format!(r#"{{"stages":[{}],"of":2}}"#, number / 4));
        if number >= 4 {
            story.alloc(0, 8 * GIB, 6, 0, 0);
        }
        if number == 6 {
            story.alloc(0, 2 * GIB, 6, 0, 0);
        }
        story.end("0", "null");
    }
    let job = job_of(&ranks);
    // THEN only that rank differs, by its excess over its stage
    let text = text_of(&job, 110);
    snapshot("job-stages", &text);
    let json = json_of(&job);
    for difference in json["differences"].as_array().unwrap() {
        assert_eq!(difference["ranks"].as_array().unwrap().len(), 1, "{difference}");
        assert_eq!(difference["ranks"][0]["rank"], 6);
        assert_eq!(difference["ranks"][0]["difference_bytes"].as_i64().unwrap().unsigned_abs(), 2 * GIB);
    }
    assert!(!json["differences"].as_array().unwrap().is_empty());
    assert_eq!((&json["ranks"][6]["stages"][0], &json["ranks"][6]["stage_count"]), (&1.into(), &2.into()));
    assert_eq!(json["ranks"][6]["mesh"][1], serde_json::json!({"name": "dp", "coordinate": 2, "size": 4}));
    assert!(page_of(&job).contains("pp=1 dp=2 stage 1"));
}

#[test]
fn no_name_of_a_trace_steers_a_terminal_or_is_markup() {
    // GIVEN two ranks with hostile names and figures
    let mut ranks = [hostile(), hostile()];
    for (number, story) in ranks.iter_mut().enumerate() {
        let wanted = format!(r#""host":"<b onclick=x>\u001b[2J","rank":{number},"#);
        story.text = story.text.replace(r#""host":"gpu1","rank":null,"#, &wanted);
        story.line(r#"{"mesh":[["<b onclick=x>\u001b[2J",0,2]]}"#);
    }
    let job = job_of(&ranks);
    // WHEN they are reported THEN no control character and no element is left
    let text = text_of(&job, 110);
    assert!(!text.chars().any(|character| character.is_control() && character != '\n'), "{text}");
    let page = page_of(&job);
    assert!(!page.contains("<b onclick") && !page.contains('\u{1b}'), "{page}");
    json_of(&job);
}

#[test]
fn the_page_of_many_ranks_stays_small() {
    let ranks: Vec<Story> = (0..512).map(|number| rank(number, 512)).collect();
    let page = page_of(&job_of(&ranks));
    assert!(page.len() < 2 << 20, "{}", page.len());
    assert_eq!(page.matches("<title>rank ").count(), 512);
}

#[test]
fn two_ranks_are_both() {
    // GIVEN the only two ranks of a job THEN the report calls them "both ranks"
    let text = text_of(&job_of(&[rank(0, 2), rank(1, 2)]), 100);
    assert!(text.contains("both ranks: ") && !text.contains("all 2"), "{text}");
}
