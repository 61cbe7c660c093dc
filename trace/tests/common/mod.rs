//! Helpers for several tests.

#![allow(dead_code, reason = "each test uses some of it")]

pub mod heap;

use memlab_trace::encode::{self, LineBuffer};
use memlab_trace::record::MeshDimension;
use memlab_trace::{Category, LayerView, LineView, Model, Record, Scope, decode_line};

/// Returns the encoded line of a record.
pub fn encode_record(record: &Record<'_>) -> Vec<u8> {
    let b = &mut LineBuffer::<8192>::new();
    let line: &[u8] = match record {
        Record::Header(h) => {
            let mut command = Vec::new();
            for argument in &h.command {
                command.extend_from_slice(argument.as_bytes());
                command.push(0);
            }
            let header = encode::Header {
                version: &h.version,
                id: &h.id,
                pid: h.pid,
                parent_pid: h.parent_pid,
                start_unix_ns: h.start_unix_ns,
                run: h.run.as_deref(),
                command: &command,
                directory: h.directory.as_bytes(),
                host: h.host.as_bytes(),
                rank: h.rank,
                local_rank: h.local_rank,
                world_size: h.world_size,
            };
            return encode::header(b, &header).to_vec();
        }
        Record::Device(d) => {
            encode::device(b, d.device, &d.name, d.total_bytes, d.bus_id.as_deref().map(str::as_bytes))
        }
        Record::Thread(t) => encode::thread(b, t.thread, t.tid, &t.name),
        Record::Software(s) => encode::software(b, &s.software, &s.version, &s.root),
        Record::CodeRoot(c) => encode::code_root(b, c.code, &c.root),
        Record::Frame(f) if f.stands_for.is_some() => {
            let known = f.stands_for.as_deref().unwrap_or_default();
            encode::compiled_frame(b, f.frame, f.file.as_bytes(), f.line, f.function.as_bytes(), known)
        }
        Record::Frame(f) => encode::frame(b, f.frame, f.file.as_bytes(), f.line, f.function.as_bytes()),
        Record::Source(s) => encode::source(b, s.source.as_bytes(), s.line, s.text.as_bytes()),
        Record::Stack(s) => encode::stack(b, s.stack, s.parent, s.frame),
        Record::Layer(l) => {
            let [name, variable] = [&l.name, &l.variable].map(|text| text.as_deref().map(str::as_bytes));
            encode::layer(b, l.layer, l.parent, &l.class, name, variable)
        }
        Record::Mesh(m) => {
            let dimension = |of: &'_ MeshDimension| (of.name.clone().into_bytes(), of.coordinate, of.size);
            let owned: Vec<_> = m.mesh.iter().map(dimension).collect();
            let dimensions: Vec<_> =
                owned.iter().map(|(name, coordinate, size)| (&**name, *coordinate, *size)).collect();
            encode::mesh(b, &dimensions)
        }
        Record::Stages(s) => encode::stages(b, &s.stages, s.of),
        Record::Requests(r) => encode::requests(b, r.requests, &r.asked).0,
        Record::Trained(t) => {
            let step = encode::Trained {
                step: t.trained,
                epoch: t.epoch,
                batch: t.batch,
                phase: t.phase.as_deref().map(str::as_bytes),
                samples: t.samples,
                duration: t.duration,
                loss: t.loss.map(|loss| loss.0),
                way: t.way.as_deref().map(str::as_bytes),
                pieces: t.pieces,
                offloaded: t.offloaded,
            };
            encode::trained(b, &step)
        }
        Record::Range(r) => encode::range(b, r.range, r.parent, &r.name),
        Record::Link(l) => encode::link(b, l.link, l.bytes_per_second),
        Record::Limit(l) => encode::limit(b, l.limit, l.bytes, &l.on_limit),
        Record::Others(o) => encode::others(b, o.others, &o.processes),
        Record::HolderSearch(search) => return encode::holder_search(search),
        Record::Holders(part) => return encode::holders_part(part),
        Record::Skip(to) => encode::skip(b, *to),
        Record::Warning(w) => encode::warning(b, w),
        Record::Alloc(a) => {
            encode::alloc(b, a.time, a.thread, a.device, a.address, a.bytes, a.stack, a.layer, a.flags.0)
        }
        Record::Free(f) => encode::free(b, f.time, f.thread, f.device, f.address),
        Record::DriverAlloc(d) => {
            let event = encode::DriverAlloc {
                time: d.time,
                thread: d.thread,
                device: d.device,
                address: d.address,
                bytes: d.bytes,
                kind: d.kind,
                call: d.call.as_bytes(),
                library: d.library.as_bytes(),
                stack: d.stack,
                layer: d.layer,
                flags: d.flags.0,
                graph: d.graph,
                stream: d.stream,
            };
            encode::driver_alloc(b, &event)
        }
        Record::DriverFree(d) => encode::driver_free(b, d.time, d.thread, d.device, d.address, d.kind),
        Record::GraphCaptured(g) => encode::graph_captured(b, g),
        Record::GraphGone(g) => encode::graph_gone(b, g),
        Record::Map(m) => encode::map(b, m.time, m.thread, m.device, m.address, m.bytes, m.handle),
        Record::Unmap(u) => encode::unmap(b, u.time, u.thread, u.device, u.address, u.bytes),
        Record::Oom(o) => {
            encode::oom(b, o.time, o.thread, o.device, o.requested, o.allocated, o.reserved, o.stack, o.layer)
        }
        Record::Tag(t) => {
            let (name, shard) = (t.name.as_bytes(), t.shard.as_bytes());
            encode::tag(b, t.time, t.device, t.address, t.category, t.bytes, t.root, name, shard)
        }
        Record::Step(s) => encode::step(b, s),
        Record::ReadBack(r) => encode::read_back(b, r.time, r.thread, r.bytes, r.stack),
        Record::Kernel(k) => encode::kernel(b, k.kernel, k.name.as_bytes()),
        Record::Work(w) => encode::work(b, w),
        Record::StepWork(w) => encode::step_work(b, w),
        Record::StepWait(w) => encode::step_wait(b, w),
        Record::Busy(w) => encode::busy(b, w.time, w.device, w.busy, w.waiting, w.idle),
        Record::Ran(r) => encode::ran(b, r),
        Record::InRange(r) => encode::in_range(b, r.time, r.thread, r.range),
        Record::Used(u) => encode::used(b, u.time, u.device, u.used, u.total, u.process),
        Record::Lost(l) => encode::lost(b, l.time, l.events),
        Record::Moved(m) => encode::moved(b, m.time, m.device, m.bytes),
        Record::End(e) => encode::end(b, e.time, e.code, e.signal),
        Record::Keyframe(_) | Record::Unknown => panic!("the encoder writes no such record"),
    };
    line.to_vec()
}

