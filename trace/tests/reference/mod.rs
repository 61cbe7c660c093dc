//! A slow reference implementation of the model that computes everything from the whole list of events, with lookahead.
//!
//! It shares no code with the model. It finds the lifetime and the category of each block, and then computes the sums
//! for every moment from scratch.

use std::collections::{BTreeMap, BTreeSet};

use memlab_trace::Category;
use memlab_trace::record::{DriverKind, Flags, Phase, TagCategory};

/// The events that the reference supports.
#[derive(Clone, Debug)]
pub enum Event {
    Alloc { thread: u32, device: i32, address: u64, bytes: u64, stack: u32, layer: u32, flags: u32 },
    Free { thread: u32, device: i32, address: u64 },
    Tag { device: i32, address: u64, category: TagCategory, bytes: u64, root: u32, name: &'static str },
    Step { thread: u32 },
    InRange { thread: u32, range: u32 },
    DriverAlloc { device: i32, address: u64, bytes: u64, segment: bool },
    DriverFree { device: i32, address: u64 },
    Used { device: i32, used: u64, process: Option<u64> },
}

pub const DRIVER_KIND: DriverKind = DriverKind::Device;

/// A block over its whole life.
#[derive(Clone, Debug)]
struct Block {
    born: usize,
    /// Event that ended it; the list's length if none did.
    died: usize,
    /// Event that decided its category; not before `died` if never.
    decided: usize,
    device: i32,
    bytes: u64,
    stack: u32,
    layer: u32,
    range: u32,
    phase: Phase,
    /// Allocated outside of modules, optimizers and backward.
    is_scripts: bool,
    /// Its category by the rules, without tags.
    kind: Category,
    /// Event at which it was found to be permanent.
    kept: Option<usize>,
    /// True if a module was called with it while it had no other category.
    is_input: bool,
    /// Tags of tensors that belong to layers: event, address, category, bytes, root, name.
    tags: Vec<(usize, u64, TagCategory, u64, u32, &'static str)>,
    /// Tensors that moved away: the event, and their address before.
    moved: Vec<(usize, u64)>,
}

fn phase(layer: u32, flags: u32) -> Phase {
    let inside = layer != 0 || flags & 4 != 0;
    match flags & 3 {
        2 => Phase::Backward,
        3 => Phase::Optimizer,
        _ if inside => Phase::Forward,
        _ => Phase::Other,
    }
}

pub fn rounded(bytes: u64) -> u64 {
    bytes.div_ceil(512) * 512
}

/// The events with all blocks resolved.
pub struct Reference {
    events: Vec<Event>,
    blocks: Vec<Block>,
}

impl Reference {
    pub fn new(events: &[Event]) -> Self {
        let mut reference = Self { events: events.to_vec(), blocks: Vec::new() };
        for (born, event) in events.iter().enumerate() {
            if let Event::Alloc { .. } = event {
                let block = reference.life(born);
                reference.blocks.push(block);
            }
        }
        reference.find_permanent_blocks();
        reference.find_moved_gradients();
        for index in 0..reference.blocks.len() {
            reference.blocks[index].is_input = reference.is_tagged_input(&reference.blocks[index], events.len());
        }
        reference
    }

    /// Marks each gradient of a module's parameter as moved when it is tagged at another address.
    fn find_moved_gradients(&mut self) {
        for at in 0..self.events.len() {
            let gradient = |event: &Event| match *event {
                Event::Tag { device, category: TagCategory::Gradient, root, name, bytes, .. } if root != 0 => {
                    Some((device, root, name, bytes))
                }
                _ => None,
            };
            let (Some(moving), Event::Tag { address: to, .. }) = (gradient(&self.events[at]), &self.events[at]) else {
                continue;
            };
            if !self.blocks.iter().any(|block| block.tags.iter().any(|(tagged, ..)| *tagged == at)) {
                continue;
            }
            for block in self.blocks.iter_mut().filter(|block| block.born < at && block.died > at) {
                let latest: BTreeMap<u64, usize> = block
                    .tags
                    .iter()
                    .filter(|(tagged, ..)| *tagged < at)
                    .map(|(tagged, from, ..)| (*from, *tagged))
                    .collect();
                let same = latest
                    .into_iter()
                    .filter(|(from, tagged)| from != to && gradient(&self.events[*tagged]) == Some(moving));
                block.moved.extend(same.map(|(from, _)| (at, from)));
            }
        }
    }

