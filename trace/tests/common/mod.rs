//! What several tests need.

#![allow(dead_code, reason = "each test uses some of it")]

use memlab_trace::encode::{self, LineBuffer};
use memlab_trace::{Model, Record, decode_line};

/// The line of a record, by the encoder.
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
        Record::Frame(f) => encode::frame(b, f.frame, f.file.as_bytes(), f.line, f.function.as_bytes()),
        Record::Source(s) => encode::source(b, s.source.as_bytes(), s.line, s.text.as_bytes()),
        Record::Stack(s) => encode::stack(b, s.stack, s.parent, s.frame),
        Record::Layer(l) => {
            let [name, variable] = [&l.name, &l.variable].map(|text| text.as_deref().map(str::as_bytes));
            encode::layer(b, l.layer, l.parent, &l.class, name, variable)
        }
        Record::Limit(l) => encode::limit(b, l.limit, l.bytes, &l.on_limit),
        Record::Others(o) => encode::others(b, o.others, &o.processes),
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
            };
            encode::driver_alloc(b, &event)
        }
        Record::DriverFree(d) => encode::driver_free(b, d.time, d.thread, d.device, d.address, d.kind),
        Record::Map(m) => encode::map(b, m.time, m.thread, m.device, m.address, m.bytes, m.handle),
        Record::Unmap(u) => encode::unmap(b, u.time, u.thread, u.device, u.address, u.bytes),
        Record::Oom(o) => {
            encode::oom(b, o.time, o.thread, o.device, o.requested, o.allocated, o.reserved, o.stack, o.layer)
        }
        Record::Tag(t) => encode::tag(b, t.time, t.device, t.address, t.category, t.bytes, t.root, t.name.as_bytes()),
        Record::Step(s) => encode::step(b, s.time, s.thread, s.index),
        Record::Used(u) => encode::used(b, u.time, u.device, u.used, u.total, u.process),
        Record::Lost(l) => encode::lost(b, l.time, l.events),
        Record::Moved(m) => encode::moved(b, m.time, m.device, m.bytes),
        Record::End(e) => encode::end(b, e.time, e.code, e.signal),
        Record::Keyframe(_) | Record::Unknown => panic!("the encoder writes no such record"),
    };
    line.to_vec()
}

/// A model that has replayed these lines.
pub fn replay<L: AsRef<[u8]>>(lines: impl IntoIterator<Item = L>) -> Model {
    let mut model = Model::new();
    for line in lines {
        let line = line.as_ref();
        let record = decode_line(line).unwrap_or_else(|error| panic!("{}: {error}", String::from_utf8_lossy(line)));
        model.apply(record);
    }
    model
}

/// All that a model shows, to compare two.
pub fn all_views(model: &Model) -> String {
    let mut text = format!(
        "{:?} {:?} {} {} {} {:?}\n{:?}\n{:?}\n{:?}\n",
        model.end(),
        model.anomalies(),
        model.time(),
        model.events(),
        model.steps_ended(),
        model.phase(),
        model.devices(),
        model.steps(),
        model.ooms(),
    );
    for device in -1..4 {
        text += &format!(
            "{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n",
            model.lines(device),
            model.layers(device),
            model.categories(device),
            model.timeline(device),
            model.segments(device),
            model.stacks(device),
            model.driver_memory(device),
            model.device_steps(device),
            model.growth(device),
            model.piles(device),
        );
    }
    text
}
