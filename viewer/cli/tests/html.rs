//! The page of `memlab report --html`: it is complete, adds up, stays small, and escapes all names.

use crate::common;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::{GIB, MIB, Story, trained};
use memlab_report::advice::AdvisedTrace;
use memlab_report::report::write_html;
use memlab_trace::load;

fn read(text: &str) -> AdvisedTrace {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.jsonl");
    std::fs::write(&path, text).unwrap();
    without_advice(&path)
}

/// A trace of which only the state at its end is tested.
fn without_advice(path: &Path) -> AdvisedTrace {
    AdvisedTrace {
        trace: load(path, &mut |_| std::ops::ControlFlow::Continue(())).unwrap(),
        advice: None,
        peak_step: None,
    }
}

fn page_of(loaded: &AdvisedTrace) -> String {
    let mut out = Vec::new();
    write_html(&mut out, Path::new("runs/train.jsonl"), loaded).unwrap();
    String::from_utf8(out).unwrap()
}

fn page(text: &str) -> String {
    page_of(&read(text))
}

/// Returns the names of all elements in order, and the text between them.
///
/// Fails on incorrectly nested markup.
fn parse(page: &str) -> (Vec<String>, String) {
    let mut open: Vec<String> = Vec::new();
    let (mut names, mut text) = (Vec::new(), String::new());
    let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap();
    while let Some((between, after)) = rest.split_once('<') {
        text += between;
        let (tag, after) = after.split_once('>').unwrap();
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "near {}", &rest[..rest.len().min(200)]);
            continue;
        }
        let name = tag.split([' ', '/']).next().unwrap();
        assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric()), "<{tag}>");
        assert!(tag.matches('"').count().is_multiple_of(2), "<{tag}>");
        names.push(name.to_owned());
        if name == "script" || name == "style" {
            rest = rest.split_once(&format!("</{name}>")).unwrap().1;
        } else if !tag.ends_with('/') && !matches!(name, "meta" | "br" | "input") {
            open.push(name.to_owned());
        }
    }
    assert!(open.is_empty(), "{open:?}");
    (names, text)
}

/// The values of `attribute` in the rows, bars and frames that contain `within`.
fn numbers(page: &str, within: &str, attribute: &str) -> Vec<u64> {
    let start = format!(" {attribute}=\"");
    let ends = ["</tr>", "</summary>", "<div class=\"moment\"", "<div class=\"row\""];
    let page = ends.iter().fold(page.to_owned(), |page, end| page.replace(end, &format!("\n{end}")));
    let lines = page.lines().filter(|line| line.contains(within));
    let values = lines.flat_map(|line| line.split(&start).skip(1));
    values.map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect()
}

/// The text between two texts.
fn between<'p>(page: &'p str, from: &str, to: &str) -> &'p str {
    let (_, after) = page.split_once(from).unwrap_or_else(|| panic!("no {from}"));
    after.split_once(to).unwrap_or_else(|| panic!("no {to}")).0
}

/// A run that ends with an out-of-memory error.
fn dying() -> String {
    let mut story = trained(6);
    story.out_of_memory(0);
    story.end("1", "null");
    story.text
}

#[test]
fn a_page_is_complete_and_fetches_nothing() {
    let page = page(&dying());
    let (_, text) = parse(&page);
    for said in [
        "train.py --batch 64",
        "2026-11-20 08:39:11 UTC",
        "ended with exit code 1",
        "Out of memory",
        "What to do next",
        "Memory over time",
        "Memory by category",
        "Largest lines",
        "Calls at the peak",
        "Growth between steps",
        "Layers",
        "Steps",
        "from train.jsonl.",
    ] {
        assert!(text.contains(said), "{said}");
    }
    // THEN it has no URLs except the names of XML namespaces
    let bare = page.replace("http://www.w3.org/2000/svg", "").replace("http://www.w3.org/1999/xhtml", "");
    for elsewhere in ["http:", "https:", "//cdn", " src=", "@import", "url("] {
        assert!(!bare.contains(elsewhere), "{elsewhere}");
    }
    // AND only its own script can run
    let nonce = between(&page, "script-src 'nonce-", "'");
    assert!(nonce.len() == 32 && page.contains(&format!("<script nonce=\"{nonce}\">")));
    assert_eq!(page.matches("<script").count(), 1);
}

