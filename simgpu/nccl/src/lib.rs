//! Simulated NCCL: communicators that allocate device memory, and collectives that assume the same data on every rank.
//!
//! No rank waits for another, except to split a communicator: only all ranks together know the parts.
//!
//! This is a separate library, as the real one is: interposers identify NCCL's allocations by the caller's file.
//!
//! # Layers
//!
//! ```text
//! splits                       ranks exchange their parts of a split communicator
//! ```

mod splits;

use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::SystemTime;

use simgpu_support::api::{SUCCESS, answer, api, nothing};
use simgpu_support::device_memory;
use simgpu_support::kernels::{self, Arithmetic, BLOCK, kernel_name};
use simgpu_support::table::{Table, new_handle};

use self::splits::Member;

/// A communicator.
#[derive(Clone, Copy)]
struct Communicator {
    ranks: i32,
    rank: i32,
    /// Id, the same for all ranks of the communicator.
    id: u64,
    /// Number of splits.
    splits: u32,
    /// Device memory of the communicator.
    memory: u64,
}

static COMMUNICATORS: Table<Communicator> = Table::new();

/// Device memory that each communicator allocates. The real size depends on the machine's links.
const OWN_MEMORY: usize = 32 << 20;

/// 2.30.7, the version of torch 2.15.
const VERSION: i32 = 23_007;

// ncclResult_t
const UNHANDLED_CUDA_ERROR: i32 = 1;
const SYSTEM_ERROR: i32 = 2;
const INVALID_ARGUMENT: i32 = 4;
const INVALID_USAGE: i32 = 5;

/// `ncclUniqueId`: 128 bytes, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId {
    bytes: [u64; 16],
}

impl UniqueId {
    fn number(self) -> u64 {
        mixed(self.bytes)
    }
}

/// Hashes several numbers into one.
fn mixed<const N: usize>(numbers: [u64; N]) -> u64 {
    let mut hasher = DefaultHasher::new();
    numbers.hash(&mut hasher);
    hasher.finish()
}

/// # Safety
/// `to` has room for a handle.
unsafe fn open(to: *mut usize, ranks: i32, rank: i32, id: u64) -> i32 {
    if ranks < 1 || !(0..ranks).contains(&rank) {
        return INVALID_ARGUMENT;
    }
    let Some(memory) = device_memory::allocate(OWN_MEMORY) else { return UNHANDLED_CUDA_ERROR };
    // SAFETY: the caller vouches for `to`.
    unsafe { answer(to, COMMUNICATORS.add(Communicator { ranks, rank, id, splits: 0, memory })) };
    SUCCESS
}

fn close(communicator: usize) -> i32 {
    match COMMUNICATORS.remove(communicator) {
        Some(communicator) => {
            device_memory::free(communicator.memory);
            SUCCESS
        }
        None => INVALID_ARGUMENT,
    }
}

fn get(communicator: usize) -> Option<Communicator> {
    COMMUNICATORS.get(communicator, |communicator| *communicator)
}

/// Returns the bytes of `count` elements of an `ncclDataType_t`.
fn bytes(count: usize, kind: i32) -> usize {
    count
        * match kind {
            0 | 1 | 10 | 11 => 1, // int8, uint8, float8e4m3, float8e5m2
            6 | 9 => 2,           // half, bfloat16
            4 | 5 | 8 => 8,       // int64, uint64, double
            _ => 4,
        }
}

/// Copies device memory on a stream.
fn copy(to: u64, from: u64, bytes: usize, stream: usize) -> i32 {
    if to == from || bytes == 0 || device_memory::copy(to, from, bytes, stream) {
        SUCCESS
    } else {
        UNHANDLED_CUDA_ERROR
    }
}

/// Launches the kernel of a collective. It does nothing, and has one thread per 32 bytes of this rank's data.
fn launch(kernel: &'static CStr, bytes: usize, stream: usize) -> i32 {
    let blocks = u32::try_from(bytes.div_ceil(32 * BLOCK as usize)).unwrap_or(u32::MAX).max(1);
    if kernels::launch(kernel, blocks, stream, Arithmetic::default()) { SUCCESS } else { UNHANDLED_CUDA_ERROR }
}

/// Writes this rank's data in place of every rank's.
fn gather(from: u64, to: u64, bytes: usize, communicator: usize, stream: usize) -> i32 {
    let Some(communicator) = get(communicator) else { return INVALID_ARGUMENT };
    for rank in 0..communicator.ranks as u64 {
        let status = copy(to + rank * bytes as u64, from, bytes, stream);
        if status != SUCCESS {
            return status;
        }
    }
    SUCCESS
}

/// A broadcast inside a group.
#[derive(Clone, Copy)]
struct Broadcast {
    from: u64,
    to: u64,
    bytes: usize,
    is_root: bool,
    stream: usize,
}

