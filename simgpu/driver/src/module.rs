//! Modules, libraries, functions and launches. No code is read and no kernel runs: every requested name exists.

use std::ffi::{CStr, c_char};

use simgpu_cards::Model;
use simgpu_observer::{Arithmetic, GraphNode, SIMULATED_CODE, Task};

use crate::allocation::allocate_on;
use crate::api::{answer, answer_if_asked, api};
use crate::capture;
use crate::code::{Answer, Code};
use crate::current::current_device;
use crate::objects::Work;
use crate::objects::{Function, Library};
use crate::space::Kind;
use crate::state::{DriverState, state};
use crate::stream_handle;
use crate::submitted;

/// Address space of a module's variable, whose real size is unknown; committed when touched.
const GLOBAL_BYTES: u64 = 16 << 20;

/// `CU_FUNC_ATTRIBUTE_NUM_REGS`.
const REGISTERS: usize = 4;

/// Returns the `CUfunction_attribute` values of a new kernel: 1024 threads per block, 32 registers, compiled for this
/// card, 48 KiB of shared memory.
fn attributes(model: &Model) -> [i32; 16] {
    let version = i32::from(model.capability.0) * 10 + i32::from(model.capability.1);
    [1024, 0, 0, 0, 32, version, version, 0, 49_152, -1, 0, 0, 0, 0, 0, 0]
}

/// # Safety
/// `to` has room for a handle, and `code` is null or points to code, a path or [`SIMULATED_CODE`].
unsafe fn load(to: *mut usize, code: *const u8) -> Answer {
    let mut state = state()?;
    let handle = state.new_handle();
    let is_byte = |(at, byte): (usize, &u8)| {
        // SAFETY: the bytes before this one were equal, so the code has this one.
        unsafe { code.add(at).read() == *byte }
    };
    let is_simulated = !code.is_null() && SIMULATED_CODE.to_bytes_with_nul().iter().enumerate().all(is_byte);
    state.libraries.insert(handle, Library { is_simulated, ..Library::default() });
    // SAFETY: the caller vouches for the pointer.
    unsafe { answer(to, handle) }
}

fn unload(library: usize) -> Answer {
    let mut state = state()?;
    let library = state.libraries.remove(&library).ok_or(Code::INVALID_HANDLE)?;
    for function in library.functions.values() {
        state.functions.remove(function);
    }
    for address in library.globals.values() {
        if let Some(block) = state.space.remove(*address) {
            crate::allocation::release(&mut state, block);
        }
    }
    Ok(())
}

/// # Safety
/// `name` is a NUL-terminated string or null, `to` has room for a handle.
unsafe fn function(to: *mut usize, library: usize, name: *const c_char) -> Answer {
    if name.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller vouches for the rest.
    let name = unsafe { CStr::from_ptr(name) };
    let mut state = state()?;
    let known = state.libraries.get(&library).ok_or(Code::INVALID_HANDLE)?;
    let is_simulated = known.is_simulated;
    let known = known.functions.get(name).copied();
    let handle = known.unwrap_or_else(|| {
        let handle = state.new_handle();
        let attributes = attributes(state.cards.model());
        state.functions.insert(handle, Function { library, name: Box::leak(name.into()), attributes, is_simulated });
        if let Some(library) = state.libraries.get_mut(&library) {
            library.functions.insert(name.to_owned(), handle);
        }
        handle
    });
    // SAFETY: the caller vouches for `to`.
    unsafe { answer(to, handle) }
}

