//! Call trees as flamegraphs: SVG pictures with the outermost calls on top. The width of a call is the memory allocated
//! below it.
//!
//! A picture opened in a browser zooms on a click and searches on Ctrl-F. A page with several pictures includes
//! [`STYLE`] and [`SCRIPT`] once. All text from a trace is escaped and cut to a length.

use std::cmp::Reverse;
use std::fmt::Write as _;

use memlab_trace::{AllocationTotals, Call, CallTree, Line, Sources};

use memlab_base::text::{clean, fit, fit_end, markup};
use memlab_units::format::{self, size};

/// Style sheet of flamegraphs, light and dark.
pub const STYLE: &str = include_str!("flamegraph/flamegraph.css");

/// Script of flamegraphs. It finds all flamegraphs of its document.
pub const SCRIPT: &str = concat!(include_str!("flamegraph/size.js"), include_str!("flamegraph/flamegraph.js"));

/// Maximum number of calls in a separate picture.
const MAX_CALLS: usize = 6000;

/// Deepest row drawn; memlab records no more frames than that in PyTorch programs.
const MAX_DEPTH: usize = 512;

/// Longest name, in columns.
const MAX_NAME_COLUMNS: usize = 120;

const WIDTH: f64 = 1200.0;
const ROW: f64 = 18.0;
const HEAD: f64 = 58.0;
const FOOT: f64 = 22.0;

/// Minimum width of a drawn call.
const MIN_CALL_WIDTH: f64 = 0.3;

/// Width of a character: six tenths of the font size, as in monospaced fonts.
const ADVANCE: f64 = 6.95;

/// Number of colours for the user's files, and for libraries' files; see the style.
const USERS: u32 = 6;
const LIBRARIES: u32 = 3;

/// Figure shown as the width of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Live bytes at the end of the reading.
    Live,
    /// Live bytes at the device's peak.
    AtPeak,
}

impl Measure {
    pub(crate) fn of(self, held: &AllocationTotals) -> u64 {
        match self {
            Self::Live => held.live_bytes,
            Self::AtPeak => held.live_bytes_at_peak,
        }
    }
}

/// Flamegraph of a call tree as a standalone file. `sources`: texts of its lines.
pub fn flamegraph(tree: &CallTree, sources: &Sources, measure: Measure, title: &str) -> String {
    let drawing = drawing(tree, sources, measure, title, MAX_CALLS);
    let (body, end) = drawing.split_at(drawing.rfind("</svg>").unwrap_or(drawing.len()));
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{body}<style><![CDATA[\n{STYLE}]]></style>\n<script><![CDATA[\n{SCRIPT}]]></script>\n{end}"
    )
}

/// The picture alone, with at most `most` calls, for a page that includes the style and the script.
pub(crate) fn drawing(tree: &CallTree, sources: &Sources, measure: Measure, title: &str, most: usize) -> String {
    let total = measure.of(&tree.total());
    let DrawnCalls { least, dropped, rows } = choose(tree, measure, total, most);
    let height = HEAD + (rows + 1) as f64 * ROW + FOOT;
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" class="flamegraph" viewBox="0 0 {WIDTH:.0} {height:.0}" role="group" aria-label="{title}">
<text class="head" x="4" y="20">{title}</text>
<foreignObject x="{search:.0}" y="4" width="260" height="26"><input xmlns="http://www.w3.org/1999/xhtml" type="search" placeholder="search functions and files" aria-label="search functions and files"/></foreignObject>
<g class="reset gone" role="button" tabindex="-1"><text x="{reset:.0}" y="20">reset zoom</text></g>
<text class="facts" x="4" y="44">{}</text>"#,
        markup(&facts(total)),
        title = markup(&fit_end(title, 90, "…")),
        search = WIDTH - 262.0,
        reset = WIDTH - 350.0,
    );
    let mut drawn = Drawing { svg: &mut svg, sources, measure, total };
    drawn.frame(0, 0, 0, "all", 'l', "all\nevery block on the device", total, 0);
    // Depth first, with the start of each call.
    let mut to_do: Vec<(u32, usize, u64)> = Vec::new();
    drawn.put_off(&mut to_do, tree, &tree.roots, 1, 0);
    while let Some((index, row, start)) = to_do.pop() {
        let call = &tree.calls[index as usize];
        if row > rows || measure.of(&call.inclusive) < least {
            continue;
        }
        drawn.call(call, row, start);
        drawn.put_off(&mut to_do, tree, &call.children, row + 1, start);
    }
    if dropped > 0 {
        let _ = writeln!(
            svg,
            r#"<text class="foot" x="4" y="{:.0}">{} too small to draw: each below {} or deeper than {MAX_DEPTH} calls</text>"#,
            height - 8.0,
            if dropped == 1 { "1 call is".to_owned() } else { format!("{} calls are", format::grouped(dropped)) },
            size(least)
        );
    }
    svg += "</svg>\n";
    svg
}