thread_local! {
    /// The thread's depth of open groups, and the broadcasts in them.
    ///
    /// torch gathers lists of tensors with one broadcast from every rank.
    static GROUP: RefCell<(u32, Vec<Broadcast>)> = const { RefCell::new((0, Vec::new())) };
}

/// At the end of a group: copies this rank's broadcast to those received from other ranks, where the sizes agree.
fn finish(broadcasts: &[Broadcast]) -> i32 {
    for received in broadcasts.iter().filter(|broadcast| !broadcast.is_root) {
        let own = broadcasts.iter().find(|own| own.is_root && own.bytes == received.bytes);
        let status = own.map_or(SUCCESS, |own| copy(received.to, own.from, own.bytes, received.stream));
        if status != SUCCESS {
            return status;
        }
    }
    SUCCESS
}

/// Exports functions that are not simulated, so that no call with a simulated handle reaches a real NCCL.
macro_rules! unsupported {
    ($($name:ident)*) => { api! { $(fn $name() { INVALID_USAGE })* } };
}

unsupported! {
    ncclCommGrow ncclCommMemStats ncclCommShrink ncclCommWindowRegister ncclDevCommCreate ncclGetLsaMultimemDevicePointer
    ncclGetPeerDevicePointer ncclPutSignal ncclSignal ncclWaitSignal ncclWinGetUserPtr
}

nothing! {
    ncclDevCommDestroy ncclCommDeregister ncclCommFinalize ncclCommRegister ncclCommResume ncclCommRevoke ncclCommSuspend
    ncclCommWindowDeregister ncclGroupSimulateEnd ncclRecv ncclRedOpDestroy ncclSend
}