    /// Returns true if a thread enters forward with event `at`, by an allocation in forward after one elsewhere.
    ///
    /// It leaves forward with an allocation elsewhere, with its step, and at every backward.
    fn enters_forward(&self, at: usize) -> bool {
        let Event::Alloc { thread, layer, flags, .. } = self.events[at] else { return false };
        let was_there = self.events[..at].iter().rev().find_map(|event| match *event {
            Event::Step { thread: by } if by == thread => Some(false),
            Event::Alloc { thread: by, layer, flags, .. } => match phase(layer, flags) {
                Phase::Backward => Some(false),
                phase => (by == thread).then_some(phase == Phase::Forward),
            },
            _ => None,
        });
        phase(layer, flags) == Phase::Forward && was_there != Some(true)
    }

    fn passes(&self, until: usize) -> usize {
        (0..until).filter(|at| self.enters_forward(*at)).count()
    }

    /// Finds places whose blocks all existed at the last check and still do.
    ///
    /// Checks whenever two steps and two passes have occurred since the last check.
    fn find_permanent_blocks(&mut self) {
        let (mut steps, mut last, mut looked) = (0, (0, 0), 0);
        let mut examined = vec![false; self.blocks.len()];
        for at in 0..self.events.len() {
            let Event::Step { .. } = self.events[at] else { continue };
            steps += 1;
            let now = (steps, self.passes(at));
            if now.0 - last.0 < 2 || now.1 - last.1 < 2 {
                continue;
            }
            let looked_before = std::mem::replace(&mut looked, at);
            last = now;
            let place = |block: &Block| (block.device, block.stack, block.layer);
            let is_old = |index: &usize| {
                let block = &self.blocks[*index];
                let may_last = match block.kind {
                    Category::Input => true,
                    Category::Activation => block.layer == 0 && block.phase == Phase::Forward,
                    _ => false,
                };
                let is_tagged = block.tags.iter().any(|(tagged, ..)| *tagged < at);
                may_last
                    && !examined[*index]
                    && block.born < looked_before
                    && block.decided <= at
                    && block.died > at
                    && !is_tagged
                    && !self.is_tagged_input(block, at)
            };
            let old: Vec<usize> = (0..self.blocks.len()).filter(is_old).collect();
            for index in &old {
                examined[*index] = true;
                let made_there = |other: &usize| {
                    let other = &self.blocks[*other];
                    other.born < at && place(other) == place(&self.blocks[*index])
                };
                if (0..self.blocks.len()).filter(made_there).all(|other| old.contains(&other)) {
                    self.blocks[*index].kept = Some(at);
                }
            }
        }
    }

    /// Returns true if, before event `until`, a module was called with a block that the script allocated.
    fn is_tagged_input(&self, block: &Block, until: usize) -> bool {
        let Event::Alloc { address, .. } = self.events[block.born] else { panic!() };
        let is_input_tag = |at: &usize| {
            let is_tagged = block.tags.iter().any(|(tagged, ..)| tagged < at);
            let is_scripts = block.is_scripts || block.kept.is_some_and(|kept| kept < *at);
            let Event::Tag { device, address: inside, category: TagCategory::Input, .. } = self.events[*at] else {
                return false;
            };
            let is_inside = device == block.device && inside >= address && inside - address < block.bytes;
            is_inside && is_scripts && !is_tagged
        };
        (block.born..block.died.min(until)).any(|at| is_input_tag(&at))
    }

    /// Returns the range of a thread at event `at`, from its last range event.
    fn range_of(&self, thread: u32, at: usize) -> u32 {
        let entered = |event: &Event| match *event {
            Event::InRange { thread: by, range } => (by == thread).then_some(range),
            _ => None,
        };
        self.events[..at].iter().rev().find_map(entered).unwrap_or(0)
    }

