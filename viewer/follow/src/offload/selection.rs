//! Selects the memory of a running program to offload, by category, layer or idle time, and finds its pages.

pub mod pages;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use memlab_trace::record::Phase;
use memlab_trace::{BlockLayer, BlockView, Category, Line, Model, Record, Sink, read_whole};

use self::pages::{Block, Pages, whole_pages};
use memlab_base::error::bad_input;
use memlab_base::progress;
use memlab_units::format;

/// Criteria that selected memory must meet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Criteria {
    /// Wanted categories; empty: all.
    pub categories: Vec<Category>,
    /// Wanted layers, including the layers inside them; empty: all.
    pub layers: Vec<String>,
    /// Shortest time without use, in nanoseconds, as far as memlab can infer.
    pub idle_ns: Option<u64>,
}

/// Returns true if a layer is the wanted one or inside it.
///
/// As in a filter, part of a name such as `attn` matches anywhere. Only whole name components match, since the user typed
/// the complete text.
fn is_in_layer(name: &str, wanted: &str) -> bool {
    format!(".{name}.").contains(&format!(".{wanted}."))
}

impl Criteria {
    /// Returns true if there are no criteria.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Describes the criteria: `optimizer_state in layer h.3, idle for 10.0 s`.
    pub fn describe(&self) -> String {
        let names: Vec<&str> = self.categories.iter().map(|category| category.as_str()).collect();
        let mut words = names.join(" or ");
        if !self.layers.is_empty() {
            words += if words.is_empty() { "layer " } else { " in layer " };
            words += &self.layers.join(" or ");
        }
        if let Some(idle_ns) = self.idle_ns {
            words += if words.is_empty() { "memory" } else { "," };
            words += &format!(" idle for {}", format::duration(idle_ns));
        }
        words
    }

    /// Finds the pages of a process's memory that meet all criteria, from its trace; `now_unix_ns`: the present.
    ///
    /// # Errors
    ///
    /// If the trace cannot be read, or does not reach back far enough.
    pub fn pages(&self, trace: &Path, page_bytes: u64, now_unix_ns: u64) -> anyhow::Result<Pages> {
        if page_bytes == 0 {
            anyhow::bail!("the process does not report its page size: restart it with this memlab");
        }
        let mut activity = Activity::default();
        progress::report(|progress| read_whole(trace, &mut activity, progress))?;
        let start = activity.model.header().map_or(0, |header| header.start_unix_ns);
        let now = activity.model.time().max(now_unix_ns.saturating_sub(start));
        let idle = match self.idle_ns {
            None => None,
            Some(idle_ns) => Some(IdleMemory::new(&activity, now, idle_ns)?),
        };
        let model = &activity.model;
        let blocks = model.devices().into_iter().flat_map(|device| model.segments(device.index).segments);
        let blocks = blocks.flat_map(|segment| segment.blocks).map(|block| Block {
            address: block.address,
            bytes: block.bytes,
            is_wanted: self.wants(model, &block, idle.as_ref()),
        });
        Ok(whole_pages(blocks, page_bytes))
    }

    fn wants(&self, model: &Model, block: &BlockView, idle: Option<&IdleMemory>) -> bool {
        (self.categories.is_empty() || self.categories.contains(&block.category))
            && (self.layers.is_empty()
                || model
                    .layer_of(block)
                    .name
                    .is_some_and(|name| self.layers.iter().any(|layer| is_in_layer(&name, layer))))
            && idle.is_none_or(|idle| idle.is_idle(model, block))
    }
}

/// A model, with the time of the latest requests for memory.
#[derive(Default)]
struct Activity {
    model: Model,
    /// Latest request of each layer.
    layers: HashMap<u32, u64>,
    /// Latest request of each stack outside any layer.
    stacks: HashMap<u32, u64>,
    /// Time before which requests are unknown.
    known_since: u64,
}

impl Activity {
    fn note(&mut self, time: u64, layer: u32, stack: u32) {
        let last = if layer == 0 { self.stacks.entry(stack) } else { self.layers.entry(layer) }.or_default();
        *last = (*last).max(time);
    }
}

impl Sink for Activity {
    fn take(&mut self, record: Record<'_>) -> ControlFlow<()> {
        match &record {
            Record::Alloc(event) => self.note(event.time, event.layer, event.stack),
            Record::DriverAlloc(event) => self.note(event.time, event.layer, event.stack),
            _ => {}
        }
        let is_keyframe = matches!(record, Record::Keyframe(_));
        self.model.apply(record);
        if is_keyframe {
            self.known_since = self.model.time();
        }
        ControlFlow::Continue(())
    }

    fn model(&self) -> &Model {
        &self.model
    }

