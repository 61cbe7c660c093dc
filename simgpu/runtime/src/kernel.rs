//! Kernels: the symbols that compiled code registers when the program is loaded, and launches.
//!
//! The first use of a kernel or variable loads its binary as a driver library, as with lazy loading.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::sync::{PoisonError, RwLock};

use crate::api::{answer, api, api_without_context};
use crate::code::{Answer, Error};
use crate::current::current;
use crate::driver_calls::Driver;

/// `dim3`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Dimensions {
    x: u32,
    y: u32,
    z: u32,
}

/// A registered host stub of a kernel or host shadow of a variable.
struct Symbol {
    binary: usize,
    /// A NUL-terminated string in the program.
    name: usize,
    /// A variable's size; 0 for a kernel.
    bytes: usize,
    /// The driver's kernel handle, after the first request.
    kernel: usize,
}

#[derive(Default)]
struct Registered {
    /// Address of the code and, once loaded, the driver's library handle; the index is the number of the binary.
    binaries: Vec<(usize, usize)>,
    symbols: Option<HashMap<usize, Symbol>>,
}

static REGISTERED: RwLock<Registered> = RwLock::new(Registered { binaries: Vec::new(), symbols: None });

fn change<R>(body: impl FnOnce(&mut Registered) -> R) -> R {
    body(&mut REGISTERED.write().unwrap_or_else(PoisonError::into_inner))
}

fn add(handle: *mut *mut c_void, shadow: usize, name: *const c_char, bytes: usize) {
    // SAFETY: the handle is one that __cudaRegisterFatBinary made.
    let binary = unsafe { handle.cast::<usize>().read() };
    let symbol = Symbol { binary, name: name as usize, bytes, kernel: 0 };
    change(|registered| registered.symbols.get_or_insert_default().insert(shadow, symbol));
}

/// Returns the driver's library of a binary.
fn library(cu: &Driver, registered: &mut Registered, binary: usize) -> Result<usize, Error> {
    let (code, library) = registered.binaries.get_mut(binary).ok_or(Error::INVALID_SYMBOL)?;
    if *library == 0 {
        let null = std::ptr::null_mut();
        // SAFETY: the code is what the program registered; no options are passed.
        unsafe { cu.cuLibraryLoadData(library, *code as *const u8, null, null.cast(), 0, null, null.cast(), 0) }?;
    }
    Ok(*library)
}

/// Returns the driver's kernel of a host stub. An unregistered address is taken as a kernel handle.
fn kernel(cu: &Driver, stub: usize) -> Result<usize, Error> {
    {
        let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
        match registered.symbols.as_ref().and_then(|symbols| symbols.get(&stub)) {
            Some(Symbol { kernel, .. }) if *kernel != 0 => return Ok(*kernel),
            Some(_) => {}
            None if stub == 0 => return Err(Error::INVALID_DEVICE_FUNCTION),
            None => return Ok(stub),
        }
    }
    change(|registered| {
        let symbols = registered.symbols.get_or_insert_default();
        let (binary, name) = symbols.get(&stub).map(|symbol| (symbol.binary, symbol.name)).ok_or(Error::UNKNOWN)?;
        let library = library(cu, registered, binary)?;
        let mut kernel = 0;
        // SAFETY: the name is the string the program registered.
        unsafe { cu.cuLibraryGetKernel(&mut kernel, library, name as *const c_char) }?;
        if let Some(symbol) = registered.symbols.get_or_insert_default().get_mut(&stub) {
            symbol.kernel = kernel;
        }
        Ok(kernel)
    })
}

/// Returns address and size of a variable on the current device.
pub fn variable(cu: &Driver, shadow: usize) -> Result<(u64, usize), Error> {
    change(|registered| {
        let symbols = registered.symbols.get_or_insert_default();
        let symbol = symbols.get(&shadow).filter(|symbol| symbol.bytes > 0).ok_or(Error::INVALID_SYMBOL)?;
        let (binary, name, bytes) = (symbol.binary, symbol.name, symbol.bytes);
        let library = library(cu, registered, binary)?;
        let (mut address, mut room) = (0, 0);
        // SAFETY: the name is the string the program registered.
        unsafe { cu.cuLibraryGetGlobal(&mut address, &mut room, library, name as *const c_char) }?;
        if bytes > room {
            return Err(Error::NOT_SUPPORTED);
        }
        Ok((address, bytes))
    })
}

