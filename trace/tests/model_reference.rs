//! The model against a slow reference implementation, on random programs.

use crate::common;
use crate::reference;
use std::collections::BTreeMap;

use crate::common::{all_views, encode_record};
use crate::reference::{DRIVER_KIND, Event, Reference};
use memlab_trace::record::*;
use memlab_trace::{Category, Model, Record, Scope, decode_line};
use proptest::prelude::*;

/// Stacks 1 and 2 lead to line 10 (2 through torch), 3 to line 20, 4 to PyTorch's line 5; 5 and 6 are a loop without a
/// line.
const NAMES: &[&str] = &[
    r#"{"memlab":1,"version":"0.1.0","pid":1}"#,
    r#"{"software":"torch","version":"2.15.0","root":"/opt/torch/"}"#,
    r#"{"frame":1,"file":"/home/ada/a.py","line":10,"function":"f"}"#,
    r#"{"frame":2,"file":"/home/ada/b.py","line":20,"function":"g"}"#,
    r#"{"frame":3,"file":"/opt/torch/nn/linear.py","line":5,"function":"forward"}"#,
    r#"{"frame":4,"file":"/venv/site-packages/hf/x.py","line":6,"function":"run"}"#,
    r#"{"stack":1,"parent":0,"frame":1}"#,
    r#"{"stack":2,"parent":7,"frame":3}"#,
    r#"{"stack":7,"parent":1,"frame":4}"#,
    r#"{"stack":3,"parent":1,"frame":2}"#,
    r#"{"stack":4,"parent":0,"frame":3}"#,
    r#"{"stack":5,"parent":6,"frame":3}"#,
    r#"{"stack":6,"parent":5,"frame":4}"#,
    r#"{"layer":1,"parent":0,"type":"Net","name":""}"#,
    r#"{"layer":2,"parent":1,"type":"Linear","name":"fc"}"#,
    r#"{"layer":3,"parent":2,"type":"ReLU","name":null}"#,
    r#"{"layer":4,"parent":0,"type":"Other","name":""}"#,
    r#"{"range":1,"parent":0,"name":"step"}"#,
    r#"{"range":2,"parent":1,"name":"forward"}"#,
    r#"{"range":3,"parent":0,"name":"forward"}"#,
];

fn line_of(stack: u32) -> u32 {
    match stack {
        1 | 2 => 10,
        3 => 20,
        4 => 5,
        _ => 0,
    }
}

fn line_with_libraries(stack: u32) -> u32 {
    if matches!(stack, 2 | 5 | 6) { 6 } else { line_of(stack) }
}

fn range_path(range: u32) -> String {
    ["", "step", "step/forward", "forward"][range as usize].to_owned()
}

fn layer_row(layer: u32) -> (u32, Option<&'static str>) {
    match layer {
        0 => (0, None),
        1 => (1, Some("")),
        2 => (1, Some("fc")),
        3 => (1, Some("<Net.Linear.ReLU>")),
        4 => (4, Some("")),
        _ => unreachable!(),
    }
}

fn record(event: &Event, time: u64) -> Record<'static> {
    match *event {
        Event::Alloc { thread, device, address, bytes, stack, layer, flags } => {
            Record::Alloc(Alloc { time, thread, device, address, bytes, stack, layer, flags: Flags(flags) })
        }
        Event::Free { thread, device, address } => Record::Free(Free { time, thread, device, address }),
        Event::Tag { device, address, category, bytes, root, name } => {
            Record::Tag(Tag { time, device, address, category, bytes, root, name: name.into(), shard: "".into() })
        }
        Event::InRange { thread, range } => Record::InRange(InRange { time, thread, range }),
        Event::Step { thread } => Record::Step(Step { time, thread, index: time, is_untimed: false }),
        Event::DriverAlloc { device, address, bytes, segment } => Record::DriverAlloc(DriverAlloc {
            time,
            device,
            address,
            bytes,
            kind: DRIVER_KIND,
            library: "libcublas.so.13".into(),
            flags: Flags(if segment { Flags::SEGMENT } else { 0 }),
            ..DriverAlloc::default()
        }),
        Event::DriverFree { device, address } => {
            Record::DriverFree(DriverFree { time, thread: 1, device, address, kind: DRIVER_KIND })
        }
        Event::Used { device, used, process } => Record::Used(Used { time, device, used, total: 1 << 40, process }),
    }
}

