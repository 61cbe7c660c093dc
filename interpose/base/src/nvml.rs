//! The functions of the NVIDIA management library that memlab uses.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use crate::symbols;

/// Maximum number of other processes reported for a card.
const MAX_OTHERS: usize = 16;

/// NVML, loaded and initialised.
pub struct Nvml {
    handle_by_bus_id: unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int,
    memory_v1: unsafe extern "C" fn(*mut c_void, *mut MemoryV1) -> c_int,
    memory_v2: Option<unsafe extern "C" fn(*mut c_void, *mut MemoryV2) -> c_int>,
    processes: Option<unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut ProcessInfo) -> c_int>,
    /// Queries for the generation and the width of a card's PCI Express link.
    link: Option<[unsafe extern "C" fn(*mut c_void, *mut c_uint) -> c_int; 2]>,
}

/// `nvmlMemory_t`, which counts the driver's own reserve as used.
#[repr(C)]
struct MemoryV1 {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`, which counts like `nvidia-smi` and `cudaMemGetInfo`: the driver's own reserve is neither used nor
/// free.
#[repr(C)]
struct MemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

impl MemoryV2 {
    /// `nvmlMemory_v2`
    const VERSION: c_uint = size_of::<Self>() as c_uint | 2 << 24;
}

/// `nvmlProcessInfo_t`, as `nvmlDeviceGetComputeRunningProcesses_v2` and `_v3` fill it.
#[repr(C)]
#[derive(Clone, Copy)]
struct ProcessInfo {
    pid: c_uint,
    used: u64,
    instances: [c_uint; 2],
}

pub struct Usage {
    pub used: u64,
    /// Bytes of the card that programs can use, as CUDA reports it.
    pub total: u64,
    pub process: Option<u64>,
    /// Other processes and the bytes that each holds, the largest first; none if NVML does not list this process.
    pub others: Vec<(u32, u64)>,
}

impl Nvml {
    const SUCCESS: c_int = 0;
    /// NVML's value for an unavailable figure (`NVML_VALUE_NOT_AVAILABLE`).
    const NOT_AVAILABLE: u64 = u64::MAX;

    /// Loads and initialises NVML; `None` if it is not installed (it comes with the driver).
    pub fn load() -> Option<Self> {
        // SAFETY: loading a system library by its soname; the signatures are those of nvml.h.
        unsafe {
            let library = libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
            if library.is_null() {
                return None;
            }
            let find = |name: &CStr| {
                let found = symbols::real_dlsym()(library, name.as_ptr());
                (!found.is_null()).then_some(found)
            };
            let initialise: unsafe extern "C" fn() -> c_int = std::mem::transmute(find(c"nvmlInit_v2")?);
            if initialise() != Self::SUCCESS {
                return None;
            }
            Some(Self {
                handle_by_bus_id: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int,
                >(find(c"nvmlDeviceGetHandleByPciBusId_v2")?),
                memory_v1: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, *mut MemoryV1) -> c_int>(
                    find(c"nvmlDeviceGetMemoryInfo")?,
                ),
                memory_v2: find(c"nvmlDeviceGetMemoryInfo_v2").map(|found| {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, *mut MemoryV2) -> c_int>(found)
                }),
                processes: find(c"nvmlDeviceGetComputeRunningProcesses_v3")
                    .or_else(|| find(c"nvmlDeviceGetComputeRunningProcesses_v2"))
                    .map(|found| {
                        std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut ProcessInfo) -> c_int,
                        >(found)
                    }),
                link: find(c"nvmlDeviceGetMaxPcieLinkGeneration").zip(find(c"nvmlDeviceGetMaxPcieLinkWidth")).map(
                    |(generation, width)| {
                        [generation, width].map(|found| {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, *mut c_uint) -> c_int>(
                                found,
                            )
                        })
                    },
                ),
            })
        }
    }

    fn card(&self, bus_id: &str) -> Option<*mut c_void> {
        let bus_id = CString::new(bus_id).ok()?;
        let mut card = std::ptr::null_mut();
        // SAFETY: NVML is initialised; it writes to the variable.
        let found = unsafe { (self.handle_by_bus_id)(bus_id.as_ptr(), &mut card) } == Self::SUCCESS;
        found.then_some(card)
    }

    /// Bytes per second of a card's link to the host, in one direction.
    pub fn link(&self, bus_id: &str) -> Option<u64> {
        let card = self.card(bus_id)?;
        let ask = |function: unsafe extern "C" fn(*mut c_void, *mut c_uint) -> c_int| {
            let mut figure = 0;
            // SAFETY: NVML is initialised; it writes to the variable.
            let known = unsafe { function(card, &mut figure) } == Self::SUCCESS;
            known.then_some(figure)
        };
        let [generation, width] = self.link?;
        pci_express(ask(generation)?, ask(width)?)
    }

    pub fn usage(&self, bus_id: &str, pid: u32) -> Option<Usage> {
        let card = self.card(bus_id)?;
        let (used, total) = self.memory(card)?;
        let processes = self.processes(card).unwrap_or_default();
        // A container with its own process ids does not list this process, and the others cannot be identified.
        let (process, others) = match processes.iter().find(|(other, _)| *other == pid) {
            Some((_, process)) => {
                let mut others: Vec<(u32, u64)> =
                    processes.iter().filter(|(other, bytes)| *other != pid && *bytes > 0).copied().collect();
                others.sort_unstable_by_key(|(other, bytes)| (std::cmp::Reverse(*bytes), *other));
                others.truncate(MAX_OTHERS);
                (Some(*process), others)
            }
            None => (None, Vec::new()),
        };
        Some(Usage { used, total, process, others })
    }

    /// A card's used bytes, and its usable bytes.
    fn memory(&self, card: *mut c_void) -> Option<(u64, u64)> {
        if let Some(ask) = self.memory_v2 {
            let mut memory = MemoryV2 { version: MemoryV2::VERSION, total: 0, reserved: 0, free: 0, used: 0 };
            // SAFETY: NVML is initialised; it writes to the variable, whose version determines the layout.
            if unsafe { ask(card, &mut memory) } == Self::SUCCESS {
                return Some((memory.used, memory.total.saturating_sub(memory.reserved)));
            }
        }
        // Drivers before 510 do not report their own reserve.
        let mut memory = MemoryV1 { total: 0, free: 0, used: 0 };
        // SAFETY: NVML is initialised; it writes to the variable.
        let known = unsafe { (self.memory_v1)(card, &mut memory) } == Self::SUCCESS;
        known.then_some((memory.used, memory.total))
    }

    /// Returns the processes that compute on a card and the bytes of each.
    ///
    /// Omits those whose bytes NVML does not report.
    fn processes(&self, card: *mut c_void) -> Option<Vec<(u32, u64)>> {
        let mut processes = [ProcessInfo { pid: 0, used: 0, instances: [0; 2] }; 128];
        let mut count = processes.len() as c_uint;
        // SAFETY: the array has room for `count` entries.
        if unsafe { self.processes?(card, &mut count, processes.as_mut_ptr()) } != Self::SUCCESS {
            return None;
        }
        let told = processes.iter().take(count as usize).filter(|process| process.used != Self::NOT_AVAILABLE);
        Some(told.map(|process| (process.pid, process.used)).collect())
    }
}

/// Bytes per second of a PCI Express link with this many lanes, in one direction.
///
/// PCI-SIG: 2.5, 5, 8, 16, 32 and 64 GT/s. The first two generations send 8 bits in 10, those up to the fifth 128 in 130,
/// the sixth 236 of 256 bytes.
fn pci_express(generation: u32, lanes: u32) -> Option<u64> {
    let (megatransfers, sent, of): (u64, u64, u64) = match generation {
        1 => (2_500, 8, 10),
        2 => (5_000, 8, 10),
        3 => (8_000, 128, 130),
        4 => (16_000, 128, 130),
        5 => (32_000, 128, 130),
        6 => (64_000, 236, 256),
        _ => return None,
    };
    (lanes > 0).then(|| megatransfers * 1_000_000 * u64::from(lanes) / 8 * sent / of)
}

#[cfg(test)]
mod tests {
    use super::pci_express;

    #[test]
    fn links_have_the_speed_of_their_generation_and_width() {
        assert_eq!(pci_express(3, 16), Some(15_753_846_153));
        assert_eq!(pci_express(5, 16), Some(63_015_384_615));
        assert_eq!(pci_express(2, 4), Some(2_000_000_000));
        assert_eq!((pci_express(5, 0), pci_express(9, 16)), (None, None));
    }
}
