//! Devices: count, names and attributes of the chosen card.

use std::ffi::{CStr, c_char};

use simgpu_cards::Model;

use crate::api::{answer, answer_if_asked, api};
use crate::code::{Answer, Code};
use crate::real_runtime;
use crate::state::{DriverState, initialise, state};

/// Version that `cuDriverGetVersion` returns: new enough for every runtime of CUDA 12 and 13.
pub const DRIVER_VERSION: i32 = 13_020;

/// Attributes that all cards share, with their values (numbers of `CUdevice_attribute` in cuda.h).
const ATTRIBUTES: &[(i32, i32)] = &[
    (1, 1024),          // MAX_THREADS_PER_BLOCK
    (2, 1024),          // MAX_BLOCK_DIM_X
    (3, 1024),          // MAX_BLOCK_DIM_Y
    (4, 64),            // MAX_BLOCK_DIM_Z
    (5, i32::MAX),      // MAX_GRID_DIM_X
    (6, 65_535),        // MAX_GRID_DIM_Y
    (7, 65_535),        // MAX_GRID_DIM_Z
    (8, 49_152),        // MAX_SHARED_MEMORY_PER_BLOCK
    (9, 65_536),        // TOTAL_CONSTANT_MEMORY
    (10, 32),           // WARP_SIZE
    (11, i32::MAX),     // MAX_PITCH
    (12, 65_536),       // MAX_REGISTERS_PER_BLOCK
    (14, 512),          // TEXTURE_ALIGNMENT
    (15, 1),            // GPU_OVERLAP
    (19, 1),            // CAN_MAP_HOST_MEMORY
    (21, 131_072),      // MAXIMUM_TEXTURE1D_WIDTH
    (22, 131_072),      // MAXIMUM_TEXTURE2D_WIDTH
    (23, 65_536),       // MAXIMUM_TEXTURE2D_HEIGHT
    (24, 16_384),       // MAXIMUM_TEXTURE3D_WIDTH
    (25, 16_384),       // MAXIMUM_TEXTURE3D_HEIGHT
    (26, 16_384),       // MAXIMUM_TEXTURE3D_DEPTH
    (30, 512),          // SURFACE_ALIGNMENT
    (31, 1),            // CONCURRENT_KERNELS
    (40, 3),            // ASYNC_ENGINE_COUNT
    (41, 1),            // UNIFIED_ADDRESSING
    (51, 32),           // TEXTURE_PITCH_ALIGNMENT
    (78, 1),            // STREAM_PRIORITIES_SUPPORTED
    (79, 1),            // GLOBAL_L1_CACHE_SUPPORTED
    (80, 1),            // LOCAL_L1_CACHE_SUPPORTED
    (82, 65_536),       // MAX_REGISTERS_PER_MULTIPROCESSOR
    (83, 1),            // MANAGED_MEMORY
    (89, 1),            // CONCURRENT_MANAGED_ACCESS
    (90, 1),            // COMPUTE_PREEMPTION_SUPPORTED
    (91, 1),            // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
    (95, 1),            // COOPERATIVE_LAUNCH
    (98, 1),            // CAN_FLUSH_REMOTE_WRITES
    (99, 1),            // HOST_REGISTER_SUPPORTED
    (102, 1),           // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    (103, 1),           // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
    (109, 134_213_632), // MAX_ACCESS_POLICY_WINDOW_SIZE
    (113, 1),           // READ_ONLY_HOST_REGISTER_SUPPORTED
    (115, 1),           // MEMORY_POOLS_SUPPORTED
    (119, 1),           // MEMPOOL_SUPPORTED_HANDLE_TYPES
    (122, 1),           // CAN_USE_64_BIT_STREAM_MEM_OPS
    (123, 1),           // CAN_USE_STREAM_WAIT_VALUE_NOR
    (125, 1),           // IPC_EVENT_SUPPORTED
    (129, 1),           // UNIFIED_FUNCTION_POINTERS
    (141, 1),           // HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    (145, 1),           // HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
];

/// Returns the value of an attribute; 0 for one that no card here has.
fn attribute(model: &Model, number: i32) -> i32 {
    let limits = model.limits();
    let is_hopper_or_newer = model.capability.0 >= 9;
    let sync_domains = if is_hopper_or_newer { 4 } else { 1 };
    let value = match number {
        13 => model.clock_khz,                              // CLOCK_RATE, kHz
        16 => model.multiprocessors,                        // MULTIPROCESSOR_COUNT
        36 => model.memory_clock_khz,                       // MEMORY_CLOCK_RATE, kHz
        37 => model.bus_bits,                               // GLOBAL_MEMORY_BUS_WIDTH
        38 => model.l2,                                     // L2_CACHE_SIZE
        39 => limits.threads,                               // MAX_THREADS_PER_MULTIPROCESSOR
        75 => model.capability.0.into(),                    // COMPUTE_CAPABILITY_MAJOR
        76 => model.capability.1.into(),                    // COMPUTE_CAPABILITY_MINOR
        81 => limits.shared,                                // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
        87 => limits.single_to_double,                      // SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO
        97 => limits.shared_of_a_block,                     // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        106 => limits.blocks,                               // MAX_BLOCKS_PER_MULTIPROCESSOR
        108 if model.capability.0 >= 8 => model.l2 / 8 * 5, // MAX_PERSISTING_L2_CACHE_SIZE, as an H100 has it
        111 => limits.shared_reserved,                      // RESERVED_SHARED_MEMORY_PER_BLOCK
        120 | 127 => is_hopper_or_newer.into(),             // CLUSTER_LAUNCH, TENSOR_MAP_ACCESS_SUPPORTED
        126 => sync_domains,                                // MEM_SYNC_DOMAIN_COUNT
        _ => return ATTRIBUTES.iter().find(|(known, _)| *known == number).map_or(0, |(_, value)| *value),
    };
    i32::try_from(value).unwrap_or(i32::MAX)
}

