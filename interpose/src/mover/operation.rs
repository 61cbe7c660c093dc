//! Offload, restore, and moving parts: what each does, step by step, so that whatever fails leaves every byte where it
//! was.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::arena::Span;
use super::copy::{self, Copy};
use super::driver::{self, Access, Code, Properties};
use super::holdings::{ARENA, HOLDINGS, Holdings, Piece, Place, Spot};
use super::quiesce::{Closed, quiesce};
use memlab_sizes::format as size;

use super::{Failure, Phase, Progress, context_of, contexts, gate, host_memory};
use crate::limit::{self, outside};

/// Moves everything to the arena. The gate stays closed.
pub fn offload(progress: &Progress, timeout: Duration) -> Result<Option<String>, Failure> {
    refuse_beside_storage()?;
    let contexts = contexts();
    // Pinning takes longest, and the program can run meanwhile.
    progress.enter(Phase::Preparing);
    // What the driver hands out in stream order cannot be moved; what it keeps of it can be given back.
    outside::trim_all_pools();
    let (bytes, mapped) = {
        let holdings = HOLDINGS.lock();
        (movable(&holdings)?.bytes, holdings.mapped_host_bytes())
    };
    secure(bytes, mapped, &contexts)?;
    progress.enter(Phase::Waiting);
    let deadline = Instant::now() + timeout;
    let closed = quiesce(&contexts, deadline, || progress.enter(Phase::Synchronising))?;
    let mut holdings = HOLDINGS.lock();
    let holdings = &mut *holdings;
    let moving = movable(holdings)?;
    secure(moving.bytes, holdings.mapped_host_bytes(), &contexts)?; // For what was allocated meanwhile.
    let mut arena = ARENA.lock();
    let mut plan: Vec<(u64, usize, Vec<Span>)> = Vec::new();
    let mut copies: BTreeMap<u64, Vec<Copy>> = BTreeMap::new();
    for &number in &moving.numbers {
        let Some(from) = holdings.reach(number) else { continue };
        let Some(physical) = holdings.physicals.get(&number) else { continue };
        let context = context_of(physical.device);
        for (index, piece) in physical.pieces.iter().enumerate() {
            if !matches!(piece.place, Place::Device(_)) {
                continue;
            }
            let Some(spans) = arena.take(piece.bytes) else { continue };
            let list = copies.entry(context).or_default();
            list.extend(copy::of_spans(&spans, from + piece.offset, |to, from| Copy::ToHost { from, to }));
            plan.push((number, index, spans));
        }
    }
    progress.begin_copying(plan.iter().flat_map(|(_, _, spans)| spans).map(|span| span.bytes).sum());
    if let Err(code) = copy::run(&copies, &progress.done) {
        plan.iter().for_each(|(_, _, spans)| arena.give_back(spans));
        return Err(format!("copying to host memory failed ({code}): nothing was moved").into());
    }
    progress.enter(Phase::Releasing);
    let mut left = 0;
    let mut stayed = 0;
    for (number, index, spans) in plan {
        let Some(piece) = piece_of(holdings, number, index) else { continue };
        let (bytes, place) = (piece.bytes, piece.handle());
        let spots = holdings.spots(number, piece.offset);
        let taken =
            place.ok_or(Stuck::WHERE_IT_WAS).and_then(|handle| take_away(&spots, bytes, handle).map(|()| handle));
        let Some(piece) = piece_of_mut(holdings, number, index) else { continue };
        match taken {
            Ok(handle) => {
                piece.place = Place::Arena(spans);
                driver::release(handle);
                left += bytes;
            }
            Err(stuck) => {
                piece.adrift = stuck.adrift;
                stayed += bytes;
                arena.give_back(&spans);
            }
        }
    }
    if left == 0 && !holdings.is_waiting() {
        return Err(format!("the driver did not let go of {}: nothing was moved", size(stayed)).into());
    }
    closed.stay_closed();
    outside::trim_all_pools(); // Now that all frees have taken effect.
    Ok((stayed > 0).then(|| format!("the driver did not let go of {}, which stay", size(stayed))))
}