fn event() -> impl Strategy<Value = Event> {
    let thread = || 1..3_u32;
    let device = || prop_oneof![4 => Just(0), 1 => Just(1)];
    let address = || (0..12_u64).prop_map(|slot| 0x7000_0000 + slot * 0x1_0000);
    let bytes = || (1..20_u64).prop_map(|pages| pages * 512);
    const KEPT: [u32; 9] = [256, 257, 258, 257 | 8192, 258 | 8192, 258 | 16384, 257 | 32768, 65536, 1 | 65536];
    const OTHERS: [u32; 19] = [0, 0, 4, 1, 1, 5, 5, 5, 2, 2, 2 | 16, 2 | 16, 2 | 32, 3, 3, 8, 1 | 8, 64, 2 | 8];
    let flags = prop_oneof![6 => prop::sample::select(&OTHERS[..]), 1 => prop::sample::select(&KEPT[..])];
    // A gradient of the same size and name at another address is the same gradient.
    let size = prop_oneof![2 => Just(1000_u64), 1 => 1..5000_u64];
    let category = prop::sample::select(vec![
        TagCategory::Parameter,
        TagCategory::Gradient,
        TagCategory::Gradient,
        TagCategory::OptimizerState,
        TagCategory::Buffer,
        TagCategory::Input,
    ]);
    let name = prop::sample::select(vec![
        "fc.weight",
        "fc.weight",
        "fc.bias",
        "weight",
        "h.0.weight:exp.avg",
        "fc.weight:step",
    ]);
    prop_oneof![
        12 => (thread(), device(), address(), bytes(), 0..7_u32, 0..5_u32, flags).prop_map(
            |(thread, device, address, bytes, stack, layer, flags)| Event::Alloc {
                thread, device, address, bytes, stack, layer, flags
            }
        ),
        9 => (thread(), device(), address()).prop_map(|(thread, device, address)| Event::Free { thread, device, address }),
        6 => (device(), address(), 0..3_u64, category, size, prop::sample::select(vec![0, 1, 1, 4]), name).prop_map(
            |(device, address, inside, category, bytes, root, name)| Event::Tag {
                device, address: address + inside * 700, category, bytes, root, name
            }
        ),
        2 => thread().prop_map(|thread| Event::Step { thread }),
        3 => (thread(), 0..4_u32).prop_map(|(thread, range)| Event::InRange { thread, range }),
        2 => (device(), 0..4_u64, any::<bool>()).prop_map(|(device, slot, segment)| Event::DriverAlloc {
            device, address: 0x7000_0000 + slot * 0x4_0000, bytes: 0x4_0000, segment
        }),
        1 => (device(), 0..4_u64).prop_map(|(device, slot)| Event::DriverFree { device, address: 0x7000_0000 + slot * 0x4_0000 }),
        1 => (device(), 0..1_u64 << 22, any::<Option<u32>>()).prop_map(|(device, used, process)| Event::Used {
            device, used: used + (1 << 20), process: process.map(|process| u64::from(process) % (1 << 21))
        }),
    ]
}

fn trained(step: u64) -> Trained {
    let loss = (!step.is_multiple_of(3)).then(|| Loss(1.0 / step as f64));
    let way = Some(if step.is_multiple_of(2) { "replay" } else { "lockstep" }.to_owned());
    Trained { trained: step, samples: step % 7, duration: step, loss, way, offloaded: step, ..Trained::default() }
}

fn lines_of(events: &[Event]) -> Vec<Vec<u8>> {
    let names = NAMES.iter().map(|line| line.as_bytes().to_vec());
    let mut last_step = None;
    let events = events.iter().enumerate().flat_map(|(time, event)| {
        let time = time as u64 * 1000;
        // The training progress of a step arrives after the next step.
        let says = matches!(event, Event::Step { .. }).then(|| last_step.replace(time)).flatten();
        let trained = says.map(|step| Record::Trained(trained(step)));
        std::iter::once(record(event, time)).chain(trained).map(|record| encode_record(&record))
    });
    names.chain(events).collect()
}

