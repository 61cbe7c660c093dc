//! Simulated libnvidia-ml.so.1: the memory of the cards and the processes that hold it, from the driver's card file.

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

use simgpu_cards::{Cards, LINK_LANES, uuid_text};

// nvmlReturn_t
const SUCCESS: i32 = 0;
const UNINITIALIZED: i32 = 1;
const INVALID_ARGUMENT: i32 = 2;
const NOT_SUPPORTED: i32 = 3;
const NOT_FOUND: i32 = 6;
const INSUFFICIENT_SIZE: i32 = 7;
const FUNCTION_NOT_FOUND: i32 = 13;
const ARGUMENT_VERSION_MISMATCH: i32 = 25;
const UNKNOWN: i32 = 999;

const DRIVER: &CStr = c"595.10 (simgpu)";
const NVML: &CStr = c"13.595.10";

/// Version of CUDA, the same as `cuDriverGetVersion`.
const CUDA_DRIVER_VERSION: i32 = 13_020;

/// NVIDIA's number on the PCI bus.
const NVIDIA: u32 = 0x10de;

/// Handles are this plus the device ordinal, so that none is null.
const HANDLE: usize = 0x4e56_4d4c_0000;

static CARDS: OnceLock<Cards> = OnceLock::new();

fn cards() -> Result<&'static Cards, i32> {
    CARDS.get().ok_or(UNINITIALIZED)
}

fn device(handle: usize) -> Result<(&'static Cards, usize), i32> {
    let cards = cards()?;
    let index = handle.wrapping_sub(HANDLE);
    if index < cards.devices() { Ok((cards, index)) } else { Err(INVALID_ARGUMENT) }
}

/// Returns total, reserved, held and free memory of a card.
///
/// CUDA does not count the driver's reserve. NVML's total includes it. The first version of `nvmlDeviceGetMemoryInfo`
/// counts it as used, and the second reports it separately.
fn memory(handle: usize) -> Result<(u64, u64, u64, u64), i32> {
    let (cards, index) = device(handle)?;
    let (memory, reserved, held) = (cards.memory(), cards.model().reserved(), cards.held(index));
    Ok((memory + reserved, reserved, held, memory.saturating_sub(held)))
}

fn bus_id(device: usize) -> String {
    format!("00000000:{:02X}:00.0", device + 1)
}

/// # Safety
/// `to` is null or has room for a `T`.
unsafe fn answer<T>(to: *mut T, value: T) -> Result<(), i32> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller vouches for the rest.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// # Safety
/// `to` is null or has room for `room` characters.
unsafe fn text(to: *mut c_char, room: u32, text: &[u8]) -> Result<(), i32> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if text.len() >= room as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: the text and its NUL fit, as checked.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

/// Exports functions whose body returns `Result<(), i32>`.
macro_rules! api {
    ($(fn $name:ident $(| $also:ident)* ($($args:tt)*) $body:block)*) => {$(
        export!([$name $($also)*] ($($args)*) $body);
    )*};
}

macro_rules! export {
    ([$($name:ident)*] $args:tt $body:block) => { $( export_one!($name $args $body); )* };
}

macro_rules! export_one {
    ($name:ident ($($arg:ident: $type:ty),* $(,)?) $body:block) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        unsafe extern "C" fn $name($($arg: $type),*) -> i32 {
            let body = || {
                // SAFETY: the caller vouches for its pointers, as NVML's documentation asks of it.
                #[allow(unused_unsafe, unreachable_code)]
                unsafe { $body; Ok(()) }
            };
            match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
                Ok(Ok(())) => SUCCESS,
                Ok(Err(code)) => code,
                Err(_) => UNKNOWN,
            }
        }
    };
}

/// `nvmlMemory_t`.
#[repr(C)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
struct Memory2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

impl Memory2 {
    /// `nvmlMemory_v2`.
    const VERSION: u32 = size_of::<Self>() as u32 | 2 << 24;
}

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
struct Process1 {
    pid: u32,
    used: u64,
}

