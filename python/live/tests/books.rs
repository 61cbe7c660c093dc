//! Stories of the live books, as lines of a trace, and a brute-force twin of watches and line profiles.

use std::collections::HashMap;
use std::sync::Arc;

use memlab_live::{Books, Function, LineFigures, Mark, Moment};
use proptest::prelude::*;

const HEADER: &str = r#"{"memlab":1,"version":"0.1.0","pid":4242,"command":["python","train.py"]}"#;

/// A program whose function `work` has lines 10 to 12, and `inner`, which line 11 calls, has line 20.
const DEFINITIONS: &str = r#"{"frame":1,"file":"/t.py","line":10,"function":"work"}
{"frame":2,"file":"/t.py","line":11,"function":"work"}
{"frame":3,"file":"/t.py","line":20,"function":"inner"}
{"frame":4,"file":"/t.py","line":12,"function":"work"}
{"stack":1,"parent":0,"frame":1}
{"stack":2,"parent":0,"frame":2}
{"stack":3,"parent":2,"frame":3}
{"stack":4,"parent":0,"frame":4}
"#;

struct Program {
    books: Books,
    position: u64,
    profile: u64,
}

impl Program {
    fn new() -> Self {
        let mut books = Books::default();
        let text = format!("{HEADER}\n{DEFINITIONS}");
        books.take(text.as_bytes(), 0);
        let profile = books.add_profile();
        for (name, lines) in [("work", (9, 12)), ("inner", (19, 20))] {
            let function = Function { files: vec!["/t.py".into()], names: vec![Arc::from(name)], lines };
            books.add_function(profile, function).unwrap();
        }
        let mut program = Self { books, position: text.len() as u64, profile };
        program.moment(Moment::Enabled);
        program
    }

    fn line(&mut self, text: &str) {
        let text = format!("{text}\n");
        self.books.take(text.as_bytes(), self.position);
        self.position += text.len() as u64;
    }