/// Returns a model that has replayed these lines.
pub fn replay<L: AsRef<[u8]>>(lines: impl IntoIterator<Item = L>) -> Model {
    let mut model = Model::new();
    for line in lines {
        let line = line.as_ref();
        let record = decode_line(line).unwrap_or_else(|error| panic!("{}: {error}", String::from_utf8_lossy(line)));
        model.apply(record);
    }
    model
}

/// Returns all views of a model as text, to compare two models.
pub fn all_views(model: &Model) -> String {
    let mut text = format!(
        "{:?} {:?} {} {} {} {:?}\n{:?}\n{:?}\n{:?}\n{:?}\n",
        model.end(),
        model.anomalies(),
        model.time(),
        model.events(),
        model.steps_ended(),
        model.phase(),
        model.devices(),
        model.steps(),
        model.steps().iter().map(|step| model.training(step)).collect::<Vec<_>>(),
        model.ooms(),
    );
    for device in -1..4 {
        text += &format!(
            "{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n",
            model.ranges(device),
            model.lines(device),
            model.lines_in(device, Scope::Libraries),
            model.growth_in(device, Scope::Libraries),
            model.layers(device),
            model.categories(device),
            model.timeline(device),
            model.segments(device),
            model.stacks(device),
            model.driver_memory(device),
            model.device_steps(device),
            model.growth(device),
            model.accumulations(device),
            model.gpu_work(device),
            model.step_work(device),
            model.device_steps(device).iter().map(|step| model.step_wait(step)).collect::<Vec<_>>(),
        );
    }
    text
}

