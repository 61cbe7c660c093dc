//! A job with more ranks than kept models: summaries, models of the ranks viewed last, and the Ranks screen.

use crate::common;
use std::fs::OpenOptions;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::child::becomes_true;
use crate::common::dashboard::{assert_looks, press};
use crate::common::session::Session;
use crate::common::{GIB, MIB, Opened, START, Story};
use memlab_base::query::Query;
use memlab_base::theme::{Depth, Palette, Theme};
use memlab_follow::feed::{Roster, build_snapshot};
use memlab_follow::snapshot::{ProcessSnapshot, ProcessState, Snapshot};
use memlab_trace::DeviceView;
use memlab_tui::app::App;
use memlab_tui::context::ShownMoment;
use memlab_tui::screen::Screen;
use memlab_tui::screens::ranks::RankColumn;

/// More than the number of traces that all keep their models.
const RANKS: u32 = 12;

/// A rank of a job on two hosts that trains and ends.
///
/// Rank 3 keeps 2 GiB of each of its last steps, rank 7 runs out of memory, and rank 9 ends early.
fn rank(number: u32) -> Story {
    let mut story = Story::begin(5000 + number, Some((number, RANKS)));
    let host = format!("\"host\":\"gpu{}\"", number / 8 + 1);
    story.text = story.text.replace("\"host\":\"gpu1\"", &host);
    story.train(0, if number == 9 { 2 } else { 4 });
    if number == 3 {
        for step in 4..12 {
            story.pass(100);
            story.alloc(0, 2 * GIB, 6, 0, 0);
            story.end_step(step);
        }
    }
    if number == 7 {
        story.out_of_memory(0);
    }
    story.end(if number == 7 { "1" } else { "0" }, "null");
    story
}

fn ranks() -> Vec<Story> {
    (0..RANKS).map(rank).collect()
}

fn opened(stories: &[Story]) -> (App, Opened) {
    let mut files = Opened::new(&stories.iter().collect::<Vec<_>>());
    let mut app = App::new(Theme::new(Palette::Dark, Depth::True, true), "waiting…");
    app.screen = Screen::Ranks;
    app.on_tick(START + 60_000_000_000);
    files.show(&mut app);
    (app, files)
}

fn shown(roster: &mut Roster) -> Snapshot {
    build_snapshot(roster, &Query::default(), None, &|| false).expect("is not cancelled")
}

fn read_to_end(roster: &mut Roster) {
    roster.read_to_end(&mut |_| ControlFlow::Continue(()));
}

/// Figures of a rank that a summary also has.
fn figures(process: &ProcessSnapshot) -> impl PartialEq + std::fmt::Debug + use<> {
    let devices: Vec<_> =
        process.devices.iter().map(|device| (device.totals.clone(), device.growth_per_step)).collect();
    (process.header.clone(), process.steps_ended, process.oom_count, process.time, devices)
}

/// The same file in a folder whose name does not change.
fn in_folder(path: &Path) -> PathBuf {
    Path::new("/home/ada/job").join(path.file_name().expect("a name"))
}

fn order(app: &App) -> Vec<u32> {
    app.ranks.items(&app.context).iter().filter_map(|item| item.rank).collect()
}

#[test]
fn a_summary_has_the_figures_of_the_whole_model() {
    // GIVEN a job with more ranks than kept models
    let folder = tempfile::tempdir().expect("a temporary folder");
    let stories = ranks();
    let write = |(number, story): (usize, &Story)| {
        let path = folder.path().join(format!("{number}.jsonl"));
        std::fs::write(&path, &story.text).expect("written");
        path
    };
    let paths: Vec<PathBuf> = stories.iter().enumerate().map(write).collect();
    let mut roster = Roster::open(&paths).expect("traces");
    // WHEN it has been read THEN no model is left, and every rank has the figures and the strip of its model
    read_to_end(&mut roster);
    let snapshot = shown(&mut roster);
    assert_eq!(snapshot.processes.len(), RANKS as usize);
    for (process, story) in std::iter::zip(&snapshot.processes, &stories) {
        let truth = story.process(process.state);
        assert!(process.is_summary && process.state.is_over());
        assert_eq!(figures(process), figures(&truth));
        assert_eq!(process.devices[0].strip, truth.devices[0].strip);
        assert!(process.devices[0].lines.is_empty());
    }
    assert_eq!(snapshot.job.as_ref().map(|job| job.ranks.len()), Some(RANKS as usize));
    // WHEN ranks are viewed one after the other THEN each has a model with its lines, and only a few have one
    for path in &paths {
        roster.set_front(Some(path));
        read_to_end(&mut roster);
        let snapshot = shown(&mut roster);
        let front = snapshot.processes.iter().find(|process| process.path == *path).expect("it is there");
        assert!(!front.is_summary && !front.devices[0].lines.is_empty());
        let whole = snapshot.processes.iter().filter(|process| !process.is_summary).count();
        assert!((1..=3).contains(&whole), "{whole} models");
    }
    // AND the others still have their figures
    for (process, story) in std::iter::zip(&shown(&mut roster).processes, &stories) {
        assert_eq!(figures(process), figures(&story.process(process.state)));
    }
}

fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).expect("opened");
    file.write_all(text.as_bytes()).expect("written");
}

/// Follows the traces until a snapshot matches.
fn wait_for(roster: &mut Roster, what: &str, is: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let mut last = None;
    let is_there = becomes_true(|| {
        roster.poll(&|| false);
        is(last.insert(shown(roster)))
    });
    assert!(is_there, "{what}");
    last.expect("it is there")
}

#[test]
fn ranks_that_write_are_followed_in_turns() {
    // GIVEN ranks whose writer is this process, in the middle of their run
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut stories = ranks();
    (5000..).zip(&mut stories).for_each(|(pid, story)| story.write_here(pid));
    let paths: Vec<PathBuf> = (0..RANKS).map(|number| folder.path().join(format!("{number}.jsonl"))).collect();
    let cut = |story: &Story| story.text[..story.text.len() / 2].rfind('\n').expect("lines") + 1;
    for (path, story) in std::iter::zip(&paths, &stories) {
        append(path, &story.text[..cut(story)]);
    }
    let mut roster = Roster::open(&paths).expect("traces");
    let before = wait_for(&mut roster, "all read", |snapshot| {
        snapshot.processes.iter().all(|process| process.state == ProcessState::Recording)
    });
    // WHEN they continue to write THEN the figures of each follow, to the byte
    for (path, story) in std::iter::zip(&paths, &stories) {
        append(path, &story.text[cut(story)..]);
    }
    let after = wait_for(&mut roster, "all ended", |snapshot| {
        snapshot.processes.iter().all(|process| matches!(process.state, ProcessState::Ended { .. }))
    });
    for ((before, after), story) in std::iter::zip(&before.processes, &after.processes).zip(&stories) {
        assert!(after.is_summary && after.time > before.time);
        let truth = story.process(after.state);
        // Only models have the number of the peak's event.
        let totals = |process: &ProcessSnapshot| DeviceView { peak_event: 0, ..process.devices[0].totals.clone() };
        assert_eq!(totals(after), totals(&truth));
        let counts = |process: &ProcessSnapshot| (process.steps_ended, process.oom_count, process.events_read);
        assert_eq!(counts(after), counts(&truth));
    }
    // AND once they are reread, the lines at the peak are compared too
    let job = wait_for(&mut roster, "rank 3 compared", |snapshot| {
        let differs = snapshot.job.iter().flat_map(|job| &job.differences);
        differs.filter(|difference| difference.ranks.iter().any(|rank| rank.at == 3)).count() > 1
    });
    assert!(job.job.is_some());
}

#[test]
fn the_screen_of_a_job() {
    let stories = ranks();
    let (mut app, _files) = opened(&stories);
    // GIVEN the cursor on the rank that keeps tensors
    press(&mut app, "jjj");
    assert_looks("ranks-job", || {
        let (mut app, _files) = opened(&stories);
        let mut snapshot = Snapshot::clone(&app.context.snapshot);
        for process in &mut snapshot.processes {
            process.path = in_folder(&process.path);
        }
        for rank in snapshot.job.iter_mut().flat_map(|job| &mut Arc::make_mut(job).ranks) {
            rank.path = in_folder(&rank.path);
        }
        app.on_snapshot(snapshot.into());
        press(&mut app, "jjj");
        app
    });
    // WHEN sorted by the peak, the excess over the median, growth or out-of-memory errors THEN the rank concerned comes
    // first
    let mut firsts = Vec::new();
    for column in [RankColumn::Peak, RankColumn::OverMedian, RankColumn::Growth, RankColumn::Ooms, RankColumn::State] {
        press(&mut app, "s");
        assert_eq!(app.ranks.table.sort, column);
        firsts.push(order(&app)[0]);
    }
    assert_eq!(firsts, [3, 3, 3, 7, 7]);
    // AND in the opposite order by steps, the rank that ended first
    press(&mut app, "ssS");
    assert_eq!((app.ranks.table.sort, order(&app)[0]), (RankColumn::Steps, 9));
    // AND a filter keeps the ranks of a host
    app.context.set_filter("gpu2").expect("a filter");
    assert_eq!(order(&app).len(), 4);
}