/// # Safety
/// `name` is a NUL-terminated string or null; `address` and `size` are null or have room for an answer.
unsafe fn global(address: *mut u64, size: *mut usize, library: usize, name: *const c_char) -> Answer {
    if name.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller vouches for the rest.
    let name = unsafe { CStr::from_ptr(name) };
    let mut state = state()?;
    let (context, device) = current_device(&state)?;
    let key = (name.to_owned(), device);
    let known = state.libraries.get(&library).ok_or(Code::INVALID_HANDLE)?.globals.get(&key).copied();
    let base = match known {
        Some(base) => base,
        None => {
            let base = allocate_on(&mut state, GLOBAL_BYTES, Kind::Global, context, device, false)?;
            state.libraries.get_mut(&library).ok_or(Code::INVALID_HANDLE)?.globals.insert(key, base);
            base
        }
    };
    // SAFETY: the caller vouches for both pointers.
    unsafe {
        answer_if_asked(address, base);
        answer_if_asked(size, GLOBAL_BYTES as usize);
    }
    Ok(())
}

fn attribute(state: &DriverState, function: usize, attribute: i32) -> Result<i32, Code> {
    let function = state.functions.get(&function).ok_or(Code::INVALID_HANDLE)?;
    let index = usize::try_from(attribute).map_err(|_| Code::INVALID_VALUE)?;
    function.attributes.get(index).copied().ok_or(Code::INVALID_VALUE)
}

fn set_attribute(state: &mut DriverState, function: usize, attribute: i32, value: i32) -> Answer {
    let function = state.functions.get_mut(&function).ok_or(Code::INVALID_HANDLE)?;
    let index = usize::try_from(attribute).map_err(|_| Code::INVALID_VALUE)?;
    *function.attributes.get_mut(index).ok_or(Code::INVALID_VALUE)? = value;
    Ok(())
}

/// Launches a kernel: a no-op, or a node when the stream captures.
///
/// # Safety
/// `params` has the parameters of the kernel.
unsafe fn launch(
    function: usize,
    (grid, block): ([u32; 3], [u32; 3]),
    shared: u32,
    stream: usize,
    params: *mut *mut u8,
) -> Answer {
    let mut state = state()?;
    stream_handle::check(&state, stream)?;
    let known = state.functions.get(&function).ok_or(Code::INVALID_HANDLE)?;
    let registers = known.attributes[REGISTERS] as u32;
    let arithmetic = match known.is_simulated && !params.is_null() {
        // SAFETY: the caller vouches for the parameters, and kernels of the simulated libraries have this one.
        true => unsafe { (*params).cast::<Arithmetic>().read() },
        false => Arithmetic::default(),
    };
    let task = Task::Kernel { name: known.name.as_ptr(), grid, block, shared, registers, arithmetic };
    if block.iter().product::<u32>() == 0 || block.iter().product::<u32>() > 1024 {
        return Err(Code::INVALID_VALUE);
    }
    if capture::submit_task(&mut state, stream, Work::KERNEL, Some(task))? {
        let submitted_work = submitted::on_stream(&state, task, stream, GraphNode::default());
        drop(state);
        submitted::notify(submitted_work);
    }
    Ok(())
}

fn blocks_per_multiprocessor(state: &DriverState, block_size: i32) -> i32 {
    let limits = state.cards.model().limits();
    (limits.threads / (block_size.max(1) as u32).next_multiple_of(32)).clamp(1, limits.blocks) as i32
}

/// Returns grid and block of the potentially fastest launch.
fn potential(state: &DriverState, limit: i32) -> (i32, i32) {
    let size = if limit > 0 { limit.min(1024) } else { 1024 };
    (state.cards.model().multiprocessors as i32 * blocks_per_multiprocessor(state, size), size)
}