/// Marks all libraries as not loaded after a device reset.
pub fn forget_libraries() {
    change(|registered| {
        registered.binaries.iter_mut().for_each(|(_, library)| *library = 0);
        registered.symbols.get_or_insert_default().values_mut().for_each(|symbol| symbol.kernel = 0);
    });
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn __cudaRegisterFatBinary(code: *const c_void) -> *mut *mut c_void {
    // Never freed: a few words per library, and the program holds the handle until it ends.
    let number = change(|registered| {
        registered.binaries.push((code as usize, 0));
        registered.binaries.len() - 1
    });
    Box::into_raw(Box::new(number)).cast()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn __cudaRegisterFatBinaryEnd(_handle: *mut *mut c_void) {}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn __cudaUnregisterFatBinary(_handle: *mut *mut c_void) {}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn __cudaInitModule(_handle: *mut *mut c_void) -> c_char {
    1
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, clippy::too_many_arguments)]
extern "C" fn __cudaRegisterFunction(
    handle: *mut *mut c_void,
    stub: usize,
    _device_function: *mut c_char,
    name: *const c_char,
    _thread_limit: i32,
    _thread: *mut c_void,
    _block: *mut c_void,
    _block_size: *mut c_void,
    _grid_size: *mut c_void,
    _warp_size: *mut i32,
) {
    add(handle, stub, name, 0);
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, clippy::too_many_arguments)]
extern "C" fn __cudaRegisterVar(
    handle: *mut *mut c_void,
    shadow: usize,
    _device_address: *mut c_char,
    name: *const c_char,
    _external: i32,
    bytes: usize,
    _constant: i32,
    _global: i32,
) {
    add(handle, shadow, name, bytes);
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, clippy::too_many_arguments)]
extern "C" fn __cudaRegisterManagedVar(
    handle: *mut *mut c_void,
    shadow: usize,
    _device_address: *mut c_char,
    name: *const c_char,
    _external: i32,
    bytes: usize,
    _constant: i32,
    _global: i32,
) {
    add(handle, shadow, name, bytes);
}

/// Grid, block, shared memory and stream of a `<<<…>>>`.
type Configuration = (Dimensions, Dimensions, usize, usize);