fn facts(total: u64) -> String {
    if total == 0 {
        return "nothing was allocated".to_owned();
    }
    let total = size(total);
    format!("{total} · your code in colour, by file; libraries in grey · click or Enter: zoom, Esc: back")
}

/// Selection of the drawn calls.
struct DrawnCalls {
    /// Minimum bytes of a drawn call.
    least: u64,
    /// Number of calls with memory that are not drawn.
    dropped: u64,
    /// Number of rows below the first.
    rows: usize,
}

fn choose(tree: &CallTree, measure: Measure, total: u64, most: usize) -> DrawnCalls {
    let mut depths: Vec<usize> = Vec::with_capacity(tree.calls.len());
    for call in &tree.calls {
        depths.push(call.parent.map_or(1, |parent| depths[parent as usize] + 1));
    }
    let sizes: Vec<u64> = tree.calls.iter().map(|call| measure.of(&call.inclusive)).collect();
    let mut least = ((total as f64 * MIN_CALL_WIDTH / WIDTH).ceil() as u64).max(1);
    let mut largest: Vec<u64> = sizes.iter().copied().filter(|size| *size >= least).collect();
    if largest.len() > most {
        largest.sort_unstable_by_key(|size| Reverse(*size));
        // A caller holds at least as much as its calls, so every drawn call has its caller.
        least = largest[most].saturating_add(1);
    }
    let is_drawn = |index: usize| sizes[index] >= least && depths[index] <= MAX_DEPTH;
    let dropped = (0..sizes.len()).filter(|index| sizes[*index] > 0 && !is_drawn(*index)).count() as u64;
    let rows = (0..sizes.len()).filter(|index| is_drawn(*index)).map(|index| depths[index]).max().unwrap_or(0);
    DrawnCalls { least, dropped, rows }
}

/// Draws frames.
struct Drawing<'s> {
    svg: &'s mut String,
    sources: &'s Sources,
    measure: Measure,
    total: u64,
}

impl Drawing<'_> {
    /// Pushes the calls made from one place on the stack, the first on top.
    fn put_off(&self, to_do: &mut Vec<(u32, usize, u64)>, tree: &CallTree, calls: &[u32], row: usize, start: u64) {
        let mut start = start;
        let from = to_do.len();
        for index in calls {
            to_do.push((*index, row, start));
            start = start.saturating_add(self.measure.of(&tree.calls[*index as usize].inclusive));
        }
        to_do[from..].reverse();
    }

    fn call(&mut self, call: &Call, row: usize, start: u64) {
        let (bytes, own) = (self.measure.of(&call.inclusive), self.measure.of(&call.own));
        let Some(line) = call.line.as_deref() else {
            let title = "(no Python line)\nno Python frame: other threads, C++";
            return self.frame(row, start, own, "(no Python line)", 'l', title, bytes, 0);
        };
        let name = name(line);
        let place = line.line.map_or_else(|| line.file.to_string(), |number| format!("{}:{number}", line.file));
        let mut title = format!("{name}\n{}", clean(&fit_end(&place, MAX_NAME_COLUMNS, "…")));
        let mut label = name;
        if let Some(source) = line.line.and_then(|number| self.sources.line(&line.file, number)) {
            let source = clean(source.trim());
            let _ = write!(title, "\n{}", fit(&source, MAX_NAME_COLUMNS, "…"));
            let _ = write!(label, "   {source}");
        }
        let (class, colours) = if call.is_users() { ('u', USERS) } else { ('l', LIBRARIES) };
        self.frame(row, start, own, &label, class, &title, bytes, hash(&line.file) % colours);
    }

    #[expect(clippy::too_many_arguments, reason = "all that a frame is, once")]
    fn frame(
        &mut self,
        row: usize,
        start: u64,
        own: u64,
        name: &str,
        class: char,
        title: &str,
        bytes: u64,
        colour: u32,
    ) {
        let scale = if self.total > 0 { WIDTH / self.total as f64 } else { 0.0 };
        let (x, width) = (start as f64 * scale, bytes as f64 * scale);
        let mut share = format!("{} ({})", size(bytes), format::percent(bytes, self.total));
        if own > 0 && own < bytes {
            let _ = write!(share, ", {} of it by this line itself", size(own));
        }
        let room = ((width - 8.0) / ADVANCE).max(0.0) as usize;
        let label = if room < 3 { "".into() } else { fit(name, room, "…") };
        let _ = writeln!(
            self.svg,
            r#"<svg class="f {class} {class}{colour}" data-d="{row}" data-b="{bytes}" x="{x:.4}" y="{y:.0}" width="{width:.4}" height="{ROW:.0}"><title>{title}
{share}</title><rect width="100%" height="100%"/><text x="4" y="13">{label}</text></svg>"#,
            y = HEAD + row as f64 * ROW,
            title = title.split('\n').map(markup).collect::<Vec<_>>().join("\n"),
            share = markup(&share),
            label = markup(&label),
        );
    }
}

