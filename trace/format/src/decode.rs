//! The decoder: one line in, one record out.
//!
//! Events are numerous and made of integers, so the decoder parses them by hand. Definitions, and events with strings, go
//! through `serde_json`. A malformed line gives an error; no input panics.

mod elements;
mod error;
mod numbers;

use std::borrow::Cow;

use serde::Deserialize;

use crate::record::{
    Alloc, Busy, DriverAlloc, DriverFree, DriverKind, End, Flags, Free, GraphCaptured, GraphGone, InRange, Lost, Map,
    Moved, Oom, Ran, ReadBack, Record, Step, StepWait, StepWork, Tag, TagCategory, Unmap, Used, Work,
};
use elements::Elements;
pub use error::DecodeError;
use numbers::Numbers;

/// An event of a block, by far the most frequent kind of record. It borrows nothing from its line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BlockEvent {
    /// The block was allocated.
    Alloc(Alloc),
    /// The block was freed.
    Free(Free),
}

impl BlockEvent {
    /// Returns the device and address of the block.
    #[inline]
    pub fn place(&self) -> (i32, u64) {
        match self {
            Self::Alloc(event) => (event.device, event.address),
            Self::Free(event) => (event.device, event.address),
        }
    }
}

impl From<BlockEvent> for Record<'_> {
    #[inline]
    fn from(event: BlockEvent) -> Self {
        match event {
            BlockEvent::Alloc(event) => Self::Alloc(event),
            BlockEvent::Free(event) => Self::Free(event),
        }
    }
}

/// Reads one line, with or without its newline.
///
/// Unknown records are returned as [`Record::Unknown`].
///
/// # Errors
///
/// If the line is not JSON, is neither object nor array, or is a known record with a missing, mistyped or out-of-range
/// element.
#[inline]
pub fn decode_line(line: &[u8]) -> Result<Record<'_>, DecodeError> {
    match line {
        [b'[', b'"', b'a', b'"', b',', rest @ ..] => decode_alloc(rest).map(Record::Alloc),
        [b'[', b'"', b'f', b'"', b',', rest @ ..] => decode_free(rest).map(Record::Free),
        _ => decode_other(line),
    }
}

/// Decodes a line with a block event; `None`: another record, or malformed.
#[inline]
pub fn decode_block_event(line: &[u8]) -> Option<BlockEvent> {
    match line {
        [b'[', b'"', b'a', b'"', b',', rest @ ..] => decode_alloc(rest).ok().map(BlockEvent::Alloc),
        [b'[', b'"', b'f', b'"', b',', rest @ ..] => decode_free(rest).ok().map(BlockEvent::Free),
        _ => None,
    }
}

#[inline]
fn decode_alloc(rest: &[u8]) -> Result<Alloc, DecodeError> {
    let mut numbers = Numbers { rest };
    let event = Alloc {
        time: numbers.next()?,
        thread: numbers.next_u32()?,
        device: numbers.next_i32()?,
        address: numbers.next()?,
        bytes: numbers.next()?,
        stack: numbers.next_u32()?,
        layer: numbers.next_u32()?,
        flags: Flags(numbers.next_u32()?),
    };
    numbers.end()?;
    Ok(event)
}

#[inline]
fn decode_free(rest: &[u8]) -> Result<Free, DecodeError> {
    let mut numbers = Numbers { rest };
    let event = Free {
        time: numbers.next()?,
        thread: numbers.next_u32()?,
        device: numbers.next_i32()?,
        address: numbers.next()?,
    };
    numbers.end()?;
    Ok(event)
}

#[cold]
fn decode_other(line: &[u8]) -> Result<Record<'_>, DecodeError> {
    let line = line.trim_ascii();
    match line.first() {
        Some(b'{') => decode_definition(line),
        Some(b'[') => decode_event(line),
        _ => Err(DecodeError::new("neither a JSON object nor a JSON array")),
    }
}