    fn life(&self, born: usize) -> Block {
        let Event::Alloc { thread, device, address, bytes, stack, layer, flags } = self.events[born] else { panic!() };
        let later = || self.events.iter().enumerate().skip(born + 1);
        let ends = |event: &Event| match *event {
            Event::Alloc { device: on, address: at, .. } | Event::Free { device: on, address: at, .. } => {
                (on, at) == (device, address)
            }
            _ => false,
        };
        let died = later().find(|(_, event)| ends(event)).map_or(self.events.len(), |(at, _)| at);
        let own = phase(layer, flags);
        let is_step = |event: &Event, of: Option<u32>| match event {
            Event::Step { thread } => of.is_none_or(|of| of == *thread),
            _ => false,
        };
        let alloc = |event: &Event| match *event {
            Event::Alloc { thread, device, layer, flags, .. } => Some((thread, device, phase(layer, flags))),
            _ => None,
        };
        let is_cache = flags & Flags::KV_CACHE != 0
            && flags & (Flags::WORKSPACE | Flags::COMMUNICATION | Flags::GRADIENT_NODE) == 0;
        let is_known = flags & (Flags::WORKSPACE | Flags::MOVED_MODULE | Flags::COMMUNICATION) != 0 || is_cache;
        let is_exchanged = flags & Flags::COMMUNICATION != 0 && flags & Flags::WORKSPACE == 0;
        let is_scripts = own == Phase::Other && !is_known;
        let seen_forward = self.passes(born) > 0;
        // The event of the decision if the block survives until then, the category from then on, and the category before.
        let (decided, survivor) = if flags & Flags::WORKSPACE != 0 {
            (Some(born), Category::Workspace)
        } else if is_exchanged {
            let purposes = [
                (Flags::GATHERED, Category::Gathered),
                (Flags::REDUCE_SCATTER, Category::ReduceScatter),
                (Flags::DDP_BUCKET, Category::DdpBucket),
            ];
            let known = purposes.into_iter().find(|(flag, _)| flags & flag != 0);
            (Some(born), known.map_or(Category::Communication, |(_, category)| category))
        } else if is_cache {
            (Some(born), Category::KvCache)
        } else if flags & Flags::MOVED_MODULE != 0 {
            (Some(born), Category::Parameter)
        } else {
            match own {
                Phase::Backward if flags & Flags::RECOMPUTE != 0 => (Some(born), Category::Activation),
                Phase::Forward => {
                    let over = |event: &Event| {
                        is_step(event, Some(thread))
                            || alloc(event).is_some_and(|(by, _, phase)| {
                                phase == Phase::Backward || by == thread && phase != Phase::Forward
                            })
                    };
                    (later().find(|(_, event)| over(event)).map(|(at, _)| at), Category::Activation)
                }
                Phase::Backward => {
                    let over = |event: &Event| {
                        is_step(event, None)
                            || alloc(event).is_some_and(|(_, on, phase)| on == device && phase != Phase::Backward)
                    };
                    (later().find(|(_, event)| over(event)).map(|(at, _)| at), Category::Gradient)
                }
                Phase::Optimizer => {
                    (later().find(|(_, event)| is_step(event, None)).map(|(at, _)| at), Category::OptimizerState)
                }
                Phase::Other => {
                    let begins = |event: &Event| {
                        alloc(event).is_some_and(|(by, _, phase)| by == thread && phase == Phase::Forward)
                    };
                    (later().find(|(_, event)| begins(event)).map(|(at, _)| at), Category::Input)
                }
            }
        };
        let decided = decided.unwrap_or(usize::MAX);
        // An allocation first decides pending blocks, and then replaces a block at its address.
        let died_by_alloc = matches!(self.events.get(died), Some(Event::Alloc { .. }));
        let kind = if decided < died || decided == died && died_by_alloc {
            survivor
        } else if is_scripts && !seen_forward {
            Category::Other
        } else if died < self.events.len() || own == Phase::Optimizer {
            Category::Temporary
        } else {
            survivor
        };
        let mut tags = Vec::new();
        for (at, event) in self.events[..died].iter().enumerate().skip(born) {
            let Event::Tag { device: on, address: inside, category, bytes: size, root, name } = *event else {
                continue;
            };
            let is_copy = matches!(category, TagCategory::Parameter | TagCategory::Buffer);
            if category != TagCategory::Input
                && !(is_exchanged && is_copy && tags.is_empty())
                && !(is_cache && category == TagCategory::Buffer && tags.is_empty())
                && on == device
                && inside >= address
                && inside - address < bytes
            {
                tags.push((at, inside, category, rounded(size), root, name));
            }
        }
        Block {
            born,
            died,
            decided,
            device,
            bytes,
            stack,
            layer,
            range: self.range_of(thread, born),
            phase: own,
            is_scripts,
            kind,
            kept: None,
            is_input: false,
            tags,
            moved: Vec::new(),
        }
    }