/// `Block.forward  train_gpt.py:43`, on one line.
fn name(line: &Line) -> String {
    let file = line.file.rsplit('/').next().unwrap_or(&line.file);
    let function = line.function.rsplit("<locals>.").next().unwrap_or(&line.function);
    let number = line.line.map_or_else(String::new, |number| format!(":{number}"));
    let name =
        format!("{}  {}{number}", fit_end(function, MAX_NAME_COLUMNS, "…"), fit_end(file, MAX_NAME_COLUMNS, "…"));
    clean(&name).into_owned()
}

/// FNV-1a: the same colour for the same file in every picture.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use memlab_trace::{Model, decode_line};

    use super::*;

    fn tree(names: &[(&str, &str)], sizes: &[u64]) -> CallTree {
        let mut model = Model::new();
        let mut say = |line: String| model.apply(decode_line(line.as_bytes()).unwrap());
        for (id, (file, function)) in (1..).zip(names) {
            let text = |text: &str| serde_json::to_string(text).unwrap();
            say(format!(r#"{{"frame":{id},"file":{},"line":{id},"function":{}}}"#, text(file), text(function)));
            say(format!(r#"{{"stack":{id},"parent":{},"frame":{id}}}"#, u64::from(id > 1)));
        }
        for (id, bytes) in (1_u64..).zip(sizes) {
            say(format!(r#"["a",{id},1,0,{},{bytes},{id},0,0]"#, id << 40));
        }
        model.calls(0)
    }

    /// Names of all elements in order; panics on malformed XML.
    fn elements(svg: &str) -> Vec<String> {
        let mut open = Vec::new();
        let mut names = Vec::new();
        let mut rest = svg.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>").unwrap_or(svg);
        while let Some(at) = rest.find('<') {
            assert!(!rest[..at].contains('>'), "{rest}");
            rest = &rest[at + 1..];
            if let Some(data) = rest.strip_prefix("![CDATA[") {
                rest = data.split_once("]]>").unwrap().1;
                continue;
            }
            let (tag, after) = rest.split_once('>').unwrap();
            rest = after;
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(name), "{svg}");
                continue;
            }
            let name = tag.split([' ', '/']).next().unwrap();
            assert!(name.chars().all(|character| character.is_ascii_alphabetic()), "{name:?}");
            assert!(tag.matches('"').count() % 2 == 0, "{tag}");
            names.push(name.to_owned());
            if !tag.ends_with('/') {
                open.push(name.to_owned());
            }
        }
        assert!(open.is_empty(), "{open:?}");
        names
    }

    /// Class, depth and bytes of each frame.
    fn frames(svg: &str) -> Vec<(String, usize, u64)> {
        let part = |line: &str, from: &str| line.split_once(from).unwrap().1.split('"').next().unwrap().to_owned();
        let frame = |line: &str| {
            let (depth, bytes) = (part(line, "data-d=\""), part(line, "data-b=\""));
            (part(line, "class=\"f "), depth.parse().unwrap(), bytes.parse().unwrap())
        };
        svg.lines().filter(|line| line.starts_with("<svg class=\"f ")).map(frame).collect()
    }

    #[test]
    fn calls_are_as_wide_as_what_they_hold() {
        // GIVEN a main that called the user's code and a library
        let names = [("/gpt/train.py", "main"), ("/gpt/model.py", "GPT.forward"), ("/v/site-packages/x.py", "f")];
        let svg = flamegraph(&tree(&names, &[100, 600, 300]), &Sources::default(), Measure::AtPeak, "a title");
        // THEN they are drawn with all their memory, largest first
        let drawn = frames(&svg);
        let expected = [(0, 1000), (1, 1000), (2, 600), (2, 300)];
        assert_eq!(drawn.iter().map(|(_, depth, bytes)| (*depth, *bytes)).collect::<Vec<_>>(), expected);
        // AND the user's code is distinct from the library's
        let classes: Vec<char> = drawn.iter().filter_map(|(class, ..)| class.chars().next()).collect();
        assert_eq!(classes, ['l', 'u', 'u', 'l']);
        assert!(svg.contains(r#"x="720.0000" y="94" width="360.0000""#), "{svg}");
        assert!(svg.contains("main  train.py:1\n/gpt/train.py:1\n1000 B (100 %), 100 B of it by this line itself"));
        elements(&svg);
    }

    #[test]
    fn a_call_has_the_text_of_its_line() {
        // GIVEN a trace with the text of one of two lines
        let mut model = Model::new();
        model.apply(decode_line(br#"{"source":"/gpt/train.py","line":1,"text":"  loss = model(<x>)"}"#).unwrap());
        let names = [("/gpt/train.py", "main"), ("/gpt/model.py", "GPT.forward")];
        let svg = flamegraph(&tree(&names, &[100, 600]), model.sources(), Measure::AtPeak, "t");
        // THEN it stands in the frame and in its tooltip
        assert!(svg.contains("main  train.py:1\n/gpt/train.py:1\nloss = model(&lt;x&gt;)\n700 B"), "{svg}");
        assert!(svg.contains(">main  train.py:1   loss = model(&lt;x&gt;)<"), "{svg}");
        elements(&svg);
    }

    #[test]
    fn names_can_do_no_harm() {
        // GIVEN names that are markup, end sections, control terminals and never end
        let long = "x".repeat(100_000);
        let names = [
            ("/</title><script>alert(1)</script>", "]]></svg><script>"),
            ("/\u{1b}[2J\u{0}\u{ffff}", "a\"b'c&d;\n"),
            ("/very/long", &long),
        ];
        let hostile = flamegraph(&tree(&names, &[1, 2, 3]), &Sources::default(), Measure::Live, "<b>\u{7}\"");
        // THEN the picture has the same elements as with harmless names
        let harmless = flamegraph(
            &tree(&[("/a", "b"), ("/c", "d"), ("/e", "f")], &[1, 2, 3]),
            &Sources::default(),
            Measure::Live,
            "t",
        );
        assert_eq!(elements(&hostile), elements(&harmless));
        assert!(!hostile.contains(['\u{1b}', '\u{0}', '\u{7}', '\u{ffff}']) && hostile.len() < harmless.len() + 4000);
    }

    #[test]
    fn omitted_calls_are_counted() {
        let names = [("/a.py", "a"), ("/b.py", "b"), ("/c.py", "c"), ("/d.py", "d")];
        let tree = tree(&names, &[1_000_000, 900, 10, 9]);
        assert!(
            drawing(&tree, &Sources::default(), Measure::AtPeak, "", 100)
                .contains(">2 calls are too small to draw: each below 251 B ")
        );
        // Above the maximum number of calls, only the largest are drawn.
        let few = drawing(&tree, &Sources::default(), Measure::AtPeak, "", 1);
        assert_eq!(frames(&few).len(), 2, "{few}");
        assert!(few.contains("3 calls are too small"));
    }

    #[test]
    fn nothing_is_a_picture_too() {
        let svg = flamegraph(&CallTree::default(), &Sources::default(), Measure::Live, "empty");
        assert_eq!(frames(&svg), [("l l0".to_owned(), 0, 0)]);
        assert!(svg.contains("nothing was allocated"));
        elements(&svg);
    }
}