fn piece_of(holdings: &Holdings, number: u64, index: usize) -> Option<&Piece> {
    holdings.physicals.get(&number)?.pieces.get(index)
}

fn piece_of_mut(holdings: &mut Holdings, number: u64, index: usize) -> Option<&mut Piece> {
    holdings.physicals.get_mut(&number)?.pieces.get_mut(index)
}

/// A piece could not be taken from its addresses, or another not be put there.
struct Stuck {
    code: Code,
    /// Nor was what had been there put back.
    adrift: bool,
}

impl Stuck {
    const WHERE_IT_WAS: Self = Self { code: Code::INVALID_VALUE, adrift: false };
}

/// Maps memory at each of its addresses, or at none. What an earlier failure has left at an address goes.
fn put(spots: &[Spot], bytes: u64, handle: u64) -> Result<(), Code> {
    for (done, Spot { address, access }) in spots.iter().enumerate() {
        let mapped = driver::map(*address, bytes, handle).or_else(|code| {
            driver::unmap(*address, bytes).map_err(|_| code)?;
            driver::map(*address, bytes, handle)
        });
        let mapped = mapped.and_then(|()| {
            driver::set_access(*address, bytes, access).inspect_err(|_| {
                let _ = driver::unmap(*address, bytes);
            })
        });
        if let Err(code) = mapped {
            unmap_all(&spots[..done], bytes);
            return Err(code);
        }
    }
    Ok(())
}

fn unmap_all(spots: &[Spot], bytes: u64) {
    for spot in spots {
        let _ = driver::unmap(spot.address, bytes);
    }
}

/// Takes memory from all of its addresses, or from none.
fn take_away(spots: &[Spot], bytes: u64, handle: u64) -> Result<(), Stuck> {
    for (done, spot) in spots.iter().enumerate() {
        if let Err(code) = driver::unmap(spot.address, bytes) {
            return Err(Stuck { code, adrift: put(&spots[..done], bytes, handle).is_err() });
        }
    }
    Ok(())
}

/// Puts back what an earlier operation could not.
fn mend(holdings: &mut Holdings) -> Result<(), Failure> {
    let numbers: Vec<u64> = holdings.physicals.keys().copied().collect();
    for number in numbers {
        for index in 0..holdings.physicals.get(&number).map_or(0, |physical| physical.pieces.len()) {
            let Some(piece) = piece_of(holdings, number, index).filter(|piece| piece.adrift) else { continue };
            let Some(handle) = piece.handle() else { continue };
            let spots = holdings.spots(number, piece.offset);
            unmap_all(&spots, piece.bytes);
            put(&spots, piece.bytes, handle).map_err(|code| {
                Failure::retryable(format!(
                    "the driver did not map memory again ({code}): the program waits, try again"
                ))
            })?;
            if let Some(piece) = piece_of_mut(holdings, number, index) {
                piece.adrift = false;
            }
        }
    }
    Ok(())
}

/// GPUDirect Storage writes to device memory past the driver: a read under way would be lost.
fn refuse_beside_storage() -> Result<(), Failure> {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let mut targets = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    match targets.find(|path| path.to_string_lossy().starts_with("/dev/nvidia-fs")) {
        Some(path) => Err(format!(
            "the program uses GPUDirect Storage ({}), which writes to device memory behind the driver's back: nothing was \
             moved, use --full",
            path.display()
        )
        .into()),
        None => Ok(()),
    }
}

/// What is on the devices and can leave.
struct Movable {
    numbers: Vec<u64>,
    bytes: u64,
}