fn decode_event(line: &[u8]) -> Result<Record<'_>, DecodeError> {
    // The tag: a short string without escapes.
    let inner = line.get(1..).unwrap_or_default().trim_ascii_start();
    let after_quote = inner.strip_prefix(b"\"").ok_or(DecodeError::new("the event has no tag"))?;
    let length = memchr::memchr2(b'"', b'\\', after_quote).ok_or(DecodeError::new("the event has no tag"))?;
    let (tag, rest) = after_quote.split_at(length);
    let numeric =
        matches!(tag, b"a" | b"f" | b"map" | b"unmap" | b"oom" | b"step" | b"read" | b"range" | b"g+" | b"g-");
    let after_tag = rest.get(1..).unwrap_or_default().trim_ascii_start();
    let Some(rest) = after_tag.strip_prefix(b",").filter(|_| numeric) else {
        return decode_mixed_event(tag, line);
    };
    let mut numbers = Numbers { rest };
    let record = match tag {
        b"a" => return decode_alloc(rest).map(Record::Alloc),
        b"f" => return decode_free(rest).map(Record::Free),
        b"map" => Record::Map(Map {
            time: numbers.next()?,
            thread: numbers.next_u32()?,
            device: numbers.next_i32()?,
            address: numbers.next()?,
            bytes: numbers.next()?,
            handle: numbers.next()?,
        }),
        b"unmap" => Record::Unmap(Unmap {
            time: numbers.next()?,
            thread: numbers.next_u32()?,
            device: numbers.next_i32()?,
            address: numbers.next()?,
            bytes: numbers.next()?,
        }),
        b"oom" => Record::Oom(Oom {
            time: numbers.next()?,
            thread: numbers.next_u32()?,
            device: numbers.next_i32()?,
            requested: numbers.next()?,
            allocated: numbers.next()?,
            reserved: numbers.next()?,
            stack: numbers.next_u32()?,
            layer: numbers.next_u32()?,
        }),
        b"read" => Record::ReadBack(ReadBack {
            time: numbers.next()?,
            thread: numbers.next_u32()?,
            bytes: numbers.next()?,
            stack: numbers.next_u32()?,
        }),
        b"g+" => Record::GraphCaptured(GraphCaptured {
            time: numbers.next()?,
            thread: numbers.next_u32()?,
            device: numbers.next_i32()?,
            graph: numbers.next()?,
            pool: (numbers.next()?, numbers.next()?),
            stack: numbers.next_u32()?,
        }),
        b"g-" => Record::GraphGone(GraphGone {
            time: numbers.next()?,
            thread: numbers.next_u32()?,
            device: numbers.next_i32()?,
            graph: numbers.next()?,
        }),
        b"range" => {
            Record::InRange(InRange { time: numbers.next()?, thread: numbers.next_u32()?, range: numbers.next_u32()? })
        }
        _ => Record::Step(Step {
            time: numbers.next()?,
            thread: numbers.next_u32()?,
            index: numbers.next()?,
            is_untimed: numbers.next_if_any()? == Some(1),
        }),
    };
    numbers.end()?;
    Ok(record)
}

/// Decodes an event with strings or nulls, or with unusual white space.
fn decode_mixed_event<'a>(tag: &[u8], line: &'a [u8]) -> Result<Record<'a>, DecodeError> {
    let mut elements = Elements::parse(line)?;
    let record = match tag {
        b"d+" => Record::DriverAlloc(DriverAlloc {
            time: elements.number()?,
            thread: elements.number()?,
            device: elements.number()?,
            address: elements.number()?,
            bytes: elements.number()?,
            kind: driver_kind(&elements.text()?),
            call: elements.text()?,
            library: elements.text()?,
            stack: elements.number()?,
            layer: elements.number()?,
            flags: Flags(elements.number()?),
            graph: elements.number_if_there()?.unwrap_or(0),
            stream: elements.number_if_there()?.unwrap_or(0),
        }),
        b"d-" => Record::DriverFree(DriverFree {
            time: elements.number()?,
            thread: elements.number()?,
            device: elements.number()?,
            address: elements.number()?,
            kind: driver_kind(&elements.text()?),
        }),
        b"tag" => {
            let (time, device, address) = (elements.number()?, elements.number()?, elements.number()?);
            // The category of a newer version is unknown.
            let Some(category) = tag_category(&elements.text()?) else { return Ok(Record::Unknown) };
            let (bytes, root, name) = (elements.number()?, elements.number()?, elements.text()?);
            let shard = elements.text_if_there().unwrap_or_default();
            Record::Tag(Tag { time, device, address, category, bytes, root, name, shard })
        }
        b"used" => Record::Used(Used {
            time: elements.number()?,
            device: elements.number()?,
            used: elements.number()?,
            total: elements.number()?,
            process: elements.optional()?,
        }),
        b"moved" => {
            Record::Moved(Moved { time: elements.number()?, device: elements.number()?, bytes: elements.number()? })
        }
        b"work" => Record::Work(Work {
            time: elements.number()?,
            device: elements.number()?,
            stack: elements.number()?,
            layer: elements.number()?,
            flags: Flags(elements.number()?),
            kernel: elements.number()?,
            calls: elements.number()?,
            nanoseconds: elements.number()?,
            bytes: elements.number()?,
        }),
        b"step_work" => Record::StepWork(StepWork {
            time: elements.number()?,
            device: elements.number()?,
            step: elements.number()?,
            steps: elements.number()?,
            calls: elements.number()?,
            nanoseconds: elements.number()?,
            to_device_bytes: elements.number()?,
            to_host_bytes: elements.number()?,
        }),
        b"step_wait" => Record::StepWait(StepWait {
            time: elements.number()?,
            step: elements.number()?,
            data_ns: elements.number()?,
            launch_ns: elements.optional()?,
        }),
        b"busy" => Record::Busy(Busy {
            time: elements.number()?,
            device: elements.number()?,
            busy: elements.number()?,
            waiting: elements.number()?,
            idle: elements.number()?,
        }),
        b"ran" => Record::Ran(Ran {
            time: elements.number()?,
            device: elements.number()?,
            stream: elements.number()?,
            start: elements.number()?,
            nanoseconds: elements.number()?,
            stack: elements.number()?,
            layer: elements.number()?,
            flags: Flags(elements.number()?),
            kernel: elements.number()?,
            bytes: elements.number()?,
        }),
        b"lost" => Record::Lost(Lost { time: elements.number()?, events: elements.number()? }),
        b"end" => {
            Record::End(End { time: elements.number()?, code: elements.optional()?, signal: elements.optional()? })
        }
        b"a" | b"f" | b"map" | b"unmap" | b"oom" | b"step" | b"read" | b"range" | b"g+" | b"g-" => {
            return Err(DecodeError::new("an element is missing"));
        }
        _ => Record::Unknown,
    };
    Ok(record)
}