/// `nvmlProcessInfo_t` since version 2.
#[repr(C)]
struct Process2 {
    pid: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

/// `nvmlPciInfo_t` (68 bytes).
#[repr(C)]
struct Pci {
    old_bus_id: [u8; 16],
    domain: u32,
    bus: u32,
    device: u32,
    device_id: u32,
    subsystem_id: u32,
    bus_id: [u8; 32],
}

/// `nvmlGpuFabricInfo_v2_t`; later versions only append.
#[repr(C)]
struct FabricInfo {
    version: u32,
    uuid: [u8; 16],
    status: i32,
    clique: u32,
    state: u8,
    health: u32,
}

/// `NVML_GPU_FABRIC_STATE_NOT_SUPPORTED`.
const NO_FABRIC: u8 = 0;

const _: () = assert!(size_of::<FabricInfo>() == 36);
const _: () = assert!(size_of::<Pci>() == 68 && size_of::<Memory2>() == 40 && size_of::<Process2>() == 24);

/// Writes the processes on a device as `T`. With too little room, writes only their number.
///
/// # Safety
/// `to` has room for `*count` elements.
unsafe fn processes<T>(handle: usize, count: *mut u32, to: *mut T, make: impl Fn(u32, u64) -> T) -> Result<(), i32> {
    let (cards, index) = device(handle)?;
    let running = cards.processes(index);
    if count.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller vouches for the rest.
    let room = unsafe { count.replace(running.len() as u32) };
    if running.is_empty() {
        return Ok(());
    }
    if to.is_null() || (room as usize) < running.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    for (place, (pid, used)) in running.into_iter().enumerate() {
        // SAFETY: the room for all of them was checked.
        unsafe { to.add(place).write(make(pid as u32, used)) };
    }
    Ok(())
}

const NO_INSTANCE: u32 = u32::MAX;

api! {
    fn nvmlInit_v2 | nvmlInit() {
        CARDS.get_or_init(Cards::open);
    }

    fn nvmlInitWithFlags(_flags: u32) {
        CARDS.get_or_init(Cards::open);
    }

    fn nvmlShutdown() {
        cards()?;
    }

    fn nvmlSystemGetDriverVersion(to: *mut c_char, room: u32) {
        text(to, room, DRIVER.to_bytes())?;
    }

    fn nvmlSystemGetNVMLVersion(to: *mut c_char, room: u32) {
        text(to, room, NVML.to_bytes())?;
    }

    fn nvmlSystemGetCudaDriverVersion | nvmlSystemGetCudaDriverVersion_v2(to: *mut i32) {
        answer(to, CUDA_DRIVER_VERSION)?;
    }

    fn nvmlSystemGetProcessName(pid: u32, to: *mut c_char, room: u32) {
        let name = std::fs::read_link(format!("/proc/{pid}/exe")).map_err(|_| NOT_FOUND)?;
        text(to, room, name.to_string_lossy().as_bytes())?;
    }

    fn nvmlDeviceGetCount | nvmlDeviceGetCount_v2(to: *mut u32) {
        answer(to, cards()?.devices() as u32)?;
    }

    fn nvmlDeviceGetHandleByIndex | nvmlDeviceGetHandleByIndex_v2(index: u32, to: *mut usize) {
        let (_, index) = device(HANDLE + index as usize)?;
        answer(to, HANDLE + index)?;
    }

    fn nvmlDeviceGetHandleByUUID(wanted: *const c_char, to: *mut usize) {
        let wanted = CStr::from_ptr(wanted).to_string_lossy();
        let found = (0..cards()?.devices()).find(|device| uuid_text(*device) == wanted);
        answer(to, HANDLE + found.ok_or(NOT_FOUND)?)?;
    }

    fn nvmlDeviceGetHandleByPciBusId | nvmlDeviceGetHandleByPciBusId_v2(wanted: *const c_char, to: *mut usize) {
        // Both 0000:01:00.0 and 00000000:01:00.0 are valid.
        let wanted = CStr::from_ptr(wanted).to_string_lossy().to_ascii_uppercase();
        let found = (0..cards()?.devices()).find(|device| {
            let full = bus_id(*device);
            wanted == full || wanted == full[4..]
        });
        answer(to, HANDLE + found.ok_or(NOT_FOUND)?)?;
    }

    fn nvmlDeviceGetIndex(handle: usize, to: *mut u32) {
        answer(to, device(handle)?.1 as u32)?;
    }

    fn nvmlDeviceGetMinorNumber(handle: usize, to: *mut u32) {
        answer(to, device(handle)?.1 as u32)?;
    }

    fn nvmlDeviceGetName(handle: usize, to: *mut c_char, room: u32) {
        text(to, room, device(handle)?.0.model().device_name.as_bytes())?;
    }

    fn nvmlDeviceGetUUID(handle: usize, to: *mut c_char, room: u32) {
        text(to, room, uuid_text(device(handle)?.1).as_bytes())?;
    }

    fn nvmlDeviceGetPciInfo | nvmlDeviceGetPciInfo_v2 | nvmlDeviceGetPciInfo_v3(handle: usize, to: *mut Pci) {
        let (cards, index) = device(handle)?;
        let full = bus_id(index);
        let mut pci = Pci {
            old_bus_id: [0; 16],
            domain: 0,
            bus: index as u32 + 1,
            device: 0,
            device_id: u32::from(cards.model().pci_device) << 16 | NVIDIA,
            subsystem_id: 0,
            bus_id: [0; 32],
        };
        pci.old_bus_id[..full.len() - 4].copy_from_slice(&full.as_bytes()[4..]);
        pci.bus_id[..full.len()].copy_from_slice(full.as_bytes());
        answer(to, pci)?;
    }

    fn nvmlDeviceGetMemoryInfo(handle: usize, to: *mut Memory) {
        let (total, reserved, held, free) = memory(handle)?;
        answer(to, Memory { total, used: held + reserved, free })?;
    }

    fn nvmlDeviceGetMemoryInfo_v2(handle: usize, to: *mut Memory2) {
        let (total, reserved, used, free) = memory(handle)?;
        if std::env::var_os("SIMGPU_OLD_NVML").is_some() {
            return Err(FUNCTION_NOT_FOUND);
        }
        let version = to.as_ref().ok_or(INVALID_ARGUMENT)?.version;
        if version != Memory2::VERSION {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        answer(to, Memory2 { version, total, reserved, used, free })?;
    }

    fn nvmlDeviceGetComputeRunningProcesses(handle: usize, count: *mut u32, to: *mut Process1) {
        processes(handle, count, to, |pid, used| Process1 { pid, used })?;
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2 | nvmlDeviceGetComputeRunningProcesses_v3(
        handle: usize, count: *mut u32, to: *mut Process2,
    ) {
        let instance = NO_INSTANCE;
        processes(handle, count, to, |pid, used| Process2 {
            pid, used, gpu_instance: instance, compute_instance: instance,
        })?;
    }

    fn nvmlDeviceGetGraphicsRunningProcesses | nvmlDeviceGetGraphicsRunningProcesses_v2
        | nvmlDeviceGetGraphicsRunningProcesses_v3(handle: usize, count: *mut u32, _to: *mut u8) {
        device(handle)?;
        answer(count, 0)?;
    }

    fn nvmlDeviceGetUtilizationRates(handle: usize, to: *mut [u32; 2]) {
        device(handle)?;
        answer(to, [0, 0])?;
    }

    fn nvmlDeviceGetTemperature(handle: usize, _sensor: i32, to: *mut u32) {
        device(handle)?;
        answer(to, 30)?;
    }

    fn nvmlDeviceGetPowerUsage(handle: usize, to: *mut u32) {
        device(handle)?;
        answer(to, 70_000)?;
    }

    fn nvmlDeviceGetCudaComputeCapability(handle: usize, major: *mut i32, minor: *mut i32) {
        let capability = device(handle)?.0.model().capability;
        answer(major, capability.0.into())?;
        answer(minor, capability.1.into())?;
    }

    fn nvmlDeviceGetMaxPcieLinkGeneration | nvmlDeviceGetCurrPcieLinkGeneration(handle: usize, to: *mut u32) {
        answer(to, device(handle)?.0.model().link_generation())?;
    }

    fn nvmlDeviceGetMaxPcieLinkWidth | nvmlDeviceGetCurrPcieLinkWidth(handle: usize, to: *mut u32) {
        device(handle)?;
        answer(to, LINK_LANES)?;
    }

    fn nvmlDeviceGetPersistenceMode(handle: usize, to: *mut i32) {
        device(handle)?;
        answer(to, 1)?;
    }

    fn nvmlDeviceGetComputeMode(handle: usize, to: *mut i32) {
        device(handle)?;
        answer(to, 0)?;
    }

    fn nvmlDeviceGetMigMode(handle: usize, _current: *mut u32, _pending: *mut u32) {
        device(handle)?;
        return Err(NOT_SUPPORTED);
    }

    fn nvmlDeviceGetP2PStatus(_one: usize, _other: usize, _index: i32, to: *mut i32) {
        answer(to, 0)?;
    }

    fn nvmlDeviceGetNvLinkState(_handle: usize, _link: u32, _to: *mut i32) {
        return Err(NOT_SUPPORTED);
    }

    fn nvmlDeviceGetNvLinkRemoteDeviceType(_handle: usize, _link: u32, _to: *mut i32) {
        return Err(NOT_SUPPORTED);
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo | nvmlDeviceGetNvLinkRemotePciInfo_v2(_handle: usize, _link: u32, _to: *mut Pci) {
        return Err(NOT_SUPPORTED);
    }

    fn nvmlDeviceGetGpuFabricInfo(_handle: usize, _to: *mut u8) {
        return Err(NOT_SUPPORTED);
    }

    fn nvmlDeviceGetGpuFabricInfoV(handle: usize, to: *mut FabricInfo) {
        device(handle)?;
        let version = to.as_ref().ok_or(INVALID_ARGUMENT)?.version;
        answer(to, FabricInfo { version, uuid: [0; 16], status: SUCCESS, clique: 0, state: NO_FABRIC, health: 0 })?;
    }
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn nvmlErrorString(code: i32) -> *const c_char {
    let text = match code {
        SUCCESS => c"Success",
        UNINITIALIZED => c"Uninitialized",
        INVALID_ARGUMENT => c"Invalid Argument",
        NOT_SUPPORTED => c"Not Supported",
        NOT_FOUND => c"Not Found",
        INSUFFICIENT_SIZE => c"Insufficient Size",
        FUNCTION_NOT_FOUND => c"Function Not Found",
        ARGUMENT_VERSION_MISMATCH => c"Argument Version Mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}