fn movable(holdings: &Holdings) -> Result<Movable, Failure> {
    let numbers: Vec<u64> = holdings.physicals.keys().copied().filter(|&number| holdings.is_movable(number)).collect();
    let pieces = numbers.iter().filter_map(|number| holdings.physicals.get(number)).flat_map(|it| &it.pieces);
    let bytes = pieces.filter(|piece| matches!(piece.place, Place::Device(_))).map(|piece| piece.bytes).sum();
    if bytes == 0 {
        return Err(NOTHING_TO_MOVE.into());
    }
    Ok(Movable { numbers, bytes })
}

pub const NOTHING_TO_MOVE: &str = "the program holds no device memory that could be moved (pieces of 2 MiB and more can, what cudaMallocAsync hands out cannot)";
pub const NOTHING_TO_RESTORE: &str = "nothing is offloaded: there is nothing to restore";

/// Whether there is something to offload, as far as that can be seen without waiting.
pub fn could_offload() -> bool {
    outside::uses_pools() || HOLDINGS.try_lock().is_none_or(|holdings| movable(&holdings).is_ok())
}

/// The same of restoring; what was freed while it was away leaves a program to wake up, and what came back may have left
/// host memory to give back.
pub fn could_restore(free_host: bool) -> bool {
    gate::is_closed()
        || HOLDINGS.try_lock().is_none_or(|holdings| holdings.totals().host_bytes > 0)
        || free_host && ARENA.try_lock().is_none_or(|arena| arena.bytes() > 0)
}

/// Makes sure that so much is free in the arena; `mapped` is what is in host memory without being in it.
fn secure(bytes: u64, mapped: u64, contexts: &[u64]) -> Result<(), Failure> {
    let &context = contexts.first().ok_or("the program has no CUDA context any more: there is nothing to move")?;
    let mut arena = ARENA.lock();
    let missing = bytes.saturating_sub(arena.free_bytes());
    if missing > 0 {
        host_memory::check(missing, arena.bytes() + mapped)?;
    }
    driver::set_context(context).map_err(|code| format!("the program's CUDA context cannot be used ({code})"))?;
    arena.secure(bytes)?;
    Ok(())
}

/// An address of its own at which memory can be reached before it takes its place, or after it has lost it.
struct Window {
    address: u64,
    bytes: u64,
    mapped: bool,
}

impl Window {
    fn open(handle: u64, bytes: u64, device: i32) -> Result<Self, Code> {
        let mut window = Self { address: driver::reserve(bytes, 0)?, bytes, mapped: false };
        driver::map(window.address, bytes, handle)?;
        window.mapped = true;
        driver::set_access(window.address, bytes, &[Access::full(device)])?;
        Ok(window)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if self.mapped {
            let _ = driver::unmap(self.address, self.bytes);
        }
        driver::free_address(self.address, self.bytes);
    }
}

/// Something that comes back.
struct Return {
    number: u64,
    index: usize,
    bytes: u64,
    /// The new physical memory.
    handle: u64,
    /// On its device; if not, in host memory.
    on_device: bool,
    /// Where the program has it, as far as it is there already.
    placed: Vec<Spot>,
    /// Where it is written to, and what it is copied from, if not at addresses of the program's.
    windows: Vec<Window>,
}

impl Return {
    fn new(number: u64, index: usize, bytes: u64, handle: u64, on_device: bool) -> Self {
        Self { number, index, bytes, handle, on_device, placed: Vec::new(), windows: Vec::new() }
    }

    fn open_window(&mut self, handle: u64, device: i32) -> Result<u64, Code> {
        let window = Window::open(handle, self.bytes, device)?;
        let address = window.address;
        self.windows.push(window);
        Ok(address)
    }

    fn undo(mut self) {
        self.windows.clear();
        unmap_all(&self.placed, self.bytes);
        driver::release(self.handle);
    }
}

