//! Growing memory: the lines that allocate it, their callers, and the likely reason for its retention.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use memlab_trace::{AccumulationSpan, AccumulationView, Category, DeviceView, Line, Model, StackAccumulation};
use memlab_units::format::{self, size};

use super::advice::GrowingLine;
use super::causes;
use super::finding::{Finding, Kind, is_significant, on};
use super::holder::holders;
use super::words::Words;
use crate::category::category_names;
use crate::file_names::FileNames;

/// Maximum number of lines shown for one leak.
const SHOWN_LINES: usize = 2;
/// A search is shown if it found at least one part of this number of the growth.
const MIN_HELD_DIVISOR: u64 = 20;
/// Maximum number of holders shown for one leak.
const SHOWN_HOLDERS: usize = 2;

/// Memory that accumulated at one call site outside of modules.
struct Group {
    /// True if modules called there allocated some of it.
    is_forward: bool,
    /// Call of the outermost module, or else the caller of the line; `None`: no caller.
    caller: Option<Arc<Line>>,
    /// Stacks that end at the call site, or at the line itself.
    ends: Vec<u32>,
    bytes: u64,
    /// Stack of most of the bytes of the call site.
    typical: StackAccumulation,
    stacks: Vec<StackAccumulation>,
}

/// Growing memory.
pub struct Growing {
    /// Steps or passes over which it grew.
    pub span: AccumulationSpan,
    /// Stacks that allocate it.
    pub stacks: Vec<u32>,
    pub finding: Finding,
}

/// Findings on memory that grows on a device, over the steps, and before the peak without a backward in between; with the
/// span and stacks of each.
pub fn growing(model: &Model, device: &DeviceView, several: bool) -> Vec<Growing> {
    let mut told: HashSet<u32> = HashSet::new();
    let mut findings = Vec::new();
    for pile in model.accumulations(device.index) {
        let groups = groups(model, &pile);
        let most = groups.first().map_or(0, |group| group.bytes);
        // Much smaller groups mostly depend on the same cause, and disappear with it.
        for group in groups.into_iter().take(SHOWN_LINES).filter(|group| group.bytes >= most / 3) {
            if is_significant(group.bytes, device) && !group.ends.iter().any(|end| told.contains(end)) {
                findings.push(Growing {
                    span: pile.span,
                    stacks: group.stacks.iter().map(|stack| stack.stack).collect(),
                    finding: finding(model, device, several, &pile.span, &group),
                });
                told.extend(group.ends);
            }
        }
    }
    findings
}

/// Line that grows most from step to step, if its growth is significant.
pub(super) fn growing_line(model: &Model, device: &DeviceView) -> Option<GrowingLine> {
    let files = FileNames::of(model);
    let growth = model.growth(device.index).into_iter().find(|growth| growth.is_steady)?;
    let bytes = growth.to_bytes - growth.from_bytes;
    let line = growth.line?;
    is_significant(bytes, device).then(|| GrowingLine {
        line: place(&line, &files),
        bytes,
        bytes_per_step: growth.bytes_per_step.max(0.0) as u64,
    })
}

/// Accumulated bytes of stacks, by displayed line.
fn by_line<'s>(model: &Model, stacks: impl Iterator<Item = &'s StackAccumulation>) -> BTreeMap<Option<Arc<Line>>, u64> {
    let mut by_line: BTreeMap<Option<Arc<Line>>, u64> = BTreeMap::new();
    for stack in stacks {
        let bytes = by_line.entry(model.line_of(stack.stack)).or_default();
        *bytes = bytes.saturating_add(stack.bytes);
    }
    by_line
}

fn place(line: &Line, files: &FileNames) -> String {
    format!("{} {}", files.place(line), line.function)
}

/// Accumulated memory by call site, largest first.
fn groups(model: &Model, pile: &AccumulationView) -> Vec<Group> {
    let mut groups: BTreeMap<Option<Arc<Line>>, Group> = BTreeMap::new();
    for piled in &pile.stacks {
        let place = place_outside(model, piled.stack);
        let group = groups.entry(place.line).or_insert_with(|| Group {
            is_forward: false,
            caller: None,
            ends: Vec::new(),
            bytes: 0,
            typical: piled.clone(),
            stacks: Vec::new(),
        });
        if group.caller.is_none() || place.is_forward && !group.is_forward {
            group.caller = place.caller;
        }
        group.is_forward |= place.is_forward;
        if !group.ends.contains(&place.stack) {
            group.ends.push(place.stack);
        }
        group.bytes = group.bytes.saturating_add(piled.bytes);
        group.stacks.push(piled.clone());
    }
    grown_together(groups.into_values())
}