/// The definitions of a small training.
pub const NAMES: &[&str] = &[
    r#"{"memlab":1,"version":"0.1.0","pid":4242,"command":["python","train.py"],"directory":"/home/ada/gpt"}"#,
    r#"{"device":0,"name":"NVIDIA H200","total_bytes":1048576,"bus_id":"0000:1B:00.0"}"#,
    r#"{"software":"torch","version":"2.15.0","root":"/src/pytorch/torch"}"#,
    r#"{"frame":1,"file":"/home/ada/gpt/train.py","line":31,"function":"main"}"#,
    r#"{"frame":2,"file":"/home/ada/gpt/model.py","line":12,"function":"MLP.forward"}"#,
    r#"{"frame":3,"file":"/src/pytorch/torch/nn/modules/linear.py","line":134,"function":"Linear.forward"}"#,
    r#"{"frame":4,"file":"/usr/lib/python3/dist-packages/apex/x.py","line":9,"function":"step"}"#,
    r#"{"frame":5,"file":"/src/pytorch/torchvision_mine.py","line":7,"function":"mine"}"#,
    r#"{"stack":1,"parent":0,"frame":1}"#,
    r#"{"stack":2,"parent":1,"frame":2}"#,
    r#"{"stack":3,"parent":2,"frame":3}"#,
    r#"{"stack":4,"parent":1,"frame":4}"#,
    r#"{"stack":5,"parent":1,"frame":5}"#,
    r#"{"layer":3,"parent":0,"type":"GPT","name":""}"#,
    r#"{"layer":7,"parent":3,"type":"Linear","name":"h.0.mlp.fc"}"#,
];

/// Returns a model that has replayed [`NAMES`] and these events.
pub fn model_of(events: &[&str]) -> Model {
    replay(NAMES.iter().chain(events))
}

/// Returns the bytes of a category, now and at the peak.
pub fn category(model: &Model, category: Category) -> (u64, u64) {
    let view = model.categories(0)[category as usize];
    assert_eq!(view.category, category);
    (view.bytes, view.bytes_at_peak)
}

/// Returns the view of a line by its number.
pub fn line(model: &Model, number: u32) -> LineView {
    let lines = model.lines(0);
    lines.into_iter().find(|view| view.line.as_ref().is_some_and(|line| line.line == Some(number))).unwrap()
}

/// Returns the view of a layer.
pub fn layer(model: &Model, name: &str) -> LayerView {
    model.layers(0).into_iter().find(|view| view.name.as_deref() == Some(name)).unwrap()
}

/// One step of training: a weight moved and tagged, a batch, a forward with one temporary and one kept result,
/// a loss, a backward with one temporary and the weight's gradient, and an optimizer that creates its state.
pub const TRAINING: &[&str] = &[
    r#"["a",1,1,0,1000,4096,1,0,64]"#,
    r#"["tag",2,0,1000,"parameter",4000,3,"h.0.mlp.fc.weight"]"#,
    r#"["a",3,1,0,10000,1024,1,0,0]"#,
    r#"["a",4,1,0,20000,512,1,0,0]"#,
    r#"["f",5,1,0,20000]"#,
    r#"["a",6,1,0,20000,2048,3,7,1]"#,
    r#"["a",7,1,0,30000,8192,3,7,5]"#,
    r#"["f",8,1,0,20000]"#,
    r#"["a",9,1,0,40000,512,1,0,4]"#,
    r#"["a",10,2,0,50000,8192,3,7,18]"#,
    r#"["a",11,2,0,60000,4096,3,7,18]"#,
    r#"["f",12,2,0,50000]"#,
    r#"["f",13,2,0,30000]"#,
    r#"["a",14,1,0,70000,4096,4,0,3]"#,
    r#"["a",15,1,0,80000,1536,4,0,3]"#,
    r#"["f",16,1,0,80000]"#,
    r#"["step",17,1,0]"#,
    r#"["tag",18,0,60000,"gradient",4000,3,"h.0.mlp.fc.weight"]"#,
    r#"["tag",19,0,70000,"optimizer_state",4000,3,"h.0.mlp.fc.weight:exp_avg"]"#,
];