api! {
    fn ncclGetVersion(to: *mut i32) {
        answer(to, VERSION);
        SUCCESS
    }

    fn ncclGetUniqueId(to: *mut UniqueId) {
        let mut bytes = [0; 16];
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        bytes[..3].copy_from_slice(&[new_handle() as u64, std::process::id().into(), since.as_nanos() as u64]);
        answer(to, UniqueId { bytes });
        SUCCESS
    }

    fn ncclCommGetUniqueId(_communicator: usize, to: *mut UniqueId) {
        answer(to, UniqueId { bytes: [1; 16] });
        SUCCESS
    }

    fn ncclCommInitRank(to: *mut usize, ranks: i32, id: UniqueId, rank: i32) {
        open(to, ranks, rank, id.number())
    }

    fn ncclCommInitRankConfig(to: *mut usize, ranks: i32, id: UniqueId, rank: i32, _configuration: usize) {
        open(to, ranks, rank, id.number())
    }

    fn ncclCommInitRankScalable(
        to: *mut usize, ranks: i32, rank: i32, _ids: i32, ids: *const UniqueId, _configuration: usize,
    ) {
        open(to, ranks, rank, ids.read_unaligned().number())
    }

    fn ncclCommInitAll(to: *mut usize, devices: i32, _list: *const i32) {
        let id = new_handle() as u64;
        for rank in 0..devices {
            let status = open(to.add(rank as usize), devices, rank, id);
            if status != SUCCESS {
                return status;
            }
        }
        SUCCESS
    }

    fn ncclCommSplit(communicator: usize, color: i32, key: i32, to: *mut usize, _configuration: usize) {
        let count = |communicator: &mut Communicator| {
            communicator.splits += 1;
            *communicator
        };
        let Some(Communicator { ranks, rank, id, splits, .. }) = COMMUNICATORS.get(communicator, count) else {
            return INVALID_ARGUMENT;
        };
        let id = mixed([id, splits.into()]);
        let Ok(members) = splits::meet(id, ranks, Member { rank, color, key }) else { return SYSTEM_ERROR };
        if color < 0 {
            answer(to, 0);
            return SUCCESS;
        }
        let place = members.iter().position(|member| member.rank == rank).unwrap_or(0);
        open(to, members.len() as i32, place as i32, mixed([id, color as u64]))
    }

    fn ncclCommDestroy(communicator: usize) {
        close(communicator)
    }

    fn ncclCommAbort(communicator: usize) {
        close(communicator)
    }

    fn ncclCommGetAsyncError(_communicator: usize, to: *mut i32) {
        answer(to, SUCCESS);
        SUCCESS
    }

    fn ncclCommCount(communicator: usize, to: *mut i32) {
        let Some(communicator) = get(communicator) else { return INVALID_ARGUMENT };
        answer(to, communicator.ranks);
        SUCCESS
    }

    fn ncclCommUserRank(communicator: usize, to: *mut i32) {
        let Some(communicator) = get(communicator) else { return INVALID_ARGUMENT };
        answer(to, communicator.rank);
        SUCCESS
    }

    fn ncclMemAlloc(to: *mut u64, bytes: usize) {
        let Some(address) = device_memory::allocate(bytes) else { return UNHANDLED_CUDA_ERROR };
        answer(to, address);
        SUCCESS
    }

    fn ncclMemFree(address: u64) {
        device_memory::free(address);
        SUCCESS
    }

    fn ncclRedOpCreatePreMulSum(to: *mut i32, _scalar: usize, _kind: i32, _residence: i32, _communicator: usize) {
        answer(to, 5); // the first operation after the built-in ones
        SUCCESS
    }

    fn ncclAllReduce(
        from: u64, to: u64, count: usize, kind: i32, _operation: i32, _communicator: usize, stream: usize,
    ) {
        let launched = launch(kernel_name!(ncclAllReduce), bytes(count, kind), stream);
        if launched != SUCCESS {
            return launched;
        }
        copy(to, from, bytes(count, kind), stream)
    }

    fn ncclReduce(
        from: u64, to: u64, count: usize, kind: i32, _operation: i32, root: i32, communicator: usize, stream: usize,
    ) {
        let launched = launch(kernel_name!(ncclReduce), bytes(count, kind), stream);
        if launched != SUCCESS {
            return launched;
        }
        match get(communicator) {
            Some(communicator) if communicator.rank == root => copy(to, from, bytes(count, kind), stream),
            Some(_) => SUCCESS,
            None => INVALID_ARGUMENT,
        }
    }

    fn ncclGroupStart() {
        GROUP.with_borrow_mut(|(depth, _)| *depth += 1);
        SUCCESS
    }

    fn ncclGroupEnd() {
        let ended = GROUP.with_borrow_mut(|(depth, broadcasts)| {
            *depth = depth.saturating_sub(1);
            if *depth == 0 { std::mem::take(broadcasts) } else { Vec::new() }
        });
        finish(&ended)
    }

    fn ncclBroadcast(from: u64, to: u64, count: usize, kind: i32, root: i32, communicator: usize, stream: usize) {
        let launched = launch(kernel_name!(ncclBroadcast), bytes(count, kind), stream);
        if launched != SUCCESS {
            return launched;
        }
        let Some(communicator) = get(communicator) else { return INVALID_ARGUMENT };
        let broadcast = Broadcast { from, to, bytes: bytes(count, kind), is_root: communicator.rank == root, stream };
        GROUP.with_borrow_mut(|(depth, broadcasts)| {
            if *depth > 0 {
                broadcasts.push(broadcast);
            }
        });
        if broadcast.is_root { copy(to, from, broadcast.bytes, stream) } else { SUCCESS }
    }

    fn ncclBcast(_data: u64, _count: usize, _kind: i32, _root: i32, _communicator: usize, _stream: usize) {
        SUCCESS
    }

    fn ncclReduceScatter(
        from: u64, to: u64, count: usize, kind: i32, _operation: i32, communicator: usize, stream: usize,
    ) {
        let launched = launch(kernel_name!(ncclReduceScatter), bytes(count, kind), stream);
        if launched != SUCCESS {
            return launched;
        }
        let Some(communicator) = get(communicator) else { return INVALID_ARGUMENT };
        let own = bytes(count, kind);
        copy(to, from + communicator.rank as u64 * own as u64, own, stream)
    }

    fn ncclAllGather(from: u64, to: u64, count: usize, kind: i32, communicator: usize, stream: usize) {
        let launched = launch(kernel_name!(ncclAllGather), bytes(count, kind), stream);
        if launched != SUCCESS {
            return launched;
        }
        gather(from, to, bytes(count, kind), communicator, stream)
    }

    fn ncclGather(from: u64, to: u64, count: usize, kind: i32, root: i32, communicator: usize, stream: usize) {
        let launched = launch(kernel_name!(ncclGather), bytes(count, kind), stream);
        if launched != SUCCESS {
            return launched;
        }
        match get(communicator) {
            Some(own) if own.rank == root => gather(from, to, bytes(count, kind), communicator, stream),
            Some(_) => SUCCESS,
            None => INVALID_ARGUMENT,
        }
    }

    fn ncclAlltoAll(from: u64, to: u64, count: usize, kind: i32, communicator: usize, stream: usize) {
        let launched = launch(kernel_name!(ncclAlltoAll), bytes(count, kind), stream);
        if launched != SUCCESS {
            return launched;
        }
        let Some(own) = get(communicator) else { return INVALID_ARGUMENT };
        copy(to, from, bytes(count, kind) * own.ranks as usize, stream)
    }
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn ncclGetErrorString(status: i32) -> *const c_char {
    match status {
        SUCCESS => c"no error",
        UNHANDLED_CUDA_ERROR => c"unhandled cuda error",
        SYSTEM_ERROR => c"the other ranks did not split the communicator",
        INVALID_ARGUMENT => c"invalid argument",
        _ => c"unknown result code",
    }
    .as_ptr()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn ncclGetLastError(_communicator: usize) -> *const c_char {
    c"".as_ptr()
}