    /// Returns the live blocks of a device after event `at`.
    fn live(&self, device: i32, at: usize) -> impl Iterator<Item = &Block> {
        self.blocks.iter().filter(move |block| block.device == device && block.born <= at && block.died > at)
    }

    pub fn allocated(&self, device: i32, at: usize) -> u64 {
        self.live(device, at).map(|block| block.bytes).sum()
    }

    /// Returns the first event after which the allocated bytes are at their maximum, if any.
    pub fn peak(&self, device: i32) -> Option<usize> {
        let most = (0..self.events.len()).map(|at| self.allocated(device, at)).max().filter(|most| *most > 0)?;
        (0..self.events.len()).find(|at| self.allocated(device, *at) == most)
    }

    /// Returns the live bytes after event `at`, by any key.
    fn sums<K: Ord>(&self, device: i32, at: Option<usize>, key: impl Fn(&Block) -> K) -> BTreeMap<K, u64> {
        let mut sums = BTreeMap::new();
        if let Some(at) = at {
            for block in self.live(device, at) {
                *sums.entry(key(block)).or_insert(0) += block.bytes;
            }
        }
        sums.retain(|_, bytes| *bytes > 0);
        sums
    }

    fn last(&self) -> Option<usize> {
        self.events.len().checked_sub(1)
    }

    pub fn by_category(&self, device: i32) -> [BTreeMap<Category, u64>; 2] {
        [self.last(), self.peak(device)].map(|at| self.sums(device, at, Block::category))
    }

    pub fn by_stack(&self, device: i32) -> [BTreeMap<u32, u64>; 2] {
        [self.last(), self.peak(device)].map(|at| self.sums(device, at, |block| block.stack))
    }

    /// Returns bytes by any grouping of ranges: live now, at the peak, and allocated over the run.
    pub fn by_range<K: Ord>(&self, device: i32, path: impl Fn(u32) -> K) -> [BTreeMap<K, u64>; 3] {
        let [now, at_peak] =
            [self.last(), self.peak(device)].map(|at| self.sums(device, at, |block| path(block.range)));
        let mut allocated = BTreeMap::new();
        for block in self.blocks.iter().filter(|block| block.device == device) {
            *allocated.entry(path(block.range)).or_insert(0) += block.bytes;
        }
        [now, at_peak, allocated]
    }

    /// Returns the bytes of blocks allocated in backward, by any grouping of stacks.
    pub fn backward_by_line(&self, device: i32, line: impl Fn(u32) -> u32) -> [BTreeMap<u32, u64>; 2] {
        [self.last(), self.peak(device)].map(|at| {
            let mut sums = self.sums(device, at, |block| (block.phase == Phase::Backward, line(block.stack)));
            sums.retain(|(backward, _), _| *backward);
            sums.into_iter().map(|((_, line), bytes)| (line, bytes)).collect()
        })
    }

    /// Returns bytes by any grouping of stacks: live now, at the peak, and the maximum at any time.
    pub fn by_line(&self, device: i32, line: impl Fn(u32) -> u32) -> [BTreeMap<u32, u64>; 3] {
        let key = |block: &Block| line(block.stack);
        let mut most = BTreeMap::new();
        for at in 0..self.events.len() {
            for (line, bytes) in self.sums(device, Some(at), key) {
                let known = most.entry(line).or_insert(0);
                *known = bytes.max(*known);
            }
        }
        [self.sums(device, self.last(), key), self.sums(device, self.peak(device), key), most]
    }