#[test]
fn the_figures_add_up() {
    let loaded = read(&dying());
    let device = loaded.trace.model.device(0).unwrap();
    let page = page_of(&loaded);
    // The parts of the bar sum to the device.
    for when in ["at the peak", "at the end"] {
        let parts = numbers(&page, &format!("<span class=\"when\">{when}</span>"), "data-b");
        assert!(parts.len() > 4 && parts.iter().sum::<u64>() == device.total_bytes, "{when}: {parts:?}");
    }
    // Lines, the outermost layers and the memory outside them, and the outermost calls each sum to the allocated bytes.
    let lines = between(&page, ">Largest lines</h3>", "</table>");
    let held: u64 = lines.split("<tr>").filter_map(|row| numbers(row, "<td", "data-v").first().copied()).sum();
    assert_eq!(held, device.peak_allocated_bytes);
    let outermost: u64 = numbers(&page, " data-d=\"0\" data-b", "data-b").iter().sum();
    // The same bytes appear twice more, in two flamegraphs whose first frame is the total.
    assert_eq!(outermost, 3 * device.peak_allocated_bytes);
    // A branch of the tree is the sum of its children.
    let tree = between(&page, "<div class=\"tree\">", "every layer alone");
    let of_depth = |depth: &str| numbers(tree, &format!(" data-d=\"{depth}\""), "data-b");
    assert_eq!(of_depth("1").iter().sum::<u64>(), of_depth("0")[0], "{tree}");
}

#[test]
fn the_table_of_steps_has_the_data_of_a_training() {
    // GIVEN a run whose training records its first step, with words that contain markup
    let told = r#"{"trained":0,"epoch":0,"batch":0,"samples":300,"duration":1000000000,"loss":2.5,"way":"<b>replay","pieces":4,"offloaded":1073741824}"#;
    let story = common::trained(3).text;
    // WHEN the page is written with and without that record THEN only the first page has its columns
    let page_of = |text: &str| page(text);
    let (with, without) = (page_of(&(story.clone() + told + "\n")), page_of(&story));
    for shown in [">samples a second<", "data-v=\"2.5\">2.500</td>", "4 pieces, &lt;b&gt;replay", ">1.00 GiB<"] {
        assert!(with.contains(shown), "{shown}");
    }
    assert!(!without.contains("samples a second") && !without.contains("computed"));
    parse(&with);
}

