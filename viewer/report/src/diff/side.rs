//! One of the two compared moments.

use std::collections::BTreeSet;
use std::sync::Arc;

use memlab_trace::{ByScope, DeviceView, GpuWorkView, Line, Model, Scope, load_whole};

use memlab_base::holdings::Holdings;
use memlab_base::moment::{NamedMoment, device_of, load_at};
use memlab_base::progress;
use memlab_base::trace_moment::TraceMoment;
use memlab_units::format::timed_part;

/// Holdings at a moment, with the facts on the run that a comparison needs.
#[derive(Clone)]
pub struct Side {
    /// The trace and the moment.
    pub named: TraceMoment,
    /// The command line.
    pub command: Vec<String>,
    /// Its working directory.
    pub directory: String,
    /// Device.
    pub device: DeviceView,
    /// Time of the moment.
    pub time: u64,
    /// Steps ended until then.
    pub steps_ended: u64,
    /// Steps ended over the whole run.
    pub(super) steps: u64,
    /// Holdings.
    pub held: Holdings,
    /// True if the user's lines only call libraries, by the rule of the report.
    pub(super) dominant_library_call: bool,
    /// GPU work over the whole run, with the lines of each scope; `None`: not recorded.
    pub(super) work: Option<ByScope<GpuWorkView>>,
    /// Part of the run that `work` covers, in words.
    pub(super) work_part: String,
    /// All lines of each scope that ever held memory or started GPU work.
    pub(super) lines: ByScope<Vec<Arc<Line>>>,
    /// The run, if it was searched for holders of memory.
    pub(super) searched: Option<Arc<Model>>,
    /// All outermost modules, with their classes.
    pub(super) roots: Vec<(u32, Option<Arc<str>>)>,
}

impl Side {
    /// Reads the moment from its trace.
    ///
    /// # Errors
    ///
    /// If the trace cannot be read, or has no such moment or device.
    pub fn load(named: TraceMoment, device: Option<i32>) -> anyhow::Result<Self> {
        let TraceMoment { path, moment } = &named;
        if !matches!(moment, NamedMoment::Peak | NamedMoment::End) {
            let loaded = load_at(path, *moment, device, &mut ())?;
            let snapshot = &loaded.snapshot;
            let device = device_of(path, &snapshot.final_model, device)?;
            let held = Holdings::at_moment(snapshot, device.index);
            let (time, steps_ended) = (snapshot.model.time(), snapshot.model.steps_ended());
            return Ok(Self::new(named, loaded.snapshot.final_model, device, time, steps_ended, held));
        }
        // The model knows these even when the trace no longer has the moment.
        let model = progress::report(|progress| load_whole(path, progress))?.model;
        let device = device_of(path, &model, device)?;
        let (time, steps_ended, held) = match moment {
            NamedMoment::Peak => (device.peak_time, device.peak_step, Holdings::at_peak(&model, &device)),
            _ => (model.time(), model.steps_ended(), Holdings::now(&model, &device)),
        };
        Ok(Self::new(named, model, device, time, steps_ended, held))
    }

    fn new(named: TraceMoment, model: Model, device: DeviceView, time: u64, steps_ended: u64, held: Holdings) -> Self {
        let header = model.header().cloned().unwrap_or_default();
        let work = model
            .gpu_work(device.index)
            .map(|_| ByScope::from_fn(|scope| model.gpu_work_in(device.index, scope).unwrap_or_default()));
        let lines = ByScope::from_fn(|scope| {
            let held = model.lines_in(device.index, scope).into_iter().filter_map(|view| view.line);
            let ran = work.iter().flat_map(|work| &work[scope].lines).filter_map(|row| row.line.clone());
            let lines: BTreeSet<Arc<Line>> = held.chain(ran).collect();
            lines.into_iter().collect()
        });
        let dominant_library_call = model.dominant_library_call(device.index).is_some();
        let layers = model.layers(device.index);
        let mut roots: Vec<_> =
            layers.into_iter().filter(|view| view.root != 0).map(|view| (view.root, view.root_class)).collect();
        let ran = work.iter().flat_map(|work| &work[Scope::Users].layers).filter(|row| row.root != 0);
        roots.extend(ran.map(|row| (row.root, row.root_class.clone())));
        roots.sort();
        roots.dedup_by_key(|(root, _)| *root);
        let is_searched = model.searches().next().is_some();
        let work_part = timed_part(model.steps_timed(), model.steps_ended());
        Self {
            named,
            command: header.command,
            directory: header.directory,
            device,
            time,
            steps_ended,
            steps: model.steps_ended(),
            held,
            dominant_library_call,
            work,
            work_part,
            lines,
            searched: is_searched.then(|| Arc::new(model)),
            roots,
        }
    }
}
