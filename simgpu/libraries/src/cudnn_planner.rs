//! The cuDNN that PyTorch is installed with, which plans without a device.
//!
//! Since 9.8, cuDNN chooses engines and their workspaces for a device given only by a description ("deviceless
//! ahead-of-time compilation"). The workspaces of the simulated card are therefore nearly those of the real one. Two
//! differences remain without a device. cuDNN does not offer the engines of cuBLASLt for convolutions with 1x1 filters.
//! Kernels that split their sum by the number of multiprocessors request a few MiB less. The rest of cuDNN stays
//! simulated: no handle of the real one is made.

use std::ffi::{CStr, c_void};
use std::sync::{LazyLock, OnceLock};

use simgpu_support::driver;

/// The first version that plans without a device.
const FIRST: usize = 90_800;

// cudnnBackendDescriptorType_t, cudnnBackendAttributeName_t and cudnnBackendAttributeType_t
const DEVICE_PROPERTIES: i32 = 38;
const DEVICE_PROPERTIES_JSON: i32 = 2702;
const TYPE_CHARACTER: i32 = 24;

// The functions, with their types in cudnn_graph.h.
type Version = unsafe extern "C" fn() -> usize;
type Create = unsafe extern "C" fn(i32, *mut usize) -> i32;
type Set = unsafe extern "C" fn(usize, i32, i32, i64, *const u8) -> i32;
type Get = unsafe extern "C" fn(usize, i32, i32, i64, *mut i64, *mut u8) -> i32;
type DescriptorCall = unsafe extern "C" fn(usize) -> i32;

/// The backend interface of the installed cuDNN.
pub struct Planner {
    pub version: usize,
    pub create: Create,
    pub destroy: DescriptorCall,
    pub set: Set,
    pub get: Get,
    pub finalize: DescriptorCall,
    /// Descriptor of the properties of the first device; all devices are the same card.
    device: OnceLock<usize>,
}

/// Returns the installed cuDNN; `None` if it is too old, or the program has not loaded one.
pub fn planner() -> Option<&'static Planner> {
    static PLANNER: LazyLock<Option<Planner>> = LazyLock::new(Planner::find);
    PLANNER.as_ref()
}

impl Planner {
    fn find() -> Option<Planner> {
        // SAFETY: the names are NUL-terminated; RTLD_NOLOAD loads nothing. Looked up in cuDNN's own library, the functions are the
        // real ones, whose types are those of cudnn_graph.h.
        unsafe {
            let library = libc::dlopen(c"libcudnn.so.9".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if library.is_null() {
                return None;
            }
            let find = |name: &CStr| {
                let function = libc::dlsym(library, name.as_ptr());
                (!function.is_null()).then_some(function)
            };
            let version = std::mem::transmute::<*mut c_void, Version>(find(c"cudnnGetVersion")?);
            let version = version();
            if version < FIRST {
                return None;
            }
            Some(Planner {
                version,
                create: std::mem::transmute::<*mut c_void, Create>(find(c"cudnnBackendCreateDescriptor")?),
                destroy: std::mem::transmute::<*mut c_void, DescriptorCall>(find(c"cudnnBackendDestroyDescriptor")?),
                set: std::mem::transmute::<*mut c_void, Set>(find(c"cudnnBackendSetAttribute")?),
                get: std::mem::transmute::<*mut c_void, Get>(find(c"cudnnBackendGetAttribute")?),
                finalize: std::mem::transmute::<*mut c_void, DescriptorCall>(find(c"cudnnBackendFinalize")?),
                device: OnceLock::new(),
            })
        }
    }

    /// Returns a descriptor of the properties of the device, or `None` before the program has initialized CUDA.
    pub fn device(&self) -> Option<usize> {
        self.device.get().copied().or_else(|| {
            let descriptor = self.described(&description(0)?)?;
            Some(*self.device.get_or_init(|| descriptor))
        })
    }

    fn described(&self, json: &str) -> Option<usize> {
        let mut descriptor = 0;
        // SAFETY: the types are those of cudnn_graph.h, and the length is that of the text.
        let is_made = unsafe {
            (self.create)(DEVICE_PROPERTIES, &mut descriptor) == 0
                && (self.set)(descriptor, DEVICE_PROPERTIES_JSON, TYPE_CHARACTER, json.len() as i64, json.as_ptr()) == 0
                && (self.finalize)(descriptor) == 0
        };
        is_made.then_some(descriptor)
    }
}

/// Describes a device in cuDNN's format. The format was read on an H100; cuDNN names missing members.
fn description(device: i32) -> Option<String> {
    // By CUdevice_attribute.
    const MEMBERS: [(&str, i32); 16] = [
        ("regsPerBlock", 12),
        ("multiProcessorCount", 16),
        ("warpSize", 10),
        ("maxSharedMemoryPerBlock", 8),
        ("maxSharedMemoryPerBlockOptin", 97),
        ("reservedSharedMemoryPerBlock", 111),
        ("maxRegistersPerSM", 82),
        ("maxCtasPerSM", 106),
        ("maxThreadsPerBlock", 1),
        ("maxThreadsPerSM", 39),
        ("pciDeviceId", 34),
        ("isTccDriver", 35),
        ("supportCoopLaunch", 95),
        ("smClockRateKHz", 13),
        ("memClockRateKHz", 36),
        ("l2CacheSize", 38),
    ];
    const DRIVER: i32 = 13_000;
    let attribute = |attribute| driver::device_attribute(device, attribute);
    let three = |first| Some(format!("[{},{},{}]", attribute(first)?, attribute(first + 1)?, attribute(first + 2)?));
    let mut json = format!("{{\"maxGridSize\":{},\"maxBlockSize\":{}", three(5)?, three(2)?);
    for (name, number) in MEMBERS {
        json += &format!(",\"{name}\":{}", attribute(number)?);
    }
    let version = attribute(75)? * 100 + attribute(76)? * 10;
    let name = driver::device_name(device)?.replace(['"', '\\'], "");
    let memory = driver::device_memory(device)?;
    json += &format!(
        ",\"totalGlobalMem\":{memory},\"cudaDeviceId\":{device},\"deviceVer\":{version},\"driverVer\":{DRIVER},\"deviceName\":\"{name}\"}}"
    );
    Some(json)
}