    fn restart(&mut self) {
        *self = Self::default();
    }
}

/// Infers idle memory from the layers and lines that still allocate: memlab does not see what kernels access.
struct IdleMemory {
    /// Memory used after this time is not idle.
    since: u64,
    layers: HashMap<BlockLayer, u64>,
    lines: HashMap<Option<Arc<Line>>, u64>,
    /// True if steps ended since then: they use optimizer state and gradients.
    steps: bool,
}

impl IdleMemory {
    fn new(activity: &Activity, now: u64, idle_ns: u64) -> anyhow::Result<Self> {
        let model = &activity.model;
        let since = now.saturating_sub(idle_ns);
        if activity.known_since > since {
            let ago = format::duration(now - activity.known_since);
            return Err(bad_input(format!(
                "the trace was condensed {ago} ago, and earlier use is no longer known: use --idle {} \
                 or less, or try again later",
                ago.replace(' ', "")
            )));
        }
        let mut layers: HashMap<BlockLayer, u64> = HashMap::new();
        for (layer, time) in &activity.layers {
            let asked = BlockView {
                address: 0,
                bytes: 0,
                category: Category::Other,
                stack: 0,
                layer: *layer,
                owner: 0,
                range: 0,
                phase: Phase::Other,
                time: *time,
            };
            let BlockLayer { root, name } = model.layer_of(&asked);
            let Some(name) = name else { continue };
            // A layer's use also counts for the layers around it.
            let mut around: &str = &name;
            loop {
                let key = BlockLayer { root, name: Some(around.into()) };
                let last = layers.entry(key).or_default();
                *last = (*last).max(*time);
                match around.rfind('.') {
                    Some(end) => around = &around[..end],
                    None if around.is_empty() => break,
                    None => around = "",
                }
            }
        }
        let mut lines: HashMap<Option<Arc<Line>>, u64> = HashMap::new();
        for (stack, time) in &activity.stacks {
            let last = lines.entry(model.line_of(*stack)).or_default();
            *last = (*last).max(*time);
        }
        let steps = model.steps().last().is_some_and(|step| step.end_time > since);
        Ok(Self { since, layers, lines, steps })
    }