thread_local! {
    /// Launches between `__cudaPushCallConfiguration` and the stub that pops it.
    static CONFIGURATIONS: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn __cudaPushCallConfiguration(grid: Dimensions, block: Dimensions, shared: usize, stream: usize) -> u32 {
    CONFIGURATIONS.with_borrow_mut(|all| all.push((grid, block, shared, stream)));
    0
}

/// # Safety
/// The pointers have room for their answers, as in the compiler's stubs.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
unsafe extern "C" fn __cudaPopCallConfiguration(
    grid: *mut Dimensions,
    block: *mut Dimensions,
    shared: *mut usize,
    stream: *mut usize,
) -> i32 {
    match CONFIGURATIONS.with_borrow_mut(Vec::pop) {
        Some(configuration) => {
            // SAFETY: the stub passes pointers to its locals.
            unsafe {
                grid.write(configuration.0);
                block.write(configuration.1);
                shared.write(configuration.2);
                stream.write(configuration.3);
            }
            0
        }
        None => Error::UNKNOWN.0,
    }
}

/// # Safety
/// None for the parameters: the driver ignores them, as no kernel runs.
unsafe fn launch(
    cu: &Driver,
    kernel: usize,
    grid: Dimensions,
    block: Dimensions,
    params: *mut usize,
    shared: usize,
    stream: usize,
) -> Answer {
    let (g, b, null) = (grid, block, std::ptr::null_mut());
    // SAFETY: the driver does not read the parameters.
    unsafe { cu.cuLaunchKernel(kernel, g.x, g.y, g.z, b.x, b.y, b.z, shared as u32, stream, params, null) }
}

/// `cudaLaunchConfig_t` (56 bytes).
#[repr(C)]
pub struct LaunchConfiguration {
    grid: Dimensions,
    block: Dimensions,
    shared: usize,
    stream: usize,
    attributes: usize,
    count: u32,
}

/// `CUlaunchConfig` (56 bytes).
#[repr(C)]
struct DriverLaunchConfiguration {
    grid: Dimensions,
    block: Dimensions,
    shared: u32,
    stream: usize,
    attributes: usize,
    count: u32,
}

const _: () = assert!(size_of::<LaunchConfiguration>() == 56 && size_of::<DriverLaunchConfiguration>() == 56);

/// # Safety
/// `config` points to a whole configuration.
unsafe fn launch_config(cu: &Driver, config: *const LaunchConfiguration, stub: usize, params: *mut usize) -> Answer {
    // SAFETY: the caller vouches for the pointer.
    let config = unsafe { config.as_ref() }.ok_or(Error::INVALID_VALUE)?;
    let LaunchConfiguration { grid, block, shared, stream, attributes, count } = *config;
    let own = DriverLaunchConfiguration { grid, block, shared: shared as u32, stream, attributes, count };
    // SAFETY: `own` is a whole configuration.
    unsafe { cu.cuLaunchKernelEx((&raw const own).cast(), kernel(cu, stub)?, params, std::ptr::null_mut()) }
}

/// `cudaFuncAttributes`: 144 bytes in CUDA 12 and 13.
#[repr(C)]
pub struct FunctionAttributes {
    shared: usize,
    constant: usize,
    local: usize,
    max_threads: i32,
    registers: i32,
    ptx: i32,
    binary: i32,
    cache_mode: i32,
    max_dynamic_shared: i32,
    rest: [i32; 24],
}

const _: () = assert!(size_of::<FunctionAttributes>() == 144);

fn attributes(cu: &Driver, kernel: usize) -> Result<FunctionAttributes, Error> {
    let attribute = |number: i32| {
        let mut value = 0;
        // SAFETY: the answer goes to a local.
        unsafe { cu.cuKernelGetAttribute(&mut value, number, kernel, current()) }.map(|()| value)
    };
    Ok(FunctionAttributes {
        max_threads: attribute(0)?,
        shared: attribute(1)? as usize,
        constant: attribute(2)? as usize,
        local: attribute(3)? as usize,
        registers: attribute(4)?,
        ptx: attribute(5)?,
        binary: attribute(6)?,
        cache_mode: attribute(7)?,
        max_dynamic_shared: attribute(8)?,
        rest: [0; 24],
    })
}

api! {
    fn cudaLaunchKernel | cudaLaunchKernel_ptsz (
        cu; stub: usize, grid: Dimensions, block: Dimensions, params: *mut usize, shared: usize, stream: usize,
    ) {
        launch(cu, kernel(cu, stub)?, grid, block, params, shared, stream)?;
    }

    fn __cudaLaunchKernel | __cudaLaunchKernel_ptsz (
        cu; kernel: usize, grid: Dimensions, block: Dimensions, params: *mut usize, shared: usize, stream: usize,
    ) {
        launch(cu, kernel, grid, block, params, shared, stream)?;
    }

    fn cudaLaunchCooperativeKernel | cudaLaunchCooperativeKernel_ptsz (
        cu; stub: usize, g: Dimensions, b: Dimensions, params: *mut usize, shared: usize, stream: usize,
    ) {
        let kernel = kernel(cu, stub)?;
        cu.cuLaunchCooperativeKernel(kernel, g.x, g.y, g.z, b.x, b.y, b.z, shared as u32, stream, params)?;
    }

    fn cudaLaunchKernelExC | cudaLaunchKernelExC_ptsz (
        cu; config: *const LaunchConfiguration, stub: usize, params: *mut usize,
    ) {
        launch_config(cu, config, stub, params)?;
    }

    fn __cudaGetKernel(cu; to: *mut usize, stub: usize) {
        answer(to, kernel(cu, stub)?)?;
    }

    fn cudaGetKernel(cu; to: *mut usize, stub: usize) {
        answer(to, kernel(cu, stub)?)?;
    }

    fn cudaGetFuncBySymbol(cu; to: *mut usize, stub: usize) {
        cu.cuKernelGetFunction(to, kernel(cu, stub)?)?;
    }

    fn cudaFuncGetAttributes(cu; to: *mut FunctionAttributes, stub: usize) {
        answer(to, attributes(cu, kernel(cu, stub)?)?)?;
    }

    fn cudaFuncSetAttribute(cu; stub: usize, attribute: i32, value: i32) {
        cu.cuKernelSetAttribute(attribute, value, kernel(cu, stub)?, current())?;
    }

    fn cudaKernelSetAttributeForDevice(cu; kernel: usize, attribute: i32, value: i32, device: i32) {
        cu.cuKernelSetAttribute(attribute, value, kernel, device)?;
    }

    fn cudaFuncSetCacheConfig(_cu; _stub: usize, _config: i32) {}

    fn cudaFuncSetSharedMemConfig(_cu; _stub: usize, _config: i32) {}

    fn cudaFuncGetName(cu; name: *mut *const c_char, stub: usize) {
        cu.cuKernelGetName(name, kernel(cu, stub)?)?;
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(cu; to: *mut i32, stub: usize, size: i32, shared: usize) {
        cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(to, kernel(cu, stub)?, size, shared)?;
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        cu; to: *mut i32, stub: usize, size: i32, shared: usize, _flags: u32,
    ) {
        cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(to, kernel(cu, stub)?, size, shared)?;
    }

    fn cudaOccupancyAvailableDynamicSMemPerBlock(cu; to: *mut usize, stub: usize, blocks: i32, size: i32) {
        cu.cuOccupancyAvailableDynamicSMemPerBlock(to, kernel(cu, stub)?, blocks, size)?;
    }

    fn cudaOccupancyMaxPotentialClusterSize(cu; to: *mut i32, stub: usize, config: *const u8) {
        cu.cuOccupancyMaxPotentialClusterSize(to, kernel(cu, stub)?, config)?;
    }

    fn cudaOccupancyMaxActiveClusters(cu; to: *mut i32, stub: usize, config: *const u8) {
        cu.cuOccupancyMaxActiveClusters(to, kernel(cu, stub)?, config)?;
    }

    fn cudaLibraryLoadData(
        cu; library: *mut usize, code: *const u8, jit: *mut i32, jit_values: *mut usize, jit_count: u32,
        options: *mut i32, values: *mut usize, count: u32,
    ) {
        cu.cuLibraryLoadData(library, code, jit, jit_values, jit_count, options, values, count)?;
    }

    fn cudaLibraryLoadFromFile(
        cu; library: *mut usize, path: *const c_char, jit: *mut i32, jit_values: *mut usize, jit_count: u32,
        options: *mut i32, values: *mut usize, count: u32,
    ) {
        cu.cuLibraryLoadFromFile(library, path, jit, jit_values, jit_count, options, values, count)?;
    }

    fn cudaLibraryUnload(cu; library: usize) {
        cu.cuLibraryUnload(library)?;
    }

    fn cudaLibraryGetKernel(cu; kernel: *mut usize, library: usize, name: *const c_char) {
        cu.cuLibraryGetKernel(kernel, library, name)?;
    }

    fn cudaLibraryGetKernelCount(cu; count: *mut u32, library: usize) {
        cu.cuLibraryGetKernelCount(count, library)?;
    }

    fn cudaLibraryEnumerateKernels(cu; kernels: *mut usize, count: u32, library: usize) {
        cu.cuLibraryEnumerateKernels(kernels, count, library)?;
    }

    fn cudaLibraryGetGlobal(cu; to: *mut u64, bytes: *mut usize, library: usize, name: *const c_char) {
        cu.cuLibraryGetGlobal(to, bytes, library, name)?;
    }

    fn cudaLibraryGetManaged(cu; to: *mut u64, bytes: *mut usize, library: usize, name: *const c_char) {
        cu.cuLibraryGetManaged(to, bytes, library, name)?;
    }

    fn cudaLibraryGetUnifiedFunction(cu; function: *mut usize, library: usize, name: *const c_char) {
        cu.cuLibraryGetUnifiedFunction(function, library, name)?;
    }

    fn cudaGetSymbolAddress(cu; to: *mut u64, shadow: usize) {
        answer(to, variable(cu, shadow)?.0)?;
    }

    fn cudaGetSymbolSize(cu; to: *mut usize, shadow: usize) {
        answer(to, variable(cu, shadow)?.1)?;
    }

    fn cudaMemcpyToSymbol | cudaMemcpyToSymbol_ptds (
        cu; shadow: usize, from: u64, bytes: usize, offset: usize, kind: i32,
    ) {
        crate::memory::copy(cu, variable(cu, shadow)?.0 + offset as u64, from, bytes, kind)?;
    }

    fn cudaMemcpyToSymbolAsync | cudaMemcpyToSymbolAsync_ptsz (
        cu; shadow: usize, from: u64, bytes: usize, offset: usize, kind: i32, stream: usize,
    ) {
        crate::memory::copy_async(cu, variable(cu, shadow)?.0 + offset as u64, from, bytes, kind, stream)?;
    }

    fn cudaMemcpyFromSymbol | cudaMemcpyFromSymbol_ptds (
        cu; to: u64, shadow: usize, bytes: usize, offset: usize, kind: i32,
    ) {
        crate::memory::copy(cu, to, variable(cu, shadow)?.0 + offset as u64, bytes, kind)?;
    }

    fn cudaMemcpyFromSymbolAsync | cudaMemcpyFromSymbolAsync_ptsz (
        cu; to: u64, shadow: usize, bytes: usize, offset: usize, kind: i32, stream: usize,
    ) {
        crate::memory::copy_async(cu, to, variable(cu, shadow)?.0 + offset as u64, bytes, kind, stream)?;
    }
}

api_without_context! {
    fn cudaSetDoubleForDevice(_cu; _value: *mut f64) {}

    fn cudaSetDoubleForHost(_cu; _value: *mut f64) {}
}
