//! The records shown in `docs/trace-format.md` and `docs/trace-holders.md` match the encoder and the decoder.

use crate::common::encode_record;
use memlab_trace::encode::{self, LineBuffer};
use memlab_trace::record::*;
use memlab_trace::{Record, decode_line};
use proptest::prelude::*;

fn documented_lines() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");
    let pages = ["trace-format.md", "trace-holders.md"];
    let text = pages.map(|page| std::fs::read_to_string(format!("{folder}/{page}")).unwrap()).concat();
    let shown = text.lines().filter(|line| line.starts_with("    {") || line.starts_with("    ["));
    shown.map(|line| line.trim().to_owned()).collect()
}

#[test]
fn every_documented_line_round_trips() {
    // GIVEN the lines in the documentation
    let lines = documented_lines();
    assert!(lines.len() >= 19, "{lines:#?}");
    for line in lines {
        // WHEN each is decoded
        let record = decode_line(line.as_bytes()).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_ne!(record, Record::Unknown, "{line}");
        // THEN encoding it again gives the same line
        if !matches!(record, Record::Keyframe(_)) {
            assert_eq!(String::from_utf8(encode_record(&record)).unwrap(), line + "\n");
        }
    }
}

#[test]
fn additions_of_newer_versions_are_ignored() {
    for (newer, known) in [
        (r#"["f",1,2,0,512,"why",[1,{"x":2}]]"#, r#"["f",1,2,0,512]"#),
        (r#"["step",5,1,7,null]"#, r#"["step",5,1,7]"#),
        (r#"["used",5,0,7,8,null,true]"#, r#"["used",5,0,7,8,null]"#),
        (r#"{"stack":5,"parent":4,"frame":12,"lasti":9}"#, r#"{"stack":5,"parent":4,"frame":12}"#),
    ] {
        assert_eq!(decode_line(newer.as_bytes()), decode_line(known.as_bytes()));
        assert!(decode_line(newer.as_bytes()).is_ok());
    }
    for unknown in [r#"["zz",1,2,"x"]"#, r#"{"zz":1}"#, r#"["tag",1,0,512,"halo",4,0,"x"]"#, "{}"] {
        assert_eq!(decode_line(unknown.as_bytes()), Ok(Record::Unknown), "{unknown}");
    }
}

#[test]
fn json_white_space_is_accepted() {
    let spaced = br#" [ "a" , 1 , 2 , 0 , 512 , 1024 , 5 , 7 , 5 ] "#;
    assert_eq!(decode_line(spaced), decode_line(br#"["a",1,2,0,512,1024,5,7,5]"#));
}

#[test]
fn hostile_numbers_and_shapes_are_errors() {
    for (line, reason) in [
        (r#"["a",-1,2,0,512,1024,5,7,5]"#, "a number is negative"),
        (r#"["a",1,2,0,512,1024,5,7]"#, "an element is missing"),
        (r#"["a",1,2,0,512,1024,5,7"#, "the line is cut short"),
        (r#"["a",1,2,0,512,1e9,5,7,5]"#, "a number is not an integer"),
        (r#"["a",1,2,0,512,1.5,5,7,5]"#, "a number is not an integer"),
        (r#"["a",1,2,0,512,"x",5,7,5]"#, "an element is not a number"),
        (r#"["a",1,2,0,512,1024,4294967296,7,5]"#, "a number is too large"),
        (r#"["a",1,2,2147483648,512,1024,5,7,5]"#, "a number is too large"),
        (r#"["f",18446744073709551616,2,0,512]"#, "a number is too large"),
        (r#"["f",99999999999999999999999,2,0,512]"#, "a number is too large"),
        (r#"["f",1,2,0,512]]"#, "the line does not end as an array"),
        (r#"["f",1,2,0,--1]"#, "a number is negative"),
        (r#"["f",1,2,0,512][]"#, "the line does not end as an array"),
        (r#"["f"]"#, "an element is missing"),
        (r#"["d-",1,2,0,512,5]"#, "an element is not a string"),
        (r#"["used",1,0,null,8,5]"#, "an element is not an integer"),
        (r#"["end",1,99999999999,5]"#, "a number is out of range"),
        (r#"[]"#, "the event has no tag"),
        (r#"[1,2]"#, "the event has no tag"),
        (r#""a""#, "neither a JSON object nor a JSON array"),
        ("", "neither a JSON object nor a JSON array"),
        (r#"{"frame":-1}"#, "invalid value: integer `-1`, expected u32"),
        (r#"{"frame":1"#, "EOF while parsing an object"),
    ] {
        let error = decode_line(line.as_bytes()).expect_err(line);
        assert_eq!(error.to_string(), reason, "{line}");
    }
}

#[test]
fn a_loss_that_is_not_finite_is_a_string() {
    for (loss, text) in [(f64::NAN, "\"NaN\""), (f64::NEG_INFINITY, "\"-inf\""), (0.1, "0.1"), (1e-30, "1e-30")] {
        let mut buffer = LineBuffer::<512>::new();
        let line = encode::trained(&mut buffer, &encode::Trained { loss: Some(loss), ..encode::Trained::default() });
        assert!(String::from_utf8_lossy(line).contains(&format!("\"loss\":{text},")), "{loss}");
        let Ok(Record::Trained(Trained { loss: Some(read), .. })) = decode_line(line) else { panic!("{loss}") };
        assert_eq!(read.0.to_bits(), loss.to_bits());
    }
}

#[test]
fn long_text_is_shortened_and_stays_valid_json() {
    // GIVEN a path far longer than the buffer, with characters of every width and some to escape
    let path = "/home/ada/\"π𝄞\u{1b}[2J\\\n".repeat(200);
    for length in 0..64 {
        let path = &path.as_bytes()[length..];
        // WHEN it is encoded into a small buffer, also with invalid UTF-8 at its start
        let mut buffer = LineBuffer::<256>::new();
        let line = encode::frame(&mut buffer, 4_294_967_295, path, Some(31), path);
        // THEN the line is complete and fits, and both strings end in an ellipsis
        let Ok(Record::Frame(frame)) = decode_line(line) else { panic!("{}", String::from_utf8_lossy(line)) };
        assert!(line.ends_with(b"}\n") && line.len() <= 256);
        assert!(frame.file.ends_with('…') && frame.function.ends_with('…'), "{frame:?}");
        assert!(frame.file.len() > 30, "{frame:?}");
        assert!(!line.contains(&0x1b));
    }
    // AND a buffer too small for the record gives no line instead of a part
    assert_eq!(encode::frame(&mut LineBuffer::<16>::new(), 1, "x", None, "y"), b"");
    assert_eq!(encode::alloc(&mut LineBuffer::<16>::new(), 1, 1, 0, 1, 1, 1, 1, 1), b"");
}

#[test]
fn a_command_line_of_any_length_gives_a_complete_header() {
    let mut command = Vec::new();
    for index in 0..5_000 {
        command.extend_from_slice(format!("--option-{index}={}\0", "x".repeat(index % 300)).as_bytes());
    }
    let directory = "d".repeat(5_000);
    let header = encode::Header {
        version: "0.1.0",
        id: "5f3c9a1be07d4c22",
        pid: u32::MAX,
        parent_pid: u32::MAX,
        start_unix_ns: u64::MAX,
        run: Some("18e9dc1f2a6b4c00-1067"),
        command: &command,
        directory: directory.as_bytes(),
        host: directory.as_bytes(),
        rank: Some(u32::MAX),
        local_rank: Some(u32::MAX),
        world_size: Some(u32::MAX),
    };
    let mut buffer = LineBuffer::<4096>::new();
    let Ok(Record::Header(read)) = decode_line(encode::header(&mut buffer, &header)) else { panic!() };
    assert!(read.command.len() > 10 && read.command[0] == "--option-0=");
    assert!(read.directory.len() > 500 && read.directory.ends_with('…'));
    assert_eq!((read.id.as_str(), read.world_size), ("5f3c9a1be07d4c22", Some(u32::MAX)));
    assert_eq!(read.run.as_deref(), Some("18e9dc1f2a6b4c00-1067"));
    // The empty command line, and empty arguments, are unchanged.
    let header = encode::Header { command: b"", ..header };
    let Ok(Record::Header(read)) = decode_line(encode::header(&mut buffer, &header)) else { panic!() };
    assert!(read.command.is_empty());
    let header = encode::Header { command: b"python\0\0-c\0", ..header };
    let Ok(Record::Header(read)) = decode_line(encode::header(&mut buffer, &header)) else { panic!() };
    assert_eq!(read.command, ["python", "", "-c"]);
}

fn text() -> impl Strategy<Value = String> {
    any::<String>()
}

fn loss() -> impl Strategy<Value = f64> {
    prop_oneof![8 => any::<f64>().prop_filter("equals itself", |loss| !loss.is_nan()), 1 => Just(f64::INFINITY)]
}

fn kind() -> impl Strategy<Value = DriverKind> {
    use DriverKind::*;
    prop::sample::select(vec![Device, Async, Managed, Array, Physical, Imported, Pinned, Registered])
}

fn record() -> impl Strategy<Value = Record<'static>> {
    use TagCategory::*;
    let n = any::<u64>;
    let i = any::<u32>;
    let device = || any::<i32>().prop_map(|device| device.max(-i32::MAX));
    prop_oneof![
        (text(), text(), i(), n(), prop::collection::vec("[^\0]{1,9}", 0..5), text(), any::<Option<u32>>()).prop_map(
            |(version, id, pid, start_unix_ns, command, directory, rank)| Record::Header(Box::new(Header {
                memlab: 1,
                version,
                id,
                pid,
                parent_pid: pid / 2,
                start_unix_ns,
                run: rank.map(|run| format!("{run:x}")),
                command,
                directory,
                host: "gpu1".into(),
                rank,
                local_rank: rank,
                world_size: None,
            }))
        ),
        (device(), text(), n(), any::<Option<String>>()).prop_map(|(device, name, total_bytes, bus_id)| {
            Record::Device(Device { device, name, total_bytes, bus_id })
        }),
        (i(), i(), text()).prop_map(|(thread, tid, name)| Record::Thread(Thread { thread, tid, name })),
        (text(), text(), text()).prop_map(|(software, version, root)| Record::Software(Software {
            software,
            version,
            root
        })),
        (prop::sample::select(vec![CodeKind::Program, CodeKind::Generated, CodeKind::Unknown]), text())
            .prop_map(|(code, root)| Record::CodeRoot(CodeRoot { code, root })),
        (i(), any::<Option<Vec<u32>>>(), text(), any::<Option<u32>>(), text()).prop_map(
            |(frame, stands_for, file, line, function)| {
                Record::Frame(Frame { frame, stands_for, file: file.into(), line, function: function.into() })
            }
        ),
        (text(), i(), text()).prop_map(|(source, line, text)| {
            Record::Source(Source { source: source.into(), line, text: text.into() })
        }),
        (i(), i(), i()).prop_map(|(stack, parent, frame)| Record::Stack(Stack { stack, parent, frame })),
        (i(), i(), text(), any::<Option<String>>(), any::<Option<String>>()).prop_map(
            |(layer, parent, class, name, variable)| Record::Layer(Layer { layer, parent, class, name, variable })
        ),
        (i(), i(), text()).prop_map(|(range, parent, name)| Record::Range(Range { range, parent, name })),
        (prop::array::uniform7(any::<u64>()), prop::option::of(loss()), prop::array::uniform2(any::<Option<String>>()))
            .prop_map(|([trained, epoch, batch, samples, duration, pieces, offloaded], loss, [phase, way])| {
                Record::Trained(Trained {
                    trained,
                    epoch,
                    batch,
                    phase,
                    samples,
                    duration,
                    loss: loss.map(Loss),
                    way,
                    pieces,
                    offloaded,
                })
            }),
        (0i32..64, prop::collection::vec(prop::array::uniform6(any::<u64>()), 0..3))
            .prop_map(|(requests, asked)| Record::Requests(Requests { requests, asked })),
        prop::collection::vec((text(), i(), i()), 0..4).prop_map(|dimensions| {
            Record::Mesh(Mesh { mesh: dimensions.into_iter().map(MeshDimension::from).collect() })
        }),
        (prop::collection::vec(i(), 0..4), i()).prop_map(|(stages, of)| Record::Stages(Stages { stages, of })),
        (device(), n()).prop_map(|(link, bytes_per_second)| Record::Link(Link { link, bytes_per_second })),
        (device(), any::<Option<u64>>(), text()).prop_map(|(limit, bytes, on_limit)| Record::Limit(Limit {
            limit,
            bytes,
            on_limit
        })),
        (device(), prop::collection::vec((i(), n()), 0..5))
            .prop_map(|(others, processes)| Record::Others(Others { others, processes })),
        text().prop_map(Record::Warning),
        n().prop_map(Record::Skip),
        (n(), i(), device(), n(), n(), i(), i(), i()).prop_map(
            |(time, thread, device, address, bytes, stack, layer, flags)| {
                Record::Alloc(Alloc { time, thread, device, address, bytes, stack, layer, flags: Flags(flags) })
            }
        ),
        (n(), i(), device(), n())
            .prop_map(|(time, thread, device, address)| { Record::Free(Free { time, thread, device, address }) }),
        (n(), i(), device(), n(), kind(), text(), text(), i()).prop_map(
            |(time, thread, device, address, kind, call, library, id)| {
                let (call, library) = (call.into(), library.into());
                let (bytes, stack, layer, flags) = (time ^ address, id, id / 3, Flags(id / 2));
                Record::DriverAlloc(DriverAlloc {
                    time,
                    thread,
                    device,
                    address,
                    bytes,
                    kind,
                    call,
                    library,
                    stack,
                    layer,
                    flags,
                    graph: u64::from(id % 3),
                    stream: u64::from(id % 2),
                })
            }
        ),
        (n(), i(), device(), n(), n(), n(), i()).prop_map(|(time, thread, device, graph, first, second, stack)| {
            Record::GraphCaptured(GraphCaptured { time, thread, device, graph, pool: (first, second), stack })
        }),
        (n(), i(), device(), n())
            .prop_map(|(time, thread, device, graph)| { Record::GraphGone(GraphGone { time, thread, device, graph }) }),
        (n(), i(), device(), n(), kind()).prop_map(|(time, thread, device, address, kind)| {
            Record::DriverFree(DriverFree { time, thread, device, address, kind })
        }),
        (n(), i(), device(), n(), n(), n()).prop_map(|(time, thread, device, address, bytes, handle)| {
            Record::Map(Map { time, thread, device, address, bytes, handle })
        }),
        (n(), i(), device(), n(), n()).prop_map(|(time, thread, device, address, bytes)| {
            Record::Unmap(Unmap { time, thread, device, address, bytes })
        }),
        (n(), i(), device(), n(), n(), n(), i(), i()).prop_map(
            |(time, thread, device, requested, allocated, reserved, stack, layer)| {
                Record::Oom(Oom { time, thread, device, requested, allocated, reserved, stack, layer })
            }
        ),
        (
            n(),
            device(),
            n(),
            prop::sample::select(vec![Parameter, Gradient, OptimizerState, Buffer]),
            n(),
            i(),
            text(),
            text()
        )
            .prop_map(|(time, device, address, category, bytes, root, name, shard)| {
                let (name, shard) = (name.into(), shard.into());
                Record::Tag(Tag { time, device, address, category, bytes, root, name, shard })
            }),
        (n(), i(), n(), any::<bool>()).prop_map(|(time, thread, index, is_untimed)| Record::Step(Step {
            time,
            thread,
            index,
            is_untimed
        })),
        (n(), i(), n(), i()).prop_map(|(time, thread, bytes, stack)| Record::ReadBack(ReadBack {
            time,
            thread,
            bytes,
            stack
        })),
        (i(), text()).prop_map(|(kernel, name)| Record::Kernel(Kernel { kernel, name })),
        ((n(), device(), i(), i(), i(), i()), (n(), n(), n())).prop_map(
            |((time, device, stack, layer, flags, kernel), (calls, nanoseconds, bytes))| {
                let flags = Flags(flags);
                Record::Work(Work { time, device, stack, layer, flags, kernel, calls, nanoseconds, bytes })
            }
        ),
        ((n(), device(), n(), n()), (n(), n(), n(), n())).prop_map(
            |((time, device, step, steps), (calls, nanoseconds, to_device_bytes, to_host_bytes))| {
                Record::StepWork(StepWork {
                    time,
                    device,
                    step,
                    steps,
                    calls,
                    nanoseconds,
                    to_device_bytes,
                    to_host_bytes,
                })
            }
        ),
        (n(), n(), n(), prop::option::of(n())).prop_map(|(time, step, data_ns, launch_ns)| {
            Record::StepWait(StepWait { time, step, data_ns, launch_ns })
        }),
        (n(), device(), n(), n(), n()).prop_map(|(time, device, busy, waiting, idle)| Record::Busy(Busy {
            time,
            device,
            busy,
            waiting,
            idle
        })),
        ((n(), device(), i(), n(), n()), (i(), i(), i(), i(), n())).prop_map(
            |((time, device, stream, start, nanoseconds), (stack, layer, flags, kernel, bytes))| {
                let flags = Flags(flags);
                Record::Ran(Ran { time, device, stream, start, nanoseconds, stack, layer, flags, kernel, bytes })
            }
        ),
        (n(), i(), i()).prop_map(|(time, thread, range)| Record::InRange(InRange { time, thread, range })),
        (n(), device(), n(), n(), any::<Option<u64>>()).prop_map(|(time, device, used, total, process)| {
            Record::Used(Used { time, device, used, total, process })
        }),
        (n(), device(), n()).prop_map(|(time, device, bytes)| Record::Moved(Moved { time, device, bytes })),
        (n(), n()).prop_map(|(time, events)| Record::Lost(Lost { time, events })),
        (n(), any::<Option<i32>>(), any::<Option<i32>>()).prop_map(|(time, code, signal)| Record::End(End {
            time,
            code,
            signal
        })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn records_round_trip(record in record()) {
        let line = encode_record(&record);
        prop_assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        prop_assert!(serde_json::from_slice::<serde_json::Value>(&line).is_ok());
        prop_assert_eq!(decode_line(&line).unwrap(), record);
    }

    #[test]
    fn a_damaged_line_never_panics(record in record(), cut in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut line = encode_record(&record);
        let at = cut.index(line.len());
        let _ = decode_line(&line[..at]);
        let _ = decode_line(&line[at..]);
        line[at] = byte;
        let _ = decode_line(&line);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode_line(&bytes);
    }

    #[test]
    fn any_bytes_make_a_complete_line(text in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut buffer = LineBuffer::<160>::new();
        let line = encode::warning(&mut buffer, &text);
        prop_assert!(matches!(decode_line(line), Ok(Record::Warning(_))), "{}", String::from_utf8_lossy(line));
    }
}