fn check(model: &Model, reference: &Reference, events: usize) -> Result<(), TestCaseError> {
    for device in 0..2 {
        let Some(view) = model.device(device) else { continue };
        let peak = reference.peak(device);
        let last = events.checked_sub(1);
        prop_assert_eq!(view.allocated_bytes, last.map_or(0, |at| reference.allocated(device, at)));
        prop_assert_eq!(view.peak_allocated_bytes, peak.map_or(0, |at| reference.allocated(device, at)));
        if let Some(peak) = peak {
            prop_assert_eq!(view.peak_time, peak as u64 * 1000);
        }

        // Categories, now and at the peak, and their sum.
        let categories = model.categories(device);
        let [now, at_peak] = reference.by_category(device);
        let driver_own = |category| matches!(category, Category::Cached | Category::Context | Category::OtherProcesses);
        let libraries: u64 = model.driver_memory(device).iter().map(|held| held.live_bytes).sum();
        for view in categories.iter().filter(|view| !driver_own(view.category)) {
            let libraries = if view.category == Category::Workspace { libraries } else { 0 };
            let expected = now.get(&view.category).copied().unwrap_or(0);
            prop_assert_eq!(view.bytes, expected + libraries, "{:?}", view.category);
            if view.category != Category::Workspace {
                let expected = at_peak.get(&view.category).copied().unwrap_or(0);
                prop_assert_eq!(view.bytes_at_peak, expected, "{:?} at the peak", view.category);
            }
        }
        prop_assert_eq!(categories.iter().map(|view| view.bytes).sum::<u64>(), view.used_bytes);
        prop_assert_eq!(categories.iter().map(|view| view.bytes_at_peak).sum::<u64>(), view.used_bytes_at_peak);
        prop_assert!(view.peak_used_bytes >= view.used_bytes);

        // Lines, of either scope.
        for (scope, line_of) in
            [(Scope::Users, line_of as fn(u32) -> u32), (Scope::Libraries, line_with_libraries as fn(u32) -> u32)]
        {
            let [now, at_peak, most] = reference.by_line(device, line_of);
            let [backward_now, backward_at_peak] = reference.backward_by_line(device, line_of);
            let lines = model.lines_in(device, scope);
            let by = |value: fn(&memlab_trace::LineView) -> u64| -> BTreeMap<u32, u64> {
                let number = |view: &memlab_trace::LineView| view.line.as_ref().and_then(|line| line.line).unwrap_or(0);
                lines.iter().map(|view| (number(view), value(view))).filter(|(_, bytes)| *bytes > 0).collect()
            };
            prop_assert_eq!(by(|view| view.live_bytes), now);
            prop_assert_eq!(by(|view| view.live_bytes_at_peak), at_peak);
            prop_assert_eq!(by(|view| view.peak_live_bytes), most);
            prop_assert_eq!(by(|view| view.backward_bytes), backward_now);
            prop_assert_eq!(by(|view| view.backward_bytes_at_peak), backward_at_peak);
        }

        // Stacks.
        let [now, at_peak] = reference.by_stack(device);
        let by = |value: fn(&memlab_trace::StackView) -> u64| -> BTreeMap<u32, u64> {
            let stacks = model.stacks(device);
            stacks.iter().map(|view| (view.stack, value(view))).filter(|(_, bytes)| *bytes > 0).collect()
        };
        prop_assert_eq!(by(|view| view.live_bytes), now);
        prop_assert_eq!(by(|view| view.live_bytes_at_peak), at_peak);

        // Tensors.
        let tensors: Vec<_> =
            model.blocks(device).iter().flat_map(|block| model.tensors_in(device, block.address)).collect();
        let known =
            tensors.iter().map(|view| (view.address, view.category, reference::rounded(view.bytes), &*view.name));
        prop_assert_eq!(known.collect::<Vec<_>>(), reference.tensors(device));

        check_layers(model, reference, device)?;
        check_ranges(model, reference, device)?;

        // Segments contain their blocks, and the rest is free.
        let map = model.segments(device);
        for segment in &map.segments {
            let mut at = segment.address;
            for block in &segment.blocks {
                prop_assert!(block.address >= at && block.address < segment.address + segment.bytes);
                at = block.address + block.bytes;
            }
        }
        prop_assert_eq!(map.reserved_bytes, view.reserved_bytes);
    }
    Ok(())
}