const PCI_BUS_ID: i32 = 33;
const PCI_DEVICE_ID: i32 = 34;

/// Returns the bus number of a device, as in `0000:02:00.0`.
fn bus(state: &DriverState, device: usize) -> i32 {
    state.cards.physical(device) as i32 + 1
}

/// # Safety
/// `to` has room for `len` characters.
unsafe fn text(to: *mut c_char, len: i32, text: &[u8]) -> Answer {
    let room = usize::try_from(len).map_err(|_| Code::INVALID_VALUE)?;
    if to.is_null() || room == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let count = text.len().min(room - 1);
    // SAFETY: `count` + 1 characters fit, as the caller promised `len` of them.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, count);
        to.add(count).write(0);
    }
    Ok(())
}

api! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        initialise()?;
    }

    fn cuDriverGetVersion(version: *mut i32) {
        answer(version, DRIVER_VERSION)?;
    }

    fn cuDeviceGet(device: *mut i32, ordinal: i32) {
        answer(device, state()?.device(ordinal)? as i32)?;
    }

    fn cuDeviceGetCount(count: *mut i32) {
        answer(count, state()?.cards.devices() as i32)?;
    }

    fn cuDeviceGetName(name: *mut c_char, len: i32, device: i32) {
        let state = state()?;
        state.device(device)?;
        text(name, len, state.cards.model().device_name.as_bytes())?;
    }

    fn cuDeviceGetUuid_v2 | cuDeviceGetUuid (to: *mut [u8; 16], device: i32) {
        let state = state()?;
        answer(to, simgpu_cards::uuid(state.cards.physical(state.device(device)?)))?;
    }

    fn cuDeviceGetLuid(_luid: *mut c_char, _mask: *mut u32, _device: i32) {
        return Err(Code::NOT_SUPPORTED); // Windows only
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: i32) {
        let state = state()?;
        state.device(device)?;
        answer(bytes, state.cards.memory() as usize)?;
    }

    fn cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32) {
        let state = state()?;
        let device = state.device(device)?;
        let known = match attribute {
            PCI_BUS_ID => bus(&state, device),
            PCI_DEVICE_ID => 0,
            1..=200 => self::attribute(state.cards.model(), attribute),
            _ => return Err(Code::INVALID_VALUE),
        };
        answer(value, known)?;
    }

    fn cuDeviceGetPCIBusId(to: *mut c_char, len: i32, device: i32) {
        let state = state()?;
        let bus = bus(&state, state.device(device)?);
        text(to, len, format!("0000:{bus:02X}:00.0").as_bytes())?;
    }

    fn cuDeviceGetByPCIBusId(device: *mut i32, id: *const c_char) {
        let wanted = CStr::from_ptr(id).to_string_lossy().to_ascii_uppercase();
        let state = state()?;
        let mut devices = 0..state.cards.devices();
        let found = devices.find(|device| wanted.contains(&format!("{:02X}:00", bus(&state, *device))));
        answer(device, found.ok_or(Code::INVALID_DEVICE)? as i32)?;
    }

    fn cuDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32) {
        let state = state()?;
        let different = state.device(device)? != state.device(peer)?;
        answer(can, i32::from(different))?;
    }

    fn cuDeviceGetP2PAttribute(value: *mut i32, attribute: i32, from: i32, to: i32) {
        let state = state()?;
        if state.device(from)? == state.device(to)? {
            return Err(Code::INVALID_DEVICE);
        }
        answer(value, i32::from(matches!(attribute, 2..=4)))?;
    }

    fn cuDeviceGetExecAffinitySupport(supported: *mut i32, _kind: i32, _device: i32) {
        answer(supported, 0)?;
    }

    fn cuDeviceGetTexture1DLinearMaxWidth(width: *mut usize, _format: i32, _channels: u32, _device: i32) {
        answer(width, 1 << 28)?;
    }

    fn cuFlushGPUDirectRDMAWrites(_target: i32, _scope: i32) {}

    fn cuProfilerStart() {}

    fn cuProfilerStop() {}

    fn cuGetExportTable(table: *mut *const u8, _id: *const [u8; 16]) {
        // NVIDIA's own runtime requests this table; the simulated one does not.
        real_runtime::explain();
        answer_if_asked(table, std::ptr::null());
        return Err(Code::NOT_FOUND);
    }
}