/// Joins call sites whose memory grew together, as one kept object makes it grow.
///
/// The first site of a joined group is the one whose memory keeps the rest: models keep gradients and optimizer state, and
/// a graph keeps its inputs.
fn grown_together(groups: impl Iterator<Item = Group>) -> Vec<Group> {
    let mut by_curve: BTreeMap<u32, Vec<Group>> = BTreeMap::new();
    for group in groups {
        by_curve.entry(group.typical.curve).or_default().push(group);
    }
    let mut joined: Vec<Group> = by_curve.into_values().filter_map(join).collect();
    joined.sort_by_key(|group| std::cmp::Reverse(group.bytes));
    joined
}

fn join(mut groups: Vec<Group>) -> Option<Group> {
    let bytes = groups.iter().fold(0_u64, |sum, group| sum.saturating_add(group.bytes));
    let rank = |group: &Group| match group.typical.category {
        _ if group.bytes < bytes / 5 => 3,
        Category::Parameter => 0,
        _ if is_graph(&group.typical) => 1,
        _ => 2,
    };
    groups.sort_by_key(|group| (rank(group), std::cmp::Reverse(group.bytes)));
    let stacks = groups.iter().flat_map(|group| group.stacks.iter().cloned()).collect();
    groups.into_iter().next().map(|first| Group { bytes, stacks, ..first })
}

/// The user's innermost call site outside of modules.
struct CallSite {
    line: Option<Arc<Line>>,
    /// Stack that ends at the call site; the whole stack without one.
    stack: u32,
    is_forward: bool,
    caller: Option<Arc<Line>>,
}

fn place_outside(model: &Model, stack: u32) -> CallSite {
    let callers = model.callers(stack);
    let is_module_call = |line: &Line| {
        line.file.ends_with("nn/modules/module.py")
            && (line.function.ends_with("_wrapped_call_impl") || line.function.ends_with("_call_impl"))
    };
    let users = |from: usize| callers.iter().skip(from).position(|caller| caller.is_users).map(|at| at + from);
    let outermost = callers.iter().rposition(|caller| is_module_call(&caller.line));
    let outside = users(outermost.map_or(0, |module| module + 1));
    let Some(at) = outside else {
        return CallSite { line: None, stack, is_forward: outermost.is_some(), caller: None };
    };
    // The user's innermost line calls a library's line, where library lines are shown; the next line calls the user's.
    let is_shown = model.line_of(stack).as_ref() == Some(&callers[at].line);
    let named = if outermost.is_some() || !is_shown { Some(at) } else { users(at + 1) };
    CallSite {
        line: Some(callers[at].line.clone()),
        stack: callers[at].stack,
        is_forward: outermost.is_some(),
        caller: named.map(|named| callers[named].line.clone()),
    }
}