api! {
    fn cuModuleLoad(module: *mut usize, path: *const c_char) {
        let path = CStr::from_ptr(path).to_string_lossy();
        if !std::path::Path::new(path.as_ref()).exists() {
            return Err(Code::FILE_NOT_FOUND);
        }
        load(module, path.as_ptr())?;
    }

    fn cuModuleLoadData(module: *mut usize, image: *const u8) {
        load(module, image)?;
    }

    fn cuModuleLoadDataEx(
        module: *mut usize, image: *const u8, _count: u32, _options: *mut i32, _values: *mut *mut u8,
    ) {
        load(module, image)?;
    }

    fn cuModuleLoadFatBinary(module: *mut usize, image: *const u8) {
        load(module, image)?;
    }

    fn cuModuleUnload(module: usize) {
        unload(module)?;
    }

    fn cuModuleGetLoadingMode(mode: *mut i32) {
        answer(mode, 2)?; // CU_MODULE_LAZY_LOADING
    }

    fn cuModuleGetFunction(to: *mut usize, module: usize, name: *const c_char) {
        function(to, module, name)?;
    }

    fn cuModuleGetFunctionCount(count: *mut u32, _module: usize) {
        answer(count, 0)?;
    }

    fn cuModuleGetGlobal_v2(address: *mut u64, size: *mut usize, module: usize, name: *const c_char) {
        global(address, size, module, name)?;
    }

    fn cuLibraryLoadData(
        library: *mut usize, code: *const u8, _jit: *mut i32, _jit_values: *mut *mut u8, _jit_count: u32,
        _options: *mut i32, _values: *mut *mut u8, _count: u32,
    ) {
        load(library, code)?;
    }

    fn cuLibraryLoadFromFile(
        library: *mut usize, path: *const u8, _jit: *mut i32, _jit_values: *mut *mut u8, _jit_count: u32,
        _options: *mut i32, _values: *mut *mut u8, _count: u32,
    ) {
        load(library, path)?;
    }

    fn cuLibraryUnload(library: usize) {
        unload(library)?;
    }

    fn cuLibraryGetKernel(kernel: *mut usize, library: usize, name: *const c_char) {
        function(kernel, library, name)?;
    }

    fn cuLibraryGetKernelCount(count: *mut u32, _library: usize) {
        answer(count, 0)?;
    }

    fn cuLibraryEnumerateKernels(_kernels: *mut usize, _count: u32, _library: usize) {}

    fn cuLibraryGetModule(module: *mut usize, library: usize) {
        answer(module, library)?;
    }

    fn cuLibraryGetGlobal(address: *mut u64, size: *mut usize, library: usize, name: *const c_char) {
        global(address, size, library, name)?;
    }

    fn cuLibraryGetManaged(address: *mut u64, size: *mut usize, library: usize, name: *const c_char) {
        global(address, size, library, name)?;
    }

    fn cuLibraryGetUnifiedFunction(to: *mut usize, library: usize, name: *const c_char) {
        function(to, library, name)?;
    }

    fn cuKernelGetFunction(function: *mut usize, kernel: usize) {
        answer(function, kernel)?;
    }

    fn cuKernelGetLibrary(library: *mut usize, kernel: usize) {
        let state = state()?;
        answer(library, state.functions.get(&kernel).ok_or(Code::INVALID_HANDLE)?.library)?;
    }

    fn cuFuncGetModule(module: *mut usize, function: usize) {
        let state = state()?;
        answer(module, state.functions.get(&function).ok_or(Code::INVALID_HANDLE)?.library)?;
    }

    fn cuKernelGetName | cuFuncGetName (name: *mut *const c_char, kernel: usize) {
        let state = state()?;
        answer(name, state.functions.get(&kernel).ok_or(Code::INVALID_HANDLE)?.name.as_ptr())?;
    }

    fn cuFuncGetAttribute(value: *mut i32, which: i32, function: usize) {
        let known = attribute(&*state()?, function, which)?;
        answer(value, known)?;
    }

    fn cuKernelGetAttribute(value: *mut i32, which: i32, kernel: usize, _device: i32) {
        let known = attribute(&*state()?, kernel, which)?;
        answer(value, known)?;
    }

    fn cuFuncSetAttribute(function: usize, which: i32, value: i32) {
        set_attribute(&mut *state()?, function, which, value)?;
    }

    fn cuKernelSetAttribute(which: i32, value: i32, kernel: usize, _device: i32) {
        set_attribute(&mut *state()?, kernel, which, value)?;
    }

    fn cuFuncSetCacheConfig(_function: usize, _config: i32) {}

    fn cuFuncSetSharedMemConfig(_function: usize, _config: i32) {}

    fn cuKernelSetCacheConfig(_kernel: usize, _config: i32, _device: i32) {}

    fn cuFuncIsLoaded(loaded: *mut i32, _function: usize) {
        answer(loaded, 1)?;
    }

    fn cuFuncLoad(_function: usize) {}

    fn cuLaunchKernel | cuLaunchKernel_ptsz (
        function: usize, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: usize, params: *mut *mut u8, _extra: *mut *mut u8,
    ) {
        launch(function, ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]), shared, stream, params)?;
    }

    fn cuLaunchCooperativeKernel | cuLaunchCooperativeKernel_ptsz (
        function: usize, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: usize, params: *mut *mut u8,
    ) {
        launch(function, ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]), shared, stream, params)?;
    }

    fn cuLaunchKernelEx | cuLaunchKernelEx_ptsz (
        config: *const u32, function: usize, params: *mut *mut u8, _extra: *mut *mut u8,
    ) {
        // CUlaunchConfig: the grid at 0, the block at 12, shared memory at 24, the stream at 32.
        let (grid, block) = (config.cast::<[u32; 3]>().read(), config.add(3).cast::<[u32; 3]>().read());
        launch(function, (grid, block), config.add(6).read(), config.add(8).cast::<usize>().read(), params)?;
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut i32, _function: usize, block_size: i32, _shared: usize,
    ) {
        answer(blocks, blocks_per_multiprocessor(&*state()?, block_size))?;
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: *mut i32, _function: usize, block_size: i32, _shared: usize, _flags: u32,
    ) {
        answer(blocks, blocks_per_multiprocessor(&*state()?, block_size))?;
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: *mut i32, block: *mut i32, _function: usize, _shared_for: usize, _shared: usize, limit: i32,
    ) {
        let (blocks, size) = potential(&*state()?, limit);
        answer(grid, blocks)?;
        answer(block, size)?;
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: *mut i32, block: *mut i32, _function: usize, _shared_for: usize, _shared: usize, limit: i32, _flags: u32,
    ) {
        let (blocks, size) = potential(&*state()?, limit);
        answer(grid, blocks)?;
        answer(block, size)?;
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(bytes: *mut usize, _function: usize, _blocks: i32, _block_size: i32) {
        answer(bytes, 49_152)?;
    }

    fn cuOccupancyMaxPotentialClusterSize(size: *mut i32, _function: usize, _config: *const u8) {
        answer(size, 8)?;
    }

    fn cuOccupancyMaxActiveClusters(clusters: *mut i32, _function: usize, _config: *const u8) {
        answer(clusters, 16)?;
    }

    fn cuLinkCreate_v2 | cuLinkCreate (_count: u32, _options: *mut i32, _values: *mut *mut u8, link: *mut usize) {
        let handle = state()?.new_handle();
        answer(link, handle)?;
    }

    fn cuLinkAddData_v2 | cuLinkAddData (
        _link: usize, _kind: i32, _data: *mut u8, _size: usize, _name: *const c_char, _count: u32,
        _options: *mut i32, _values: *mut *mut u8,
    ) {}

    fn cuLinkComplete(_link: usize, image: *mut *const u8, size: *mut usize) {
        static IMAGE: [u8; 64] = [0; 64];
        answer(image, IMAGE.as_ptr())?;
        answer_if_asked(size, IMAGE.len());
    }

    fn cuLinkDestroy(_link: usize) {}

    fn cuTensorMapEncodeTiled(
        map: *mut [u8; 128], _type: i32, _rank: u32, _address: *mut u8, _dimensions: *const u64, _strides: *const u64,
        _box: *const u32, _element_strides: *const u32, _interleave: i32, _swizzle: i32, _promotion: i32, _fill: i32,
    ) {
        answer(map, [0; 128])?;
    }
}