#[test]
fn a_rank_is_opened_and_left() {
    let stories = ranks();
    let (mut app, mut files) = opened(&stories);
    // WHEN a rank without a model is chosen THEN the screen shows that it is being opened, and then its data
    press(&mut app, "jjjjj\n");
    assert_eq!(
        (app.screen, app.context.process().and_then(|process| process.header.rank)),
        (Screen::Overview, Some(5))
    );
    let screen = common::dashboard::screen(&mut app);
    assert!(screen.contains("opening "), "{screen}");
    files.show(&mut app);
    let screen = common::dashboard::screen(&mut app);
    assert!(screen.contains("Device memory") && screen.contains("rank 5/12"), "{screen}");
    // WHEN the user goes back THEN the cursor is where it was
    press(&mut app, "b");
    assert_eq!(app.screen, Screen::Ranks);
    let rank = app.ranks.selected_process(&app.context).and_then(|process| process.header.rank);
    assert_eq!(rank, Some(5));
}

#[test]
fn the_cursor_stays_on_its_rank_while_others_come() {
    // GIVEN the cursor on the rank with the highest peak so far, and another rank in front
    let process = |number: u32| {
        let mut process = rank(number).process(ProcessState::Recording);
        process.path = format!("/home/ada/{number}.jsonl").into();
        process
    };
    let mut app = App::new(Theme::new(Palette::Dark, Depth::True, true), "waiting…");
    app.screen = Screen::Ranks;
    let show = |app: &mut App, numbers: &[u32]| {
        let processes = numbers.iter().map(|number| process(*number)).collect();
        app.on_snapshot(Snapshot { processes, ..Snapshot::default() }.into());
        common::dashboard::screen(app);
    };
    show(&mut app, &[4, 5, 6]);
    press(&mut app, "d");
    press(&mut app, "jj");
    common::dashboard::screen(&mut app);
    // WHEN new ranks sort before them THEN both stay where they were
    show(&mut app, &[0, 1, 2, 3, 4, 5, 6]);
    let selected = app.ranks.selected_process(&app.context).and_then(|process| process.header.rank);
    let front = app.context.process().and_then(|process| process.header.rank);
    assert_eq!((selected, front), (Some(6), Some(5)));
}

#[test]
fn values_of_a_moment_without_a_model_are_approximate() {
    // GIVEN a moment of the first step WHEN it is shown THEN ranks without a model are marked, and those with one are exact
    let stories = ranks();
    let (mut app, mut files) = opened(&stories);
    app.context.go_to_time(300_000_000);
    files.show(&mut app);
    assert_eq!(app.context.moment, ShownMoment::Cursor);
    let items = app.ranks.items(&app.context);
    assert!(!items[0].is_about && items[5].is_about);
    // The largest value of about 60 ms, in which the model is moved to the device.
    let (exact, about) = (items[0].allocated_bytes, items[5].allocated_bytes);
    assert!(about >= exact && about - exact <= 2 * GIB, "{exact} {about}");
    assert!(exact >= 512 * MIB);
}

#[test]
fn a_folder_of_ranks_opens_on_them() {
    // GIVEN a folder with the ranks of a job WHEN it is viewed
    let stories = ranks();
    let fill = |folder: &Path| {
        std::fs::create_dir(folder.join("job")).expect("a folder");
        for (number, story) in stories.iter().enumerate() {
            std::fs::write(folder.join(format!("job/{number}.jsonl")), &story.text).expect("written");
        }
    };
    let mut session = Session::start_with(&["view", "{}/job"], &stories[0], fill);
    // THEN the Ranks screen is in front, fully read, with its findings
    session.wait_for("rank 3 peaks highest");
    session.wait_for("1 out of memory");
    // AND Enter opens a rank, and b returns
    session.press("jjj");
    session.wait_for("Growth");
    session.press("\r");
    session.wait_until("rank 3", |text| text.contains("rank 3/12") && text.contains("Device memory"));
    session.press("b");
    session.wait_for("rank 3 peaks highest");
    session.press("q");
    let (code, restored, text) = session.end();
    assert_eq!((code, restored), (0, true), "{text}");
}