    fn is_idle(&self, model: &Model, block: &BlockView) -> bool {
        if block.time > self.since
            || self.steps && matches!(block.category, Category::OptimizerState | Category::Gradient)
        {
            return false;
        }
        let layer = model.layer_of(block);
        let last = match layer.name {
            Some(_) => self.layers.get(&layer),
            None => self.lines.get(&model.line_of(block.stack)),
        };
        last.is_none_or(|last| *last <= self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MIB: u64 = 1 << 20;

    /// Builds a trace with two layers in a root and a line outside; times are seconds.
    fn pages(criteria: &Criteria, events: &[String]) -> anyhow::Result<Pages> {
        let mut text = String::new();
        for line in [
            r#"{"memlab":1,"pid":42,"start_unix_ns":0,"command":["python","train.py"]}"#,
            r#"{"device":0,"name":"GPU","total_bytes":1099511627776,"bus_id":null}"#,
            r#"{"frame":1,"file":"/train.py","line":1,"function":"main"}"#,
            r#"{"stack":1,"parent":0,"frame":1}"#,
            r#"{"frame":2,"file":"/train.py","line":2,"function":"main"}"#,
            r#"{"stack":2,"parent":0,"frame":2}"#,
            r#"{"layer":1,"parent":0,"type":"GPT","name":""}"#,
            r#"{"layer":2,"parent":1,"type":"Block","name":"h.1"}"#,
            r#"{"layer":3,"parent":2,"type":"MLP","name":"h.1.mlp"}"#,
            r#"{"layer":4,"parent":1,"type":"Block","name":"h.10"}"#,
            r#"["d+",0,1,0,0,1073741824,"device","cudaMalloc","libc10_cuda.so",1,0,128]"#,
        ]
        .into_iter()
        .chain(events.iter().map(String::as_str))
        {
            text += line;
            text.push('\n');
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        criteria.pages(file.path(), 2 * MIB, 100 * SECOND)
    }

    /// A block of 2 MiB at this position, in MiB; flags: its classification.
    fn alloc(seconds: u64, place: u64, stack: u32, layer: u32, flags: u32) -> String {
        format!("[\"a\",{},1,0,{},{},{stack},{layer},{flags}]", seconds * SECOND, place * MIB, 2 * MIB)
    }

    fn places(criteria: &Criteria, events: &[String]) -> Vec<(u64, u64)> {
        let pages = pages(criteria, events).unwrap();
        pages.ranges.iter().map(|(address, bytes)| (address / MIB, bytes / MIB)).collect()
    }

    /// Moved with a module; allocated in forward; allocated in the optimizer.
    const PARAMETER: u32 = 64;
    const FORWARD: u32 = 5;
    const OPTIMIZER: u32 = 3;

    #[test]
    fn criteria_must_all_hold_and_the_same_are_alternatives() {
        let events = [
            alloc(1, 0, 1, 2, FORWARD),
            alloc(1, 2, 1, 3, FORWARD),
            alloc(1, 4, 1, 4, FORWARD),
            alloc(1, 8, 1, 0, PARAMETER),
        ];
        let layers = |names: &[&str]| Criteria {
            layers: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Criteria::default()
        };
        // WHEN a layer is wanted THEN layers inside it are included, and layers with the same prefix are not
        assert_eq!(places(&layers(&["h.1"]), &events), [(0, 4)]);
        assert_eq!(places(&layers(&["h.1.mlp", "h.10"]), &events), [(2, 4)]);
        assert_eq!(places(&layers(&["mlp"]), &events), [(2, 2)]);
        assert_eq!(places(&layers(&["ml"]), &events), []);
        // AND categories restrict the selection too
        let parameters = Criteria { categories: vec![Category::Parameter], ..Criteria::default() };
        assert_eq!(places(&parameters, &events), [(8, 2)]);
        let both = Criteria { categories: vec![Category::Parameter, Category::Activation], ..layers(&["h.10"]) };
        assert_eq!(places(&both, &events), [(4, 2)]);
        assert_eq!(both.describe(), "parameter or activation in layer h.10");
    }

    #[test]
    fn idle_is_what_belongs_to_nobody_who_asks_for_memory() {
        let idle = Criteria { idle_ns: Some(10 * SECOND), ..Criteria::default() };
        assert_eq!(idle.describe(), "memory idle for 10.0 s");
        // GIVEN memory of h.1, h.1.mlp, h.10, two lines, and some young memory
        let events = [
            alloc(1, 0, 1, 2, FORWARD),
            alloc(1, 2, 1, 3, FORWARD),
            alloc(1, 4, 1, 4, FORWARD),
            alloc(1, 6, 1, 0, PARAMETER),
            alloc(1, 8, 2, 0, PARAMETER),
        ];
        assert_eq!(places(&idle, &events), [(0, 10)]);
        // WHEN h.1.mlp requests memory again THEN it is in use, and so is h.1, which calls it
        let with = |event: String| [&events[..], &[event]].concat();
        assert_eq!(places(&idle, &with(alloc(95, 20, 1, 3, FORWARD))), [(4, 6)]);
        // AND a line is in use when it requests memory outside layers
        assert_eq!(places(&idle, &with(alloc(95, 20, 2, 0, 0))), [(0, 8)]);
        // AND requests before the idle time do not count
        assert_eq!(places(&idle, &with(alloc(89, 20, 2, 0, 0))), [(0, 10), (20, 2)]);
    }

    #[test]
    fn steps_use_optimizer_state_and_gradients() {
        let idle = Criteria { idle_ns: Some(10 * SECOND), ..Criteria::default() };
        let step = |seconds: u64, index: u64| format!("[\"step\",{},1,{index}]", seconds * SECOND);
        // GIVEN state of an old step
        let events = vec![alloc(1, 0, 1, 0, OPTIMIZER), step(2, 0), alloc(3, 4, 2, 0, PARAMETER)];
        assert_eq!(places(&idle, &events), [(0, 2), (4, 2)]);
        // WHEN another step has just ended THEN the state is in use
        let events = [events, vec![step(99, 1)]].concat();
        assert_eq!(places(&idle, &events), [(4, 2)]);
    }

    #[test]
    fn a_condensed_trace_knows_less() {
        let mut model = Model::new();
        for line in [
            r#"{"memlab":1,"pid":42,"start_unix_ns":0,"command":["python","train.py"]}"#.to_owned(),
            r#"["d+",0,1,0,0,1073741824,"device","cudaMalloc","libc10_cuda.so",1,0,128]"#.to_owned(),
            alloc(95, 0, 0, 0, PARAMETER),
        ] {
            model.apply(memlab_trace::decode_line(line.as_bytes()).unwrap());
        }
        let mut keyframe = Vec::new();
        model.write_keyframe(&mut keyframe).unwrap();
        let events: Vec<String> = String::from_utf8(keyframe).unwrap().lines().map(str::to_owned).collect();
        let idle = |seconds: u64| Criteria { idle_ns: Some(seconds * SECOND), ..Criteria::default() };
        let error = pages(&idle(10), &events).unwrap_err().to_string();
        assert!(error.contains("condensed 5.00 s ago"), "{error}");
        assert_eq!(places(&idle(2), &events), [(0, 2)]);
    }
}