fn check_layers(model: &Model, reference: &Reference, device: i32) -> Result<(), TestCaseError> {
    let layers = model.layers(device);
    let by = |value: fn(&memlab_trace::LayerView) -> u64| -> BTreeMap<(u32, Option<String>), u64> {
        let rows = layers.iter().map(|view| ((view.root, view.name.as_deref().map(str::to_owned)), value(view)));
        rows.filter(|(_, bytes)| *bytes > 0).collect()
    };
    let owned = |rows: BTreeMap<(u32, Option<&str>), u64>| -> BTreeMap<(u32, Option<String>), u64> {
        rows.into_iter().map(|((root, name), bytes)| ((root, name.map(str::to_owned)), bytes)).collect()
    };
    let [now, at_peak] = reference.by_layer(device, layer_row);
    prop_assert_eq!(by(|view| view.live_bytes), owned(now));
    prop_assert_eq!(by(|view| view.live_bytes_at_peak), owned(at_peak));

    let asked = |value: &dyn Fn(u32) -> u64| -> BTreeMap<(u32, Option<String>), u64> {
        let rows = (0..5).map(|layer| (layer_row(layer), value(layer))).filter(|(_, bytes)| *bytes > 0);
        owned(rows.collect())
    };
    prop_assert_eq!(
        by(|view| view.forward_bytes),
        asked(&|layer| reference.allocated_in(device, Phase::Forward, layer))
    );
    prop_assert_eq!(
        by(|view| view.backward_bytes),
        asked(&|layer| reference.allocated_in(device, Phase::Backward, layer))
    );
    prop_assert_eq!(by(|view| view.activation_bytes), asked(&|layer| reference.most_activation(device, layer)));

    let tagged = |category| {
        let rows = reference.most_tagged(device, category).into_iter();
        owned(rows.map(|((root, name), bytes)| ((root, Some(name)), bytes)).collect())
    };
    prop_assert_eq!(by(|view| view.parameter_bytes), tagged(TagCategory::Parameter));
    prop_assert_eq!(by(|view| view.gradient_bytes), tagged(TagCategory::Gradient));
    prop_assert_eq!(by(|view| view.optimizer_state_bytes), tagged(TagCategory::OptimizerState));
    prop_assert_eq!(by(|view| view.buffer_bytes), tagged(TagCategory::Buffer));
    Ok(())
}