fn finding(model: &Model, device: &DeviceView, several: bool, span: &AccumulationSpan, group: &Group) -> Finding {
    let files = FileNames::of(model);
    let by_line = by_line(model, group.stacks.iter());
    let typical = &group.typical;
    let most = model.line_of(typical.stack);
    let most = most.as_ref();
    let what = Words::strong(Kind::Leak.title()).and(format!("{}: ", on(device, several)));
    let rate = how(model, device, span, group.bytes);
    let what = what.and(grown(span, group.bytes, &rate)).and(". ");
    let mut what = match (most, by_line.len() - 1) {
        (Some(line), 0) => what.and_code(place(line, &files)).and(" allocates it"),
        (Some(line), 1) => what.and_code(place(line, &files)).and(" and 1 more line allocate it"),
        (Some(line), others) => what.and_code(place(line, &files)).and(format!(" and {others} more lines allocate it")),
        (None, _) => what.and("No Python line of yours allocates it"),
    };
    let went_backward = group.ends.iter().any(|stack| model.reached_by_backward(device.index, *stack));
    let is_unused = is_graph(typical) && !went_backward;
    let is_result = typical.category == Category::Activation && group.is_forward && !is_unused;
    let name = if is_result { "results" } else { category_names(typical.category).0 };
    let alike = group.stacks.iter().filter(|stack| stack.category == typical.category);
    let alike_bytes = alike.fold(0_u64, |sum, stack| sum.saturating_add(stack.bytes));
    let of_all = match by_line.len() {
        ..2 => "It holds",
        _ if alike_bytes > group.bytes / 2 => "It mostly holds",
        _ => "It partly holds",
    };
    what = what.and(format!(". {of_all} {name}"));
    // A caller equal to the growing line is not repeated.
    let caller = group.caller.as_ref().filter(|line| most != Some(*line)).map(|line| place(line, &files));
    what = match (caller, group.is_forward) {
        (Some(caller), true) => what.and(" of the forward that ").and_code(caller).and(" calls"),
        (Some(caller), false) => what.and(" allocated in a call from ").and_code(caller),
        (None, true) => what.and(" of a forward"),
        (None, false) => what,
    };
    if is_unused {
        what = what.and("; backward never uses them");
    } else if group.is_forward && went_backward {
        what = what.and("; they stay allocated after backward");
    }
    what = what.and(".");
    let stacks: Vec<u32> = group.stacks.iter().map(|stack| stack.stack).collect();
    let from = match *span {
        AccumulationSpan::Steps { from, .. } | AccumulationSpan::Iterations { from, .. } => from,
        AccumulationSpan::AfterSteps { .. } | AccumulationSpan::Released { .. } | AccumulationSpan::Passes => 0,
    };
    let held =
        model.holders_of(device.index, &stacks, from).filter(|held| held.bytes >= group.bytes / MIN_HELD_DIVISOR);
    let when = held.as_ref().map_or_else(String::new, |held| {
        let time = format::duration(held.time);
        if held.step > 0 { format!(" at step {}", held.step - 1) } else { format!(" after {time}") }
    });
    let mut found = held.as_ref().map(|held| holders(held, &files)).unwrap_or_default();
    let all = found.clone();
    found.retain(|holder| !all.iter().any(|other| holder.includes(other)));
    let most_held = found.first().map_or(0, |holder| holder.bytes);
    // Much smaller ones are mostly what the program uses at the time of the search.
    for holder in found.iter().take(SHOWN_HOLDERS).filter(|holder| holder.bytes >= most_held / 2) {
        what = what
            .and(" Kept by ")
            .join(&holder.what)
            .and(format!(". Its release{when} would have freed {}.", size(holder.releases)));
    }
    let by_stack: Vec<(u32, u64)> = group.stacks.iter().map(|stack| (stack.stack, stack.bytes)).collect();
    let next = match (causes::cure_of_stacks(model, &by_stack), found.first()) {
        (Some(cure), _) => cure.to_owned(),
        (None, Some(holder)) if !is_unused || !holder.has_graph => holder.cure.clone(),
        _ => next(typical, went_backward).to_owned(),
    };
    let short = Words::strong("Grows").and(format!("{} {rate}", on(device, several)));
    let short = match (found.first(), most) {
        (Some(holder), _) => short.and(": ").join(&holder.short),
        (None, Some(line)) => short.and(", allocated by ").and_code(files.place(line)),
        (None, None) => short.and(", allocated by no Python line of yours"),
    };
    Finding {
        kind: Kind::Leak,
        device: device.index,
        line: most.cloned(),
        bytes: group.bytes,
        short,
        what,
        next,
        holders: found,
    }
}

/// Rate of growth with its span: `1.50 MiB a step`.
fn how(model: &Model, device: &DeviceView, span: &AccumulationSpan, bytes: u64) -> String {
    let rate_over = |from: u64, to: u64| size(bytes / to.saturating_sub(from).max(1));
    match *span {
        AccumulationSpan::Steps { from, to } => rate(model, device, from, to, bytes),
        AccumulationSpan::Iterations { from, to } | AccumulationSpan::AfterSteps { from, to } => {
            format!("{} an iteration", rate_over(from, to))
        }
        AccumulationSpan::Released { from, to, .. } => format!("{} a step", rate_over(from, to)),
        AccumulationSpan::Passes => format!("after each forward, to {} at the peak", size(bytes)),
    }
}