#[test]
fn names_are_escaped() {
    // GIVEN the same run twice: with harmless names, and with names that try to break out of their context
    let hostile_names = [
        "</script><script>alert(1)</script>",
        "\\\"><img src=x onerror=alert(1)>",
        "'-->]]><svg onload=alert(1)>",
        "</title></style></textarea>&lt;b&gt;",
        "\\u001b[2J\\u202e\\u0000",
    ];
    let run = |hostile: &str| {
        let mut story = Story::begin(4242, None);
        story.text = story
            .text
            .replace("\"python\",\"train.py\"", &format!("\"python\",\"{hostile}\""))
            .replace("gpu1", hostile);
        story.line(&format!(r#"{{"device":0,"name":"{hostile}","total_bytes":{}}}"#, 8 * GIB));
        story.line(&format!(r#"{{"software":"{hostile}","version":"{hostile}","root":""}}"#));
        story.line(&format!(r#"{{"frame":90,"file":"/{hostile}","line":7,"function":"{hostile}"}}"#));
        story.line(r#"{"stack":90,"parent":1,"frame":90}"#);
        story.line(&format!(r#"{{"layer":90,"parent":1,"type":"{hostile}","name":"{hostile}"}}"#));
        story.line(&format!(r#"{{"warning":"{hostile}"}}"#));
        story.line(&format!(r#"["d+",5,1,0,64,{MIB},"device","{hostile}","{hostile}",90,0,0]"#));
        story.line(&format!(r#"["tag",5,0,4096,"parameter",64,1,"{hostile}"]"#));
        story.alloc(0, 64 * MIB, 90, 90, 5);
        story.line(&format!(r#"["oom",9,1,0,{GIB},{MIB},{MIB},90,90]"#));
        for step in 0..3 {
            story.line(&format!(r#"["step",{},1,{step}]"#, 10 + step));
            story.alloc(0, MIB, 90, 90, 5);
        }
        story.line("[\"a\",1,broken");
        page(&story.text)
    };
    let (elements, _) = parse(&run("harmless"));
    for hostile in hostile_names {
        let page = run(hostile);
        // THEN the page has the same elements
        assert_eq!(parse(&page).0, elements, "{hostile}");
        // AND it has no control characters or direction overrides
        let unsafe_ones: Vec<char> = page.chars().filter(|c| *c != '\n' && memlab_base::text::is_unsafe(*c)).collect();
        assert!(unsafe_ones.is_empty(), "{unsafe_ones:?}");
    }
}

#[test]
fn hostile_traces_give_valid_pages() {
    parse(&page(&common::hostile().text));
    for broken in ["hostile-loops", "hostile-escapes", "garbled", "nuls", "truncated"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../trace/tests/broken/{broken}.jsonl"));
        parse(&page_of(&without_advice(&path)));
    }
    let bare = page("{\"memlab\":1,\"pid\":7}\n");
    assert!(bare.contains("No GPU memory was allocated.") && bare.contains("no end was recorded"));
    parse(&bare);
}

#[test]
fn the_page_of_a_big_run_is_small() {
    // GIVEN two devices, 4000 nested and 4000 adjacent lines, 4000 nested layers, 20,000 steps
    let mut story = Story::begin(4242, None);
    let long = "x".repeat(500);
    for device in 0..2 {
        story.device(device, 141 * GIB);
    }
    for id in 100..4100 {
        story.line(&format!(r#"{{"frame":{id},"file":"/home/{long}/{id}.py","line":{id},"function":"{long}"}}"#));
        let parent = if id < 700 { id - 1 } else { 1 };
        story.line(&format!(r#"{{"stack":{id},"parent":{parent},"frame":{id}}}"#));
        let nested = ["layer"; 30].join(".");
        story.line(&format!(r#"{{"layer":{id},"parent":1,"type":"{long}","name":"h.{id}.{nested}"}}"#));
        story.alloc(0, u64::from(id) * 1024, id, id, 5);
        story.alloc(1, u64::from(id) * 512, id, id, 5);
    }
    for step in 0..20_000 {
        let _ = writeln!(story.text, r#"["step",{},1,{step}]"#, 1_000_000_000 + step * 1000);
    }
    // WHEN the page is written
    let page = page(&story.text);
    parse(&page);
    // THEN it is small enough to mail, and names the omitted parts
    assert!(page.len() < 5_000_000, "{}", page.len());
    for left_out in ["more rows with", "left out: see --json", "calls are too small to draw", "smaller layers"] {
        assert!(page.contains(left_out), "{left_out}");
    }
    // AND the tree is still complete
    let device = read(&story.text).trace.model.device(0).unwrap();
    let tree = between(&page, "<div class=\"tree\">", "every layer alone");
    assert_eq!(numbers(tree, " data-d=\"0\"", "data-b").iter().sum::<u64>(), device.peak_allocated_bytes);
}

#[test]
fn every_device_has_its_section() {
    let mut story = trained(2);
    story.train(1, 2);
    let page = page(&story.text);
    for device in 0..2 {
        assert!(page.contains(&format!("<a href=\"#device-{device}\">")));
        assert!(page.contains(&format!("<section class=\"device\" id=\"device-{device}\">")));
    }
    assert!(page.contains("the fullest of 2 devices"));
    // Hundreds of devices, as in a hostile trace, are cut.
    let many: String = (0..200).fold(String::from("{\"memlab\":1,\"pid\":7}\n"), |text, device| {
        text + &format!("[\"a\",1,1,{device},4096,4096,0,0,0]\n")
    });
    let page = self::page(&many);
    assert!(page.contains("184 more devices: see --json") && page.len() < 5_000_000, "{}", page.len());
}

fn memlab(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_memlab")).args(arguments).current_dir(folder).output().unwrap()
}

#[test]
fn the_command_writes_one_page_and_replaces_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for name in ["a.jsonl", "b.jsonl", "odd"] {
        std::fs::write(folder.join(name), dying()).unwrap();
    }
    let says = |arguments: &[&str]| {
        let output = memlab(folder, arguments);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // The page is written to the given file, and nothing is printed.
    assert_eq!(says(&["report", "a.jsonl", "--html", "a.html"]), (Some(0), String::new()));
    parse(&std::fs::read_to_string(folder.join("a.html")).unwrap());
    let output = memlab(folder, &["report", "a.jsonl", "--html", "-"]);
    parse(&String::from_utf8(output.stdout).unwrap());
    // Two traces are refused.
    let (code, errors) = says(&["report", "a.jsonl", "b.jsonl", "--html", "a.html"]);
    assert!(code == Some(2) && errors.contains("one page for one trace or job, but 2 traces were given"), "{errors}");
    // So is JSON.
    let (code, errors) = says(&["report", "a.jsonl", "--html", "a.html", "--json"]);
    assert!(code == Some(2) && errors.contains("cannot be used with"), "{errors}");
    // A trace at the page's path is not replaced.
    for over in [["report", "--html", "a.jsonl", "b.jsonl"], ["report", "--html", "odd", "odd"]] {
        let (code, errors) = says(&over);
        assert!(
            code == Some(2) && (errors.contains("is a trace") || errors.contains("is the trace itself")),
            "{errors}"
        );
        assert_eq!(std::fs::read_to_string(folder.join(over[2])).unwrap(), dying());
    }
    let (code, errors) = says(&["report", "a.jsonl", "--html", "no/such/folder.html"]);
    assert!(code == Some(1) && errors.contains("no/such/folder.html: cannot be written"), "{errors}");
}

#[test]
fn the_page_of_a_moment_adds_up() {
    // GIVEN a run that ends with an out-of-memory error
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("a.jsonl"), dying()).unwrap();
    let page = |arguments: &[&str]| {
        let output = memlab(folder, &[&["report", "--html", "-"], arguments].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    for (at, when) in [
        ("step:2", "At the end of step 2, "),
        ("peak", "At the peak, "),
        ("oom", "At the first out-of-memory, "),
        ("end", "At the end, "),
    ] {
        // WHEN the page of a moment is written
        let page = page(&["a.jsonl", "--at", at]);
        // THEN it names the moment and the parts that are omitted
        let (_, text) = parse(&page);
        assert!(text.contains(when), "{at}: {text}");
        assert!(text.contains("The page of the whole run"), "{at}");
        for whole in ["Growth between steps", "with callees"] {
            assert!(!text.contains(whole), "{at}: {whole}");
        }
        assert_eq!(text.contains("What to do next"), at == "oom", "{at}");
        // AND lines, layers, calls and categories are those of the moment, as in an export
        let json = memlab(folder, &["export", "--format", "json", "-o", "-", "--at", at, "a.jsonl"]).stdout;
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let device = &json["devices"][0];
        let (allocated, total) = (device["allocated_bytes"].as_u64().unwrap(), device["total_bytes"].as_u64().unwrap());
        let lines = between(&page, ">Largest lines</h3>", "</table>");
        let held: u64 = lines.split("<tr>").filter_map(|row| numbers(row, "<td", "data-v").first().copied()).sum();
        assert_eq!(held, allocated, "{at}");
        assert_eq!(numbers(&page, " data-d=\"0\" data-b", "data-b").iter().sum::<u64>(), 3 * allocated, "{at}");
        let bar = numbers(&page, "<span class=\"when\">then</span>", "data-b");
        assert_eq!(bar.iter().sum::<u64>(), total, "{at}");
    }
    // AND the moment can follow the file name
    let parts = |page: &str| between(page, "<main>", "</main>").to_owned();
    assert_eq!(parts(&page(&["a.jsonl@step:2"])), parts(&page(&["a.jsonl", "--at", "step:2"])));
    let refused = memlab(folder, &["report", "a.jsonl@step:99", "--html", "a.html"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("has no step 99"), "{refused:?}");
    assert!(!folder.join("a.html").exists());
}

#[test]
fn a_page_replaces_pages_and_nothing_else() {
    // GIVEN a trace, and files that could be given as the page's name by mistake
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("train.jsonl"), trained(2).text).unwrap();
    let report = |out: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memlab"));
        command.args(["report", "--html", out, "train.jsonl"]).current_dir(&folder).output().unwrap()
    };
    std::fs::write(at("train.py"), "import torch\n").unwrap();
    std::fs::write(at("index.html"), "<!DOCTYPE html><title>Ada</title>").unwrap();
    for name in ["train.py", "index.html"] {
        // WHEN the page would replace the file THEN memlab refuses with advice, AND the file is unchanged
        let before = std::fs::read(at(name)).unwrap();
        let Output { status, stderr, .. } = report(name);
        let text = String::from_utf8_lossy(&stderr);
        assert!(status.code() == Some(2) && text.contains("name another file, or remove it"), "{text}");
        assert_eq!(std::fs::read(at(name)).unwrap(), before);
    }
    // AND an existing page or an empty file is replaced
    std::fs::write(at("a.html"), "").unwrap();
    assert!(report("a.html").status.success() && report("a.html").status.success());
    assert!(std::fs::read_to_string(at("a.html")).unwrap().contains("memlab report</title>"));
}