/// Brings everything back to where it was. All physical memory is created first: if a device is full, nothing changes.
pub fn restore(progress: &Progress, timeout: Duration, free_host: bool) -> Result<Option<String>, Failure> {
    let contexts = contexts();
    let closed = match Closed::as_found() {
        Some(closed) => closed,
        None => {
            progress.enter(Phase::Waiting);
            quiesce(&contexts, Instant::now() + timeout, || progress.enter(Phase::Synchronising))?
        }
    };
    // Asked before the tables are locked: to tell what is used, the limit looks into them.
    let room = (0..driver::device_count()).map(|device| (device, limit::room(device))).collect();
    let mut holdings = HOLDINGS.lock();
    let outcome = bring_back(&mut holdings, progress, &contexts, room);
    if holdings.is_waiting() {
        closed.stay_closed();
    } else if free_host && outcome.is_ok() {
        ARENA.lock().shrink();
    }
    outcome
}

/// `room` is what the limits leave of each device.
fn bring_back(
    holdings: &mut Holdings,
    progress: &Progress,
    contexts: &[u64],
    room: BTreeMap<i32, u64>,
) -> Result<Option<String>, Failure> {
    progress.enter(Phase::Preparing);
    if let Some(&context) = contexts.first() {
        driver::set_context(context).map_err(|code| format!("the program's CUDA context cannot be used ({code})"))?;
    }
    if holdings.totals().host_bytes == 0 && !holdings.is_waiting() {
        return Ok(None); // All of it is back, or was freed while it was away.
    }
    if contexts.is_empty() {
        return Err("the program has no CUDA context any more: there is nothing to restore".into());
    }
    mend(holdings)?;
    let (returns, left) = create_all(holdings, room)?;
    progress.begin_copying(returns.iter().map(|it| it.bytes).sum());
    return_all(holdings, returns, progress).map_err(|code| {
        Failure::retryable(format!(
            "bringing memory back failed ({code}): what is not back stays in host memory, try again"
        ))
    })?;
    Ok((left > 0).then(|| format!("{} stay in host memory: the device has no room for them", size(left))))
}

/// Fills new memory and puts it where it belongs. After an error, what is not there is where it was.
fn return_all(holdings: &mut Holdings, mut returns: Vec<Return>, progress: &Progress) -> Result<(), Code> {
    let copied = place_all(holdings, &mut returns).and_then(|copies| copy::run(&copies, &progress.done));
    if let Err(code) = copied {
        returns.into_iter().for_each(Return::undo);
        return Err(code);
    }
    progress.enter(Phase::Releasing);
    let mut outcome = Ok(());
    for it in returns {
        match outcome {
            Ok(()) => outcome = settle(holdings, it),
            Err(_) => it.undo(),
        }
    }
    outcome
}

/// New physical memory for all that is not on its device, and how many bytes found no room although the program can run
/// without them there.
fn create_all(holdings: &Holdings, mut room: BTreeMap<i32, u64>) -> Result<(Vec<Return>, u64), Failure> {
    let mut returns: Vec<Return> = Vec::new();
    let mut left = 0;
    // First what the program waits for. It had that before; the rest comes back only within the device's limit.
    for waited_for in [true, false] {
        for (&number, physical) in &holdings.physicals {
            for (index, piece) in physical.pieces.iter().enumerate() {
                match piece.place {
                    Place::Arena(_) if waited_for => {}
                    Place::Host(_) if !waited_for => {}
                    _ => continue,
                }
                let bytes = piece.bytes;
                let room = room.entry(physical.device).or_insert(u64::MAX);
                if !waited_for && bytes > *room {
                    left += bytes;
                    continue;
                }
                *room = room.saturating_sub(bytes);
                match driver::create(bytes, &physical.properties) {
                    Ok(handle) => {
                        returns.push(Return::new(number, index, bytes, handle, true));
                    }
                    Err(Code::OUT_OF_MEMORY) if !waited_for => left += bytes,
                    Err(code) => {
                        returns.into_iter().for_each(Return::undo);
                        let bytes = size(holdings.totals().host_bytes);
                        return Err(match code {
                            Code::OUT_OF_MEMORY => Failure::retryable(format!(
                                "the device has no room for {bytes}: everything stays in host memory, try again when there is"
                            )),
                            code => {
                                format!("the driver gave no device memory ({code}): everything stays in host memory")
                                    .into()
                            }
                        });
                    }
                }
            }
        }
    }
    if returns.is_empty() && left > 0 {
        return Err(Failure::retryable(format!(
            "the device has no room for {}: it stays in host memory, try again when there is",
            size(left)
        )));
    }
    Ok((returns, left))
}