fn driver_kind(name: &str) -> DriverKind {
    use DriverKind::*;
    let kinds = [Device, Async, Managed, Array, Physical, Imported, Pinned, Registered];
    kinds.into_iter().find(|kind| kind.as_str() == name).unwrap_or(Unknown)
}

fn tag_category(name: &str) -> Option<TagCategory> {
    use TagCategory::*;
    [Parameter, Gradient, OptimizerState, Buffer, Input].into_iter().find(|category| category.as_str() == name)
}

/// Decodes a definition: an object whose first key names its kind.
fn decode_definition(line: &[u8]) -> Result<Record<'_>, DecodeError> {
    #[derive(Deserialize)]
    struct Warning {
        warning: String,
    }

    #[derive(Deserialize)]
    struct Skip {
        skip: u64,
    }

    let inner = line.get(1..).unwrap_or_default().trim_ascii_start();
    let key = inner.strip_prefix(b"\"").and_then(|key| key.split(|byte| *byte == b'"').next());
    let record = match key {
        Some(b"memlab") => Record::Header(serde_json::from_slice(line)?),
        Some(b"device") => Record::Device(serde_json::from_slice(line)?),
        Some(b"link") => Record::Link(serde_json::from_slice(line)?),
        Some(b"limit") => Record::Limit(serde_json::from_slice(line)?),
        Some(b"others") => Record::Others(serde_json::from_slice(line)?),
        Some(b"thread") => Record::Thread(serde_json::from_slice(line)?),
        Some(b"software") => Record::Software(serde_json::from_slice(line)?),
        Some(b"code") => Record::CodeRoot(serde_json::from_slice(line)?),
        Some(b"frame") => Record::Frame(serde_json::from_slice(line)?),
        Some(b"source") => Record::Source(serde_json::from_slice(line)?),
        Some(b"stack") => Record::Stack(serde_json::from_slice(line)?),
        Some(b"layer") => Record::Layer(serde_json::from_slice(line)?),
        Some(b"kernel") => Record::Kernel(serde_json::from_slice(line)?),
        Some(b"range") => Record::Range(serde_json::from_slice(line)?),
        Some(b"mesh") => Record::Mesh(serde_json::from_slice(line)?),
        Some(b"stages") => Record::Stages(serde_json::from_slice(line)?),
        Some(b"trained") => Record::Trained(serde_json::from_slice(line)?),
        Some(b"requests") => Record::Requests(serde_json::from_slice(line)?),
        Some(b"holder_search") => Record::HolderSearch(serde_json::from_slice(line)?),
        Some(b"holders") => Record::Holders(serde_json::from_slice(line)?),
        Some(b"warning") => Record::Warning(serde_json::from_slice::<Warning>(line)?.warning),
        Some(b"skip") => Record::Skip(serde_json::from_slice::<Skip>(line)?.skip),
        Some(b"keyframe") => {
            serde_json::from_slice::<serde::de::IgnoredAny>(line)?;
            let json = std::str::from_utf8(line).map_err(|_| DecodeError::new("a string is not UTF-8"))?;
            Record::Keyframe(Cow::Borrowed(json))
        }
        _ => {
            serde_json::from_slice::<serde::de::IgnoredAny>(line)?;
            Record::Unknown
        }
    };
    Ok(record)
}
