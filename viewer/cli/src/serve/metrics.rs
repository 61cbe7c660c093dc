//! Prometheus metrics, as OpenMetrics or in the older text format.

use std::fmt;

use axum::http::{HeaderMap, header};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::figures::{DeviceFigures, Figures, ProcessFigures};
use memlab_follow::cards::CardStatus;

/// A metrics format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Text,
}

impl Format {
    /// Chooses the format that the scraper accepts.
    ///
    /// Prometheus accepts both; `curl` accepts anything and gets the older one.
    pub fn wanted(headers: &HeaderMap) -> Self {
        let accept = headers.get_all(header::ACCEPT);
        let wants = accept.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        let is_open = |wanted: &str| {
            let mut parts = wanted.split(';').map(str::trim);
            let is_open = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("application/openmetrics-text"));
            is_open && !parts.any(|part| matches!(part, "q=0" | "q=0.0"))
        };
        if wants.into_iter().any(is_open) { Self::OpenMetrics } else { Self::Text }
    }

    /// Content type of the format.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Writes all metrics.
///
/// # Errors
///
/// Never: writing to a string cannot fail.
pub fn write(figures: Figures, format: Format) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(AllFigures(figures)));
    let mut text = String::new();
    match format {
        Format::OpenMetrics => text::encode(&mut text, &registry)?,
        Format::Text => prometheus_text::encode(&mut text, &registry)?,
    }
    Ok(text)
}

type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
struct AllFigures(Figures);

impl Collector for AllFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let figures = &self.0;
        for (name, help, of) in DEVICE_GAUGES {
            let samples = figures.processes.iter().flat_map(|process| {
                let device = move |device| of(process, device).map(|value| (labels_of(process, Some(device)), value));
                process.devices.iter().filter_map(device)
            });
            gauge(&mut encoder, name, help, Some(&Unit::Bytes), samples)?;
        }
        for (name, help, of) in CARD_GAUGES {
            let samples = figures.processes.iter().flat_map(|process| {
                let device = move |device: &DeviceFigures| {
                    let value = of(device.card.as_ref()?)?;
                    Some((labels_of(process, Some(device)), u64::from(value)))
                };
                process.devices.iter().filter_map(device)
            });
            gauge(&mut encoder, name, help, None, samples)?;
        }
        gauge(
            &mut encoder,
            "memlab_category",
            "GPU memory by category, including cached memory, the CUDA context and other processes",
            Some(&Unit::Bytes),
            figures.processes.iter().filter(|process| process.is_live()).flat_map(by_category),
        )?;
        counter(
            &mut encoder,
            "memlab_out_of_memory",
            "Allocations on the device that failed for lack of memory",
            figures.processes.iter().flat_map(|process| {
                process.devices.iter().map(|device| (labels_of(process, Some(device)), device.totals.ooms))
            }),
        )?;
        for (name, help, of) in PROCESS_COUNTERS {
            let samples = figures.processes.iter().map(|process| (labels_of(process, None), of(process)));
            counter(&mut encoder, name, help, samples)?;
        }
        gauge(
            &mut encoder,
            "memlab_process_running",
            "1 while the process runs, 0 for a while after it has ended",
            None,
            figures.processes.iter().map(|process| (labels_of(process, None), u64::from(!process.state.is_over()))),
        )?;
        let alone = |value: usize| [(Labels::new(), value as u64)];
        let count = figures.processes.len();
        gauge(&mut encoder, "memlab_processes", "Processes listed here", None, alone(count))?;
        gauge(
            &mut encoder,
            "memlab_processes_left_out",
            "Running recorded processes not listed here: too many, or they do not answer",
            None,
            alone(figures.left_out + figures.problems.len()),
        )
    }
}

type DeviceGauge = fn(&ProcessFigures, &DeviceFigures) -> Option<u64>;
type ProcessCounter = fn(&ProcessFigures) -> u64;
type CardGauge = fn(&CardStatus) -> Option<u32>;

/// Returns the current bytes of a live process.
///
/// An ended process holds nothing, and an unread trace has no figures.
fn now(process: &ProcessFigures, bytes: u64) -> Option<u64> {
    process.is_live().then_some(bytes)
}