/// Makes the new memory reachable, at its own addresses where nothing else is, and says what to copy.
fn place_all(holdings: &Holdings, returns: &mut [Return]) -> Result<BTreeMap<u64, Vec<Copy>>, Code> {
    let mut copies: BTreeMap<u64, Vec<Copy>> = BTreeMap::new();
    for it in returns {
        let Some(physical) = holdings.physicals.get(&it.number) else { continue };
        let (piece, device) = (&physical.pieces[it.index], physical.device);
        let list = copies.entry(context_of(device)).or_default();
        match &piece.place {
            Place::Arena(spans) => {
                let mut spots = holdings.spots(it.number, piece.offset);
                put(&spots, it.bytes, it.handle)?;
                it.placed.append(&mut spots);
                // The program may have unmapped it meanwhile, or not let the device itself write to it.
                let to = match holdings.reach(it.number) {
                    Some(at) => at + piece.offset,
                    None => it.open_window(it.handle, device)?,
                };
                list.extend(copy::of_spans(spans, to, |from, to| Copy::ToDevice { from, to }));
            }
            &Place::Host(old) => {
                let from = match holdings.reach(it.number) {
                    Some(at) => at + piece.offset,
                    None => it.open_window(old, device)?,
                };
                let to = it.open_window(it.handle, device)?;
                list.push(Copy::OnDevice { from, to, bytes: it.bytes });
            }
            Place::Device(_) => {}
        }
    }
    Ok(copies)
}

/// The new memory, which has its bytes, takes the old one's place, or everything stays as it is.
fn settle(holdings: &mut Holdings, mut it: Return) -> Result<(), Code> {
    it.windows.clear();
    let Some(piece) = piece_of(holdings, it.number, it.index) else { return Ok(()) };
    if let Some(old) = piece.handle() {
        let spots = holdings.spots(it.number, piece.offset);
        let replaced = take_away(&spots, it.bytes, old).and_then(|()| {
            put(&spots, it.bytes, it.handle).map_err(|code| Stuck { code, adrift: put(&spots, it.bytes, old).is_err() })
        });
        if let Err(stuck) = replaced {
            if let Some(piece) = piece_of_mut(holdings, it.number, it.index) {
                piece.adrift = stuck.adrift;
            }
            it.undo();
            return Err(stuck.code);
        }
    }
    let place = if it.on_device { Place::Device(it.handle) } else { Place::Host(it.handle) };
    let Some(piece) = piece_of_mut(holdings, it.number, it.index) else { return Ok(()) };
    match std::mem::replace(&mut piece.place, place) {
        Place::Device(handle) | Place::Host(handle) => driver::release(handle),
        Place::Arena(spans) => ARENA.lock().give_back(&spans),
    }
    Ok(())
}

