//! Checks a replay of arbitrary bytes as a trace.
//!
//! The decoder and the model must not panic or hang, the views must add up, and a keyframe of the model must replay to the
//! same views.

use memlab_trace::{Model, Record, decode_line};

pub fn check(bytes: &[u8]) {
    let mut model = Model::new();
    let mut honest = true;
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Ok(record) = decode_line(line) {
            honest &= !matches!(record, Record::Keyframe(_));
            model.apply(record);
        }
    }
    let shown = views(&model, honest);
    let mut keyframe = Vec::new();
    model.write_keyframe(&mut keyframe).expect("writing to a vector does not fail");
    let mut restored = Model::new();
    for line in keyframe.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        restored.apply(decode_line(line).expect("the keyframe decodes"));
    }
    if honest {
        assert_eq!(views(&restored, true), shown);
    } else {
        views(&restored, false);
    }
}

/// Returns all views as text. Checks their sums if no keyframe of the input could make them inconsistent.
fn views(model: &Model, honest: bool) -> String {
    let mut text = format!("{:?}{:?}{:?}", model.steps(), model.ooms(), model.anomalies());
    for device in model.devices() {
        let index = device.index;
        let lines = model.lines(index);
        let layers = model.layers(index);
        if honest {
            assert_eq!(lines.iter().map(|view| view.live_bytes).sum::<u64>(), device.allocated_bytes);
            assert_eq!(layers.iter().map(|view| view.live_bytes).sum::<u64>(), device.allocated_bytes);
            assert_eq!(lines.iter().map(|view| view.live_bytes_at_peak).sum::<u64>(), device.peak_allocated_bytes);
        }
        text += &format!(
            "{device:?}{lines:?}{layers:?}{:?}{:?}{:?}{:?}{:?}",
            model.categories(index),
            model.timeline(index),
            model.segments(index),
            model.growth(index),
            model.driver_memory(index),
        );
    }
    text
}