const DEVICE_GAUGES: [(&str, &str, DeviceGauge); 10] = [
    ("memlab_allocated", "In use by tensors: torch.cuda.memory_allocated()", |process, device| {
        now(process, device.totals.allocated_bytes)
    }),
    ("memlab_reserved", "Held by PyTorch's caching allocator: torch.cuda.memory_reserved()", |process, device| {
        now(process, device.totals.reserved_bytes)
    }),
    (
        "memlab_used",
        "In use on the whole device, by this process and all others, as last reported by the driver",
        |process, device| now(process, device.totals.used_bytes).filter(|_| device.totals.used_is_known),
    ),
    ("memlab_device", "The device's memory", |process, device| {
        now(process, device.totals.total_bytes).filter(|bytes| *bytes > 0)
    }),
    ("memlab_peak_allocated", "Peak of allocated memory over the run", |_, device| {
        Some(device.totals.peak_allocated_bytes)
    }),
    ("memlab_peak_reserved", "Peak of reserved memory over the run", |_, device| {
        Some(device.totals.peak_reserved_bytes)
    }),
    ("memlab_peak_used", "Peak of memory in use on the whole device over the run", |_, device| {
        Some(device.totals.peak_used_bytes)
    }),
    ("memlab_offloaded", "Device memory of the process in host memory: offloaded or spilled", |process, device| {
        now(process, device.totals.host_bytes)
    }),
    ("memlab_peak_offloaded", "Peak of offloaded or spilled memory over the run", |_, device| {
        Some(device.totals.peak_host_bytes)
    }),
    ("memlab_limit", "Limit of the process; missing without a limit", |process, device| {
        device.totals.limit_bytes.and_then(|bytes| now(process, bytes))
    }),
];

/// Names end with their unit, as the others do.
const CARD_GAUGES: [(&str, &str, CardGauge); 3] = [
    ("memlab_gpu_busy_percent", "Share of time in which a kernel ran on the card, of any process", |card| {
        card.busy_percent
    }),
    ("memlab_gpu_temperature_celsius", "Temperature of the card", |card| card.celsius),
    ("memlab_gpu_power_watts", "Power that the card draws", |card| card.watts),
];

const PROCESS_COUNTERS: [(&str, &str, ProcessCounter); 3] = [
    ("memlab_steps", "Optimizer steps ended", |process| process.steps),
    ("memlab_events", "Events recorded: allocations and frees of blocks, segments and driver memory", |process| {
        process.events
    }),
    ("memlab_events_lost", "Events that could not be recorded; other figures lack them", |process| process.lost_events),
];

fn labels_of(process: &ProcessFigures, device: Option<&DeviceFigures>) -> Labels {
    let mut labels = vec![("pid", process.pid.to_string()), ("command", process.command.clone())];
    labels.extend(process.rank.map(|rank| ("rank", rank.to_string())));
    labels.extend(device.map(|device| ("device", device.totals.index.to_string())));
    labels
}

fn by_category(process: &ProcessFigures) -> impl Iterator<Item = (Labels, u64)> {
    process.devices.iter().flat_map(move |device| {
        device.categories.iter().map(move |view| {
            let mut labels = labels_of(process, Some(device));
            labels.push(("category", view.category.as_str().to_owned()));
            (labels, view.bytes)
        })
    })
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    samples: impl IntoIterator<Item = (Labels, u64)>,
) -> Result<(), fmt::Error> {
    let mut metric = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
    for (labels, value) in samples {
        metric.encode_family(&labels)?.encode_gauge(&value)?;
    }
    Ok(())
}

fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (Labels, u64)>,
) -> Result<(), fmt::Error> {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in samples {
        metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use memlab_trace::{Category, DeviceView, Model};

    use super::*;
    use memlab_follow::snapshot::ProcessState;

    const GIB: u64 = 1 << 30;

    fn process(pid: u32, rank: Option<u32>, state: ProcessState) -> ProcessFigures {
        let totals = DeviceView {
            index: 0,
            total_bytes: 8 * GIB,
            allocated_bytes: GIB + 1,
            reserved_bytes: 2 * GIB,
            used_bytes: 3 * GIB,
            used_is_known: true,
            peak_allocated_bytes: GIB + 512,
            limit_bytes: rank.map(|_| 4 * GIB),
            ..DeviceView::default()
        };
        let mut categories = Model::new().categories(0);
        categories.iter_mut().filter(|view| view.category == Category::Activation).for_each(|view| view.bytes = 7);
        ProcessFigures {
            id: format!("{pid}-a"),
            trace_id: "a".into(),
            pid,
            rank,
            command: "train.py --name \"a\\b\"\n".into(),
            state,
            events: 10,
            lost_events: 0,
            steps: 3,
            steps_per_second: None,
            ooms: 1,
            devices: vec![DeviceFigures { totals, categories, card: None }],
        }
    }

    #[test]
    fn a_card_has_its_load_temperature_and_power() {
        // GIVEN a process on a card whose driver reports all but the power
        let mut process = process(42, None, ProcessState::Recording);
        let card = CardStatus { busy_percent: Some(97), celsius: Some(64), ..CardStatus::default() };
        process.devices[0].card = Some(card);
        // THEN the known figures are exported
        let value =
            |name| lines(Format::Text, name, vec![process.clone()]).iter().map(|line| last(line)).collect::<Vec<_>>();
        assert_eq!(value("memlab_gpu_busy_percent{"), ["97"]);
        assert_eq!(value("memlab_gpu_temperature_celsius{"), ["64"]);
        assert!(value("memlab_gpu_power_watts{").is_empty());
    }

    fn last(line: &str) -> String {
        line.rsplit(' ').next().unwrap_or_default().to_owned()
    }

    fn lines(format: Format, name: &str, processes: Vec<ProcessFigures>) -> Vec<String> {
        let text = write(Figures { processes, ..Figures::default() }, format).unwrap();
        text.lines().filter(|line| line.contains(name)).map(str::to_owned).collect()
    }

    #[test]
    fn a_figure_has_its_unit_its_help_and_bounded_labels() {
        // GIVEN a rank whose command has quotes, a backslash and a line break
        let rank = || vec![process(42, Some(3), ProcessState::Recording)];
        let labels = r#"pid="42",command="train.py --name \"a\\b\"\n",rank="3""#;
        // THEN its figures are exact, and the labels are escaped
        let allocated = lines(Format::OpenMetrics, "memlab_allocated", rank());
        assert_eq!(
            allocated[1..],
            [
                "# TYPE memlab_allocated_bytes gauge".to_owned(),
                "# UNIT memlab_allocated_bytes bytes".to_owned(),
                format!(r#"memlab_allocated_bytes{{{labels},device="0"}} 1073741825"#),
            ]
        );
        let limit = lines(Format::Text, "memlab_limit_bytes{", rank());
        assert_eq!(limit, [format!(r#"memlab_limit_bytes{{{labels},device="0"}} 4294967296"#)]);
        let category = lines(Format::Text, r#"category="activation""#, rank());
        assert_eq!(category, [format!(r#"memlab_category_bytes{{{labels},device="0",category="activation"}} 7"#)]);
        // AND each format declares counters in its form
        assert_eq!(lines(Format::OpenMetrics, "# TYPE memlab_out_of", rank()), ["# TYPE memlab_out_of_memory counter"]);
        assert_eq!(lines(Format::Text, "# TYPE memlab_out_of", rank()), ["# TYPE memlab_out_of_memory_total counter"]);
        let text = write(Figures { processes: rank(), ..Figures::default() }, Format::OpenMetrics).unwrap();
        assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1);
    }

    #[test]
    fn a_process_that_has_ended_holds_nothing() {
        // GIVEN a process that has ended and one whose trace is still being read
        let ended = process(1, None, ProcessState::Ended { code: Some(0), signal: None });
        let opening = process(2, None, ProcessState::Opening { read: 1, total: 9 });
        let processes = || vec![ended.clone(), opening.clone()];
        // THEN neither reports current bytes, the peaks stay, and only one runs
        for name in
            ["memlab_allocated_bytes{", "memlab_reserved_bytes{", "memlab_used_bytes{", "memlab_category_bytes{"]
        {
            assert_eq!(lines(Format::Text, name, processes()), [""; 0], "{name}");
        }
        assert_eq!(lines(Format::Text, "memlab_peak_allocated_bytes{", processes()).len(), 2);
        let running = lines(Format::Text, "memlab_process_running{", processes());
        assert!(running[0].ends_with(" 0") && running[1].ends_with(" 1"), "{running:?}");
    }

    #[test]
    fn scrapers_get_what_they_ask_for() {
        let wanted = |accept: &str| Format::wanted(&[(header::ACCEPT, accept.parse().unwrap())].into_iter().collect());
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(wanted(prometheus), Format::OpenMetrics);
        for text in ["*/*", "text/plain", "text/html,application/xhtml+xml", "application/openmetrics-text;q=0"] {
            assert_eq!(wanted(text), Format::Text, "{text}");
        }
    }
}