    fn alloc(&mut self, time: u64, address: u64, bytes: u64, stack: u32) {
        self.line(&format!(r#"["a",{time},1,0,{address},{bytes},{stack},0,0]"#));
    }

    fn free(&mut self, time: u64, address: u64) {
        self.line(&format!(r#"["f",{time},1,0,{address}]"#));
    }

    fn moment(&mut self, moment: Moment) {
        self.books.mark(Mark { position: self.position, profile: self.profile, moment });
    }

    fn at(&mut self, frame: u64, function: u32, line: u32) {
        self.moment(Moment::Line { thread: 7, frame, function, line, device: 0, sample: None });
    }

    fn leaves(&mut self, frame: u64) {
        self.moment(Moment::Left { thread: 7, frame, sample: None });
    }

    fn figures(&mut self, function: u32, line: u32) -> LineFigures {
        self.books.pass_marks(u64::MAX);
        let profile = self.books.profile(self.profile).unwrap();
        let found = profile.figures().find(|(of, at, ..)| (*of, *at) == (function, line));
        found.map(|(_, _, _, figures)| figures.clone()).unwrap_or_default()
    }
}

/// `active_bytes.all`.
fn bytes(figures: &LineFigures) -> (u64, u64) {
    (figures.current[1][0], figures.peak[1][0])
}

#[test]
fn a_line_has_the_peak_of_what_it_called_and_nothing_of_before() {
    // GIVEN a peak before the call, a line that calls another function, and frees of both
    let mut program = Program::new();
    program.alloc(1, 0x1000, 9 << 20, 0);
    program.free(2, 0x1000);
    program.at(1, 0, 9);
    program.at(1, 0, 10);
    program.alloc(3, 0x1000, 4096, 1);
    program.at(1, 0, 11);
    program.at(2, 1, 19);
    program.at(2, 1, 20);
    program.alloc(4, 0x9000, 8192, 3);
    program.alloc(5, 0xf000, 512, 3);
    program.free(6, 0xf000);
    program.leaves(2);
    program.free(7, 0x9000);
    program.at(1, 0, 12);
    program.leaves(1);
    program.moment(Moment::Disabled);
    // THEN each line has the bytes allocated while it ran
    assert_eq!(bytes(&program.figures(0, 9)), (0, 0));
    assert_eq!(bytes(&program.figures(0, 10)), (4096, 4096));
    assert_eq!(bytes(&program.figures(0, 11)), (4096, 4096 + 8192 + 512));
    assert_eq!(bytes(&program.figures(1, 20)), (4096 + 8192, 4096 + 8192 + 512));
    // AND the bytes that its stacks allocated and freed
    let (caller, callee) = (program.figures(0, 11), program.figures(1, 20));
    for figures in [&caller, &callee] {
        assert_eq!((figures.line_allocated, figures.line_freed, figures.line_allocations), (8704, 8704, 2));
    }
    assert_eq!(caller.peak_growth, 8704);
    assert_eq!(program.figures(0, 10).line_freed, 0);
}

#[test]
fn frames_that_were_left_unseen_end_with_their_caller() {
    // GIVEN a called frame whose end was not seen
    let mut program = Program::new();
    program.at(1, 0, 11);
    program.at(2, 1, 20);
    program.alloc(1, 0x1000, 4096, 3);
    // WHEN its caller continues
    program.at(1, 0, 12);
    program.alloc(2, 0x9000, 1 << 20, 4);
    program.leaves(1);
    // THEN the called line includes none of the later allocations
    assert_eq!(bytes(&program.figures(1, 20)), (4096, 4096));
    assert_eq!(program.figures(0, 12).peak[1][0], 4096 + (1 << 20));
}

#[test]
fn marks_wait_for_the_lines_before_them() {
    // GIVEN marks made before the lines that were recorded earlier are read
    let mut program = Program::new();
    let lines = "[\"a\",1,1,0,4096,512,1,0,0]\n[\"a\",2,1,0,8192,1024,1,0,0]\n";
    let first = program.position + 27;
    assert_eq!(&lines[26..27], "\n");
    let line = |line| Moment::Line { thread: 7, frame: 1, function: 0, line, device: 0, sample: None };
    program.books.mark(Mark { position: program.position, profile: program.profile, moment: line(10) });
    program.books.mark(Mark { position: first, profile: program.profile, moment: line(11) });
    // WHEN the lines are read
    program.books.take(lines.as_bytes(), program.position);
    program.position += lines.len() as u64;
    program.leaves(1);
    // THEN each block counts for the line during which it was allocated
    assert_eq!(bytes(&program.figures(0, 10)), (512, 512));
    assert_eq!(bytes(&program.figures(0, 11)), (1536, 1536));
}

#[test]
fn the_names_that_a_cell_gets_later_do_not_matter() {
    // GIVEN a frame of a notebook's cell, which the trace calls In[3] once it knows the cell
    let mut books = Books::default();
    books.take(format!("{HEADER}\n").as_bytes(), 0);
    let profile = books.add_profile();
    let function = Function { files: vec!["/tmp/ipykernel_9/1.py".into()], names: vec!["work".into()], lines: (1, 2) };
    books.take(b"{\"frame\":1,\"file\":\"/tmp/ipykernel_9/1.py\",\"line\":2,\"function\":\"work\"}\n", 100);
    books.take(b"{\"frame\":1,\"file\":\"In[3]\",\"line\":2,\"function\":\"work\"}\n", 200);
    books.add_function(profile, function).unwrap();
    books.mark(Mark { position: 0, profile, moment: Moment::Enabled });
    books.take(b"{\"stack\":1,\"parent\":0,\"frame\":1}\n[\"a\",1,1,0,4096,512,1,0,0]\n", 300);
    // THEN its allocations belong to the function
    let allocated: Vec<u64> = books.profile(profile).unwrap().figures().map(|(.., line)| line.line_allocated).collect();
    assert_eq!(allocated, [512]);
}

#[test]
fn a_watch_that_missed_lines_reports_it() {
    let mut program = Program::new();
    let (open, over) = (program.books.begin_watch(0), program.books.begin_watch(0));
    program.alloc(1, 0x1000, 4096, 1);
    program.books.end_watch(over, 0);
    // WHEN events were lost THEN the open watch has a gap
    program.line(r#"["lost",2,17]"#);
    assert!(program.books.watch(open).unwrap().has_gap && !program.books.watch(over).unwrap().has_gap);
    // WHEN the recording starts again THEN an open watch is over, and has a gap
    let open = program.books.begin_watch(0);
    program.books.restart();
    assert!(program.books.watch(open).unwrap().has_gap && program.books.watch(open).unwrap().is_over);
    assert_eq!(program.books.model().totals(0).allocated_bytes, 0);
}

#[test]
fn a_watch_has_its_own_timeline() {
    const SECOND: u64 = 1_000_000_000;
    // GIVEN a program that allocated memory an hour ago
    let mut program = Program::new();
    program.alloc(0, 0x1000, 4096, 1);
    // WHEN a block of four seconds allocates and frees
    let id = program.books.begin_watch(3600 * SECOND);
    program.alloc(3601 * SECOND, 0x2000, 8192, 1);
    program.free(3602 * SECOND, 0x2000);
    program.books.end_watch(id, 3604 * SECOND);
    program.alloc(3605 * SECOND, 0x3000, 1 << 20, 1);
    // THEN its timeline starts with the block, with a resolution to match the block's length
    let watch = program.books.watch(id).unwrap();
    assert_eq!((watch.began, watch.ended), (3600 * SECOND, Some(3604 * SECOND)));
    let timeline = watch.model.timeline(0);
    let points: Vec<_> =
        timeline.points.iter().map(|point| (point.time, point.allocated.min, point.allocated.max)).collect();
    assert_eq!((points[0], timeline.width < SECOND / 1000), ((3600 * SECOND, 4096, 4096), true));
    assert_eq!(points.iter().map(|(.., most)| *most).max(), Some(4096 + 8192));
    assert_eq!(timeline.points.last().map(|point| point.allocated.last), Some(4096));
    // AND a clock that goes back does not put a block before the events of the recording
    let late = program.books.begin_watch(5);
    assert_eq!(program.books.watch(late).unwrap().began, 3605 * SECOND);
}

#[test]
fn a_newer_format_is_refused() {
    let mut books = Books::default();
    books.take(b"{\"memlab\":99}\n", 0);
    assert!(books.error().unwrap().to_string().contains("format 99"));
}

#[derive(Clone, Debug)]
enum Step {
    Alloc(u64, u32),
    Free(usize),
    Watch,
    End(usize),
    ResetPeak,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..64_u64, 1..5_u32).prop_map(|(blocks, stack)| Step::Alloc(blocks * 512, stack)),
        3 => any::<usize>().prop_map(Step::Free),
        1 => Just(Step::Watch),
        1 => any::<usize>().prop_map(Step::End),
        1 => Just(Step::ResetPeak),
    ];
    prop::collection::vec(step, 1..120)
}

/// A watch, computed from a list of live blocks only.
struct Twin {
    id: u64,
    start: u64,
    peak: u64,
    end: Option<u64>,
    at_peak: HashMap<u32, u64>,
    allocated: HashMap<u32, u64>,
}

proptest! {
    #[test]
    fn watches_agree_with_a_list_of_blocks(steps in steps()) {
        let mut program = Program::new();
        let mut live: Vec<(u64, u64, u32)> = Vec::new();
        let mut watches: Vec<Twin> = Vec::new();
        let sum = |live: &[(u64, u64, u32)]| live.iter().map(|block| block.1).sum::<u64>();
        let by_stack = |live: &[(u64, u64, u32)]| {
            let mut sums: HashMap<u32, u64> = HashMap::new();
            for (_, bytes, stack) in live {
                *sums.entry(*stack).or_default() += bytes;
            }
            sums
        };
        let mut peak = 0;
        for (time, step) in steps.iter().enumerate() {
            let time = time as u64 + 1;
            match step {
                Step::Alloc(bytes, stack) => {
                    program.alloc(time, time << 20, *bytes, *stack);
                    live.push((time << 20, *bytes, *stack));
                    peak = peak.max(sum(&live));
                    for watch in watches.iter_mut().filter(|watch| watch.end.is_none()) {
                        *watch.allocated.entry(*stack).or_default() += bytes;
                        if sum(&live) > watch.peak {
                            watch.peak = sum(&live);
                            watch.at_peak = by_stack(&live);
                        }
                    }
                }
                Step::Free(which) if !live.is_empty() => {
                    let (address, ..) = live.swap_remove(which % live.len());
                    program.free(time, address);
                }
                Step::Watch => watches.push(Twin {
                    id: program.books.begin_watch(0),
                    start: sum(&live),
                    peak: sum(&live),
                    end: None,
                    at_peak: by_stack(&live),
                    allocated: HashMap::new(),
                }),
                Step::End(which) if !watches.is_empty() => {
                    let count = watches.len();
                    let watch = &mut watches[which % count];
                    if watch.end.is_none() {
                        watch.end = Some(sum(&live));
                        program.books.end_watch(watch.id, 0);
                    }
                }
                Step::ResetPeak => {
                    program.books.reset_peaks(Some(0));
                    peak = sum(&live);
                }
                _ => {}
            }
            prop_assert_eq!(program.books.model().peaks(0).allocated_bytes, peak);
        }
        // Stacks 1 to 4 are counted at lines 10, 11, 20 and 12.
        let line_of: HashMap<u32, u32> = HashMap::from([(1, 10), (2, 11), (3, 20), (4, 12)]);
        for twin in &watches {
            let watch = program.books.watch(twin.id).unwrap();
            let view = watch.model.device(0).unwrap_or_default();
            prop_assert_eq!(watch.allocated_at_start(0), twin.start);
            prop_assert_eq!(view.peak_allocated_bytes, twin.peak);
            prop_assert_eq!(view.allocated_bytes, twin.end.unwrap_or(sum(&live)));
            let lines = watch.lines(0);
            for (stack, line) in &line_of {
                let found = lines.iter().find(|found| found.now.line.as_ref().is_some_and(|of| of.line == Some(*line)));
                let (at_peak, allocated) = found.map_or((0, 0), |found| (found.now.live_bytes_at_peak, found.allocated));
                prop_assert_eq!(at_peak, twin.at_peak.get(stack).copied().unwrap_or(0));
                prop_assert_eq!(allocated, twin.allocated.get(stack).copied().unwrap_or(0));
            }
            prop_assert_eq!(lines.iter().map(|line| line.at_start).sum::<u64>(), twin.start);
        }
    }
}