/// Moves ranges of pages to host memory that is mapped at the same addresses; the program goes on.
pub fn move_ranges(progress: &Progress, timeout: Duration, ranges: &[(u64, u64)]) -> Result<Option<String>, Failure> {
    refuse_beside_storage()?;
    let contexts = contexts();
    progress.enter(Phase::Preparing);
    let (splits, mapped) = {
        let holdings = HOLDINGS.lock();
        (splits_of(&holdings, ranges), holdings.mapped_host_bytes())
    };
    if splits.is_empty() {
        return Err("none of this memory can be moved: it is below 2 MiB, shared, or already in host memory".into());
    }
    secure_for(&splits, mapped, &contexts)?;
    progress.enter(Phase::Waiting);
    let deadline = Instant::now() + timeout;
    let closed = quiesce(&contexts, deadline, || progress.enter(Phase::Synchronising))?;
    let mut holdings = HOLDINGS.lock();
    let splits = splits_of(&holdings, ranges);
    secure_for(&splits, holdings.mapped_host_bytes(), &contexts)?; // Other memory may be at these addresses by now.
    // What stays goes and comes back.
    progress.begin_copying(splits.iter().map(|split| 2 * split.bytes - split.going()).sum());
    let mut moved = 0;
    let mut outcome = Ok(());
    // From the last piece to the first, so that the numbers of those to come stay right.
    for split in splits.iter().rev() {
        progress.enter(Phase::Copying);
        outcome = split_piece(&mut holdings, split, progress);
        if outcome.is_err() {
            break;
        }
        moved += split.going();
    }
    if holdings.is_waiting() {
        closed.stay_closed();
    }
    outcome.map_err(|code| {
        Failure::from(match moved {
            0 => format!("moving to host memory failed ({code}): nothing was moved"),
            moved => format!("moving to host memory failed ({code}) after {}, which are there", size(moved)),
        })
    })?;
    progress.settle_at(moved);
    let asked = ranges.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    Ok((moved < asked).then(|| format!("{} of it cannot be moved or were in host memory already", size(asked - moved))))
}

/// Makes sure that there is host memory for what goes, and for the parts that stay: they wait in the arena while their
/// neighbours go, one piece after the other. `mapped` as in [`secure`].
fn secure_for(splits: &[Split], mapped: u64, contexts: &[u64]) -> Result<(), Failure> {
    let going: u64 = splits.iter().map(Split::going).sum();
    let staying = splits.iter().map(|split| split.bytes - split.going()).max().unwrap_or(0);
    let (free, pinned) = {
        let arena = ARENA.lock();
        (arena.free_bytes(), arena.bytes())
    };
    host_memory::check(going + staying.saturating_sub(free), pinned + mapped)?;
    secure(staying, mapped, contexts)
}

/// A piece on the device, and which of its pages go.
struct Split {
    number: u64,
    index: usize,
    bytes: u64,
    /// (offset in the piece, bytes, whether it goes), in order, without gaps.
    runs: Vec<(u64, u64, bool)>,
}

impl Split {
    fn going(&self) -> u64 {
        self.runs.iter().filter(|(_, _, goes)| *goes).map(|(_, bytes, _)| bytes).sum()
    }
}

/// The pieces that have pages in `ranges`, by number and index.
fn splits_of(holdings: &Holdings, ranges: &[(u64, u64)]) -> Vec<Split> {
    let page = super::backing::LEAST;
    // In order and joined where they touch, so that a page is looked up in few steps: the program waits meanwhile.
    let mut sorted: Vec<(u64, u64)> =
        ranges.iter().map(|&(start, bytes)| (start, start.saturating_add(bytes))).collect();
    sorted.sort_unstable();
    sorted.dedup_by(|next, before| {
        let touches = next.0 <= before.1;
        if touches {
            before.1 = before.1.max(next.1);
        }
        touches
    });
    let is_asked = |address: u64| {
        let after = sorted.partition_point(|&(start, _)| start <= address);
        after > 0 && address + page <= sorted[after - 1].1
    };
    let mut splits = Vec::new();
    for (&number, physical) in &holdings.physicals {
        if !holdings.is_movable(number) {
            continue;
        }
        let Some(at) = holdings.reach(number) else { continue };
        for (index, piece) in physical.pieces.iter().enumerate() {
            if !matches!(piece.place, Place::Device(_)) {
                continue;
            }
            let mut runs: Vec<(u64, u64, bool)> = Vec::new();
            for offset in (0..piece.bytes).step_by(page as usize) {
                let goes = is_asked(at + piece.offset + offset);
                match runs.last_mut() {
                    Some((_, bytes, same)) if *same == goes => *bytes += page,
                    _ => runs.push((offset, page, goes)),
                }
            }
            let split = Split { number, index, bytes: piece.bytes, runs };
            if split.going() > 0 {
                splits.push(split);
            }
        }
    }
    splits
}