/// Growth of `bytes` with its span: `57.0 MiB from the end of step 1 to the end of step 39 (1.50 MiB a step)`.
fn grown(span: &AccumulationSpan, bytes: u64, rate: &str) -> String {
    let grown = size(bytes);
    // Counts; steps and iterations are numbered from 0.
    let moments = |moment: &str, from: u64, to: u64| {
        format!("from {moment} {} to {moment} {}", from.saturating_sub(1), to.saturating_sub(1))
    };
    match *span {
        AccumulationSpan::Steps { from, to } => format!("{grown} {} ({rate})", moments("the end of step", from, to)),
        AccumulationSpan::Iterations { from, to } => format!("{grown} {} ({rate})", moments("iteration", from, to)),
        AccumulationSpan::AfterSteps { from, to } => {
            let iterations = format::counted(to.saturating_sub(from).max(1), "iteration");
            format!("{grown} in {iterations} after the last optimizer step ({rate})")
        }
        AccumulationSpan::Released { from, to, times } => format!(
            "{grown} in {} steps ({rate}), then freed{}",
            format::grouped(to.saturating_sub(from).max(1)),
            if times > 1 { format!(", {} times", format::grouped(times)) } else { String::new() }
        ),
        AccumulationSpan::Passes => format!("{grown} of earlier forward passes at the peak, more after each pass"),
    }
}

/// True for activations of a forward that recorded a graph for backward.
fn is_graph(stack: &StackAccumulation) -> bool {
    stack.category == Category::Activation && stack.makes_graph
}

/// Advice on a stack.
fn next(typical: &StackAccumulation, went_backward: bool) -> &'static str {
    match typical.category {
        Category::Activation if is_graph(typical) && !went_backward => {
            "Run it under `torch.no_grad()`, or keep only numbers (.item()) and .detach()ed results: the graph retains all \
             tensors for backward."
        }
        Category::Activation if typical.makes_graph => {
            "An object still refers to these tensors after the step. Find the list, dict or attribute that collects \
             them; store numbers (.item()) or CPU copies (.detach().cpu()) there."
        }
        Category::Activation => {
            "Results stay on the device: keep numbers (.item()) or CPU copies (.cpu()), and drop the tensors."
        }
        Category::Gradient => {
            "Gradients accumulate: let zero_grad free them after each step (set_to_none=True), and avoid unneeded \
             create_graph=True or retain_graph=True."
        }
        Category::OptimizerState => "Optimizer state accumulates: create the optimizer once, with all its parameters.",
        Category::Parameter | Category::Buffer => {
            "Copies of weights stay on the device: keep them on the CPU (.cpu()), and drop old ones."
        }
        _ => "Tensors from outside modules accumulate: drop them (del, smaller scopes), or keep CPU copies (.cpu()).",
    }
}

/// Rate at which `bytes` accumulated between the ends of two steps: per step, or per jump if few steps grew.
fn rate(model: &Model, device: &DeviceView, from: u64, to: u64, bytes: u64) -> String {
    let passed = to.saturating_sub(from).max(1);
    let a_step = format!("{} a step", size(bytes / passed));
    let steps = model.device_steps(device.index);
    // Bytes held at the end of each step and never freed later.
    let mut ended = 0;
    let later = steps.iter().filter(|step| {
        ended = step.steps.saturating_add(ended);
        ended >= from && ended <= to
    });
    let mut kept: Vec<u64> = later.map(|step| step.allocated_bytes_at_end).collect();
    let mut least = u64::MAX;
    for bytes in kept.iter_mut().rev() {
        least = least.min(*bytes);
        *bytes = least;
    }
    let total = kept.last().zip(kept.first()).map_or(0, |(last, first)| last.saturating_sub(*first));
    // Even growth adds this much at every step.
    let even = total / (kept.len() as u64).max(1);
    let jumps = kept.windows(2).enumerate().filter(|(_, pair)| pair[1] > pair[0] && pair[1] - pair[0] > even / 2);
    let jumps: Vec<u64> = jumps.map(|(at, _)| at as u64).collect();
    let (times, [first, .., last]) = (jumps.len() as u64, &*jumps) else { return a_step };
    if times * 2 >= kept.len() as u64 {
        return a_step;
    }
    let apart = (last - first).saturating_mul(passed) / (kept.len() as u64 - 1).max(1) / (times - 1);
    format!("{} every {} steps, {} times", size(bytes / times), format::grouped(apart), format::grouped(times))
}