fn check_ranges(model: &Model, reference: &Reference, device: i32) -> Result<(), TestCaseError> {
    let ranges = model.ranges(device);
    let [now, at_peak, allocated] = reference.by_range(device, range_path);
    if allocated.keys().all(String::is_empty) {
        prop_assert!(ranges.is_empty());
        return Ok(());
    }
    let by = |value: fn(&memlab_trace::RangeView) -> u64| -> BTreeMap<String, u64> {
        let rows = ranges.iter().map(|view| (view.path.join("/"), value(view)));
        rows.filter(|(_, bytes)| *bytes > 0).collect()
    };
    prop_assert_eq!(by(|view| view.live_bytes), now);
    prop_assert_eq!(by(|view| view.live_bytes_at_peak), at_peak.clone());
    prop_assert_eq!(by(|view| view.allocated_bytes), allocated);
    prop_assert_eq!(by(|view| view.categories_at_peak.iter().sum()), at_peak);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn the_model_agrees_with_the_reference(events in prop::collection::vec(event(), 0..80)) {
        let model = common::replay(lines_of(&events));
        check(&model, &Reference::new(&events), events.len())?;
    }

    #[test]
    fn late_definitions_change_nothing(events in prop::collection::vec(event(), 0..60)) {
        // GIVEN a trace with all its definitions at the end
        let lines = lines_of(&events);
        let (names, events) = lines.split_at(NAMES.len());
        let (header, names) = names.split_at(1);
        let late = common::replay(header.iter().chain(events).chain(names));
        let early = common::replay(&lines);
        // THEN the views are the same, except for the peak of each line, which is close
        for device in 0..2 {
            let without_peaks = |model: &Model, scope| {
                let mut lines = model.lines_in(device, scope);
                lines.iter_mut().for_each(|view| view.peak_live_bytes = 0);
                lines.sort_by(|a, b| a.line.cmp(&b.line));
                lines
            };
            for scope in [Scope::Users, Scope::Libraries] {
                prop_assert_eq!(without_peaks(&late, scope), without_peaks(&early, scope));
                prop_assert_eq!(late.growth_in(device, scope).len(), early.growth_in(device, scope).len());
            }
            prop_assert_eq!(late.layers(device), early.layers(device));
            prop_assert_eq!(late.ranges(device), early.ranges(device));
            prop_assert_eq!(late.categories(device), early.categories(device));
        }
    }

    #[test]
    fn a_keyframe_replaces_the_lines_before_it(
        events in prop::collection::vec(event(), 0..80),
        cut in any::<prop::sample::Index>(),
        names in 0..NAMES.len(),
    ) {
        // GIVEN a trace with some late definitions, and a position in it
        let mut lines = lines_of(&events);
        let late: Vec<_> = lines.drain(1 + names..NAMES.len().max(1 + names)).collect();
        let half = lines.len() / 2;
        lines.splice(half..half, late);
        let cut = 1 + cut.index(lines.len());
        let before = common::replay(&lines[..cut]);
        // WHEN the lines before that position are replaced by a keyframe
        let mut keyframe = Vec::new();
        before.write_keyframe(&mut keyframe).unwrap();
        let keyframe: Vec<Vec<u8>> = keyframe.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        let short = common::replay(lines[..1].iter().chain(&keyframe).chain(&lines[cut..]));
        // THEN it replays to the same views
        prop_assert_eq!(all_views(&short), all_views(&common::replay(&lines)));
        // AND a keyframe of that replays to the same views again
        let restored = common::replay(lines[..1].iter().chain(&keyframe));
        prop_assert_eq!(all_views(&restored), all_views(&before));
    }

    #[test]
    fn damaged_keyframes_are_harmless(
        events in prop::collection::vec(event(), 0..40),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u64>()), 1..12),
    ) {
        let lines = lines_of(&events);
        let mut keyframe = Vec::new();
        common::replay(&lines).write_keyframe(&mut keyframe).unwrap();
        let mut damaged: Vec<String> = String::from_utf8(keyframe).unwrap().lines().map(str::to_owned).collect();
        // GIVEN a keyframe with random numbers in some places, and some lines repeated or missing
        for (line, place, value) in damage {
            let at = line.index(damaged.len());
            let starts: Vec<usize> = damaged[at].match_indices(':').map(|(at, _)| at + 1).collect();
            let start = starts[place.index(starts.len())];
            let digits = damaged[at][start..].chars().take_while(char::is_ascii_digit).count();
            match value % 8 {
                0 => { damaged.remove(at); if damaged.is_empty() { damaged.push("{\"zz\":1}".into()); } }
                1 => { let copy = damaged[at].clone(); damaged.push(copy); }
                _ if digits > 0 => damaged[at].replace_range(start..start + digits, &(value >> (value % 61)).to_string()),
                _ => {}
            }
        }
        // WHEN it is replayed, and then all events once more
        let mut model = Model::new();
        for line in damaged.iter().map(String::as_bytes).chain(lines.iter().map(Vec::as_slice)) {
            if let Ok(record) = decode_line(line) {
                model.apply(record);
            }
        }
        // THEN the views can be computed without a panic
        let _ = all_views(&model);
        let _ = model.write_keyframe(&mut std::io::sink());
    }
}