/// Replaces one piece by several: those that go, in host memory, and those that stay. The bytes are safe at every moment:
/// on the device until all copies are made and what goes is in its place, and then in the copies.
fn split_piece(holdings: &mut Holdings, split: &Split, progress: &Progress) -> Result<(), Code> {
    let at = holdings.reach(split.number).ok_or(Code::INVALID_VALUE)?;
    let physical = holdings.physicals.get(&split.number).ok_or(Code::INVALID_VALUE)?;
    let piece = &physical.pieces[split.index];
    let Place::Device(old) = piece.place else { return Err(Code::INVALID_VALUE) };
    let (start, device, properties) = (piece.offset, physical.device, physical.properties);
    let on_host = Properties::on_host(device).ok_or(Code::NOT_SUPPORTED)?;
    // 1. Copies of all of it.
    let mut pieces: Vec<Piece> = Vec::new();
    let copied = (|| {
        let mut windows = Vec::new();
        let mut copies = Vec::new();
        for &(offset, bytes, goes) in &split.runs {
            let from = at + start + offset;
            if goes {
                let handle = driver::create(bytes, &on_host)?;
                pieces.push(Piece::new(start + offset, bytes, Place::Host(handle)));
                let window = Window::open(handle, bytes, device)?;
                copies.push(Copy::OnDevice { from, to: window.address, bytes });
                windows.push(window);
            } else {
                let spans = ARENA.lock().take(bytes).ok_or(Code::OUT_OF_MEMORY)?;
                copies.extend(copy::of_spans(&spans, from, |to, from| Copy::ToHost { from, to }));
                pieces.push(Piece::new(start + offset, bytes, Place::Arena(spans)));
            }
        }
        copy::run(&BTreeMap::from([(context_of(device), copies)]), &progress.done)
    })();
    // 2. What goes takes its place in host memory.
    let spots = holdings.spots(split.number, start);
    let placed = copied.map_err(|code| Stuck { code, adrift: false }).and_then(|()| {
        take_away(&spots, split.bytes, old)?;
        let gone = || pieces.iter().filter_map(|piece| Some((piece, piece.handle()?)));
        for (done, (piece, handle)) in gone().enumerate() {
            if let Err(code) = put(&holdings.spots(split.number, piece.offset), piece.bytes, handle) {
                for (piece, _) in gone().take(done) {
                    unmap_all(&holdings.spots(split.number, piece.offset), piece.bytes);
                }
                return Err(Stuck { code, adrift: put(&spots, split.bytes, old).is_err() });
            }
        }
        Ok(())
    });
    if let Err(stuck) = placed {
        pieces.into_iter().for_each(Piece::release);
        if let Some(piece) = piece_of_mut(holdings, split.number, split.index) {
            piece.adrift = stuck.adrift;
        }
        return Err(stuck.code);
    }
    driver::release(old);
    let count = pieces.len();
    if let Some(physical) = holdings.physicals.get_mut(&split.number) {
        physical.pieces.splice(split.index..=split.index, pieces);
    }
    // 3. What stays comes back from the arena; if another process was quicker to take the room, to host memory. If neither
    // can be had, it stays in the arena, and the program waits for `restore`.
    let mut returns = Vec::new();
    for index in split.index..split.index + count {
        let Some(Piece { bytes, place: Place::Arena(_), .. }) = piece_of(holdings, split.number, index) else {
            continue;
        };
        let made = driver::create(*bytes, &properties).map(|handle| (handle, true));
        match made.or_else(|_| driver::create(*bytes, &on_host).map(|handle| (handle, false))) {
            Ok((handle, on_device)) => returns.push(Return::new(split.number, index, *bytes, handle, on_device)),
            Err(code) => {
                returns.into_iter().for_each(Return::undo);
                return Err(code);
            }
        }
    }
    return_all(holdings, returns, progress)
}