    /// Returns bytes by layer view: (root, name), or that of the allocating layer by `named`.
    pub fn by_layer(
        &self,
        device: i32,
        named: impl Fn(u32) -> (u32, Option<&'static str>),
    ) -> [BTreeMap<(u32, Option<&'static str>), u64>; 2] {
        let key = |block: &Block| match block.owner() {
            Some((root, name)) => (root, Some(name)),
            None => named(block.layer),
        };
        [self.last(), self.peak(device)].map(|at| self.sums(device, at, key))
    }

    /// Returns the bytes allocated in a phase, by layer id.
    pub fn allocated_in(&self, device: i32, phase: Phase, layer: u32) -> u64 {
        let blocks = self.blocks.iter();
        let mine = blocks.filter(|block| (block.device, block.phase, block.layer) == (device, phase, layer));
        mine.map(|block| block.bytes).sum()
    }

    /// Returns the maximum bytes of decided activations of a layer id.
    pub fn most_activation(&self, device: i32, layer: u32) -> u64 {
        // Within one event, blocks are decided before any block is freed or allocated.
        let after_deciding = |at: usize, block: &&Block| block.decided <= at && block.died >= at && block.born < at;
        let after = |at: usize, block: &&Block| block.decided <= at && block.died > at && block.born <= at;
        let is_activation = |block: &&Block, at: usize, before_the_look: bool| {
            block.device == device
                && block.layer == layer
                && block.kind == Category::Activation
                && block.tags.iter().all(|(tagged, ..)| *tagged > at)
                && block.kept.is_none_or(|kept| kept > at || kept == at && before_the_look)
        };
        let sum = |at: usize, lives: &dyn Fn(usize, &&Block) -> bool, before_the_look: bool| -> u64 {
            let mine = self.blocks.iter().filter(|block| lives(at, block) && is_activation(block, at, before_the_look));
            mine.map(|block| block.bytes).sum()
        };
        let moments = (0..self.events.len()).map(|at| {
            let deciding = matches!(self.events[at], Event::Alloc { .. } | Event::Step { .. });
            let before = if deciding { sum(at, &after_deciding, true) } else { 0 };
            before.max(sum(at, &after, false))
        });
        // Blocks still pending at the end count in their provisional category.
        let alive = |block: &&Block| block.died == self.events.len();
        let at_end = self.events.len();
        let mine = self.blocks.iter().filter(alive).filter(|block| is_activation(block, at_end, false));
        moments.max().unwrap_or(0).max(mine.map(|block| block.bytes).sum())
    }

    /// Returns the tagged tensors that live at the end, by address: category, rounded bytes, name.
    pub fn tensors(&self, device: i32) -> Vec<(u64, TagCategory, u64, &'static str)> {
        let mut tensors = BTreeMap::new();
        for block in self.last().iter().flat_map(|last| self.live(device, *last)) {
            tensors.extend(block.tensors_here(usize::MAX));
        }
        tensors.into_iter().map(|(address, (category, bytes, _, name))| (address, category, bytes, name)).collect()
    }

    /// Returns the maximum bytes of tagged tensors of a category, by root and layer name.
    pub fn most_tagged(&self, device: i32, category: TagCategory) -> BTreeMap<(u32, &'static str), u64> {
        let mut most = BTreeMap::new();
        for at in 0..self.events.len() {
            let mut now = BTreeMap::new();
            let mut held = BTreeSet::new();
            for block in self.live(device, at) {
                for (what, bytes, root, name) in block.tensors_here(at).into_values().chain(block.rest(at)) {
                    held.insert((root, layer_of(what, name)));
                    if what == category {
                        *now.entry((root, layer_of(what, name))).or_insert(0) += bytes;
                    }
                }
            }
            let renamed = self.live(device, at).filter_map(|block| block.renamed_from_uncalled(at));
            renamed.filter(|row| !held.contains(row)).for_each(|row| {
                most.remove(&row);
            });
            for (row, bytes) in now {
                let known = most.entry(row).or_insert(0);
                *known = bytes.max(*known);
            }
        }
        most.retain(|_, bytes| *bytes > 0);
        most
    }
}

pub fn layer_of(category: TagCategory, name: &'static str) -> &'static str {
    let parameter = if category == TagCategory::OptimizerState { name.split(':').next().unwrap() } else { name };
    parameter.rfind('.').map_or("", |dot| &parameter[..dot])
}

impl Block {
    /// Returns its tensors after event `at`: the latest tag at each address.
    fn tensors(&self, at: usize) -> Vec<(TagCategory, u64, u32, &'static str)> {
        self.tensors_by_address(at).into_values().collect()
    }

    fn tensors_by_address(&self, at: usize) -> BTreeMap<u64, (TagCategory, u64, u32, &'static str)> {
        let mut tensors = BTreeMap::new();
        for (tagged, address, category, bytes, root, name) in &self.tags {
            if *tagged <= at {
                tensors.insert(*address, (*category, *bytes, *root, *name));
            }
        }
        tensors
    }

    /// Returns its tensors that have not moved away after event `at`.
    fn tensors_here(&self, at: usize) -> BTreeMap<u64, (TagCategory, u64, u32, &'static str)> {
        let mut tensors = self.tensors_by_address(at);
        for (moved, from) in self.moved.iter().filter(|(moved, _)| *moved <= at) {
            if !self.tags.iter().any(|(tagged, address, ..)| address == from && tagged > moved && *tagged <= at) {
                tensors.remove(from);
            }
        }
        tensors
    }

    /// Returns the rest of the block after event `at`, as part of the tensor that occupies most of it, if PyTorch would not
    /// split it off.
    fn rest(&self, at: usize) -> Option<(TagCategory, u64, u32, &'static str)> {
        let (address, ..) = self.largest(at)?;
        let (category, size, root, name) = *self.tensors_here(at).get(&address)?;
        let taken: u64 = self.tensors(at).into_iter().map(|(_, bytes, ..)| bytes).sum();
        let (rest, is_most) = (self.bytes.saturating_sub(taken), size > self.bytes / 2);
        (is_most && rest <= 1 << 20).then_some((category, rest, root, name))
    }

    /// Returns the row of a tensor in an uncalled module, if event `at` gives it the name of a called one.
    fn renamed_from_uncalled(&self, at: usize) -> Option<(u32, &'static str)> {
        let (_, address, category, bytes, root, _) = self.tags.iter().find(|(tagged, ..)| *tagged == at)?;
        let (was, had, before, name) = *self.tensors_by_address(at.checked_sub(1)?).get(address)?;
        ((was, had) == (*category, *bytes) && before == 0 && *root != 0).then(|| (before, layer_of(was, name)))
    }

    /// Returns its final category: that of most of its tagged bytes, else by its use, else by the rules.
    fn category(&self) -> Category {
        let mut bytes = [0; 4];
        for (category, size, ..) in self.tensors(usize::MAX) {
            bytes[category as usize] += size;
        }
        let categories = [Category::Parameter, Category::Gradient, Category::OptimizerState, Category::Buffer];
        let most = (0..4).rev().max_by_key(|index| bytes[*index]).unwrap();
        match (&self.tags[..], self.is_input, self.kept) {
            ([_, ..], ..) => categories[most],
            (_, true, _) => Category::Input,
            (_, _, Some(_)) => Category::Other,
            _ => self.kind,
        }
    }

    /// Returns its owner by tags: the layer of its largest tensor.
    ///
    /// The order of tags decides ties, and tensors that were tagged again, as the model documents.
    fn owner(&self) -> Option<(u32, &'static str)> {
        self.largest(usize::MAX).map(|(_, _, root, name)| (root, name))
    }

    fn largest(&self, at: usize) -> Option<(u64, u64, u32, &'static str)> {
        let mut largest: Option<(u64, u64, u32, &'static str)> = None;
        let mut known = BTreeMap::new();
        for (_, address, category, bytes, root, name) in self.tags.iter().filter(|(tagged, ..)| *tagged <= at) {
            let tensor = (*category, *bytes, *root, layer_of(*category, name));
            if known.insert(*address, tensor) == Some(tensor) {
                continue;
            }
            match largest {
                Some((at, size, ..)) if at != *address && size >= *bytes => {}
                _ => largest = Some((*address, *bytes, *root, layer_of(*category, name))),
            }
        }
        largest
    }
}
