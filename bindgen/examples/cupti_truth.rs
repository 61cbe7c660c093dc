//! libcupti_truth.so: writes the allocations and frees of a program as CUPTI reports them, for comparison with memlab's
//! trace of the same program on a real GPU: see `benches/on_gpu.sh`.
//!
//!     CUDA_INJECTION64_PATH=libcupti_truth.so CUPTI_TRUTH_OUTPUT=truth.txt python train.py
//!     LD_PRELOAD=libcupti_truth.so CUPTI_TRUTH_OUTPUT=truth.txt python train.py
//!
//! Either way, NVIDIA's driver calls `InitializeInjection` in `cuInit`. Without a driver, or without
//! `CUPTI_TRUTH_OUTPUT`, nothing happens. `CUPTI_TRUTH_LIBRARY` sets the libcupti to load; by default, the linker finds
//! it. The file:
//!
//!     cupti 130401
//!     alloc device 140213447884800 20971520 0 1763633391000000000
//!     free device 140213447884800 20971520 0 1763633392000000000
//!     end 0
//!
//! The columns are operation, kind, address, bytes, device and time. `end` has the number of records that CUPTI
//! dropped. Without an `end`, the program did not exit normally. `failed …` gives the reason for a missing recording.

mod buffers;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::mem::offset_of;
use std::path::Path;
use std::process;
use std::sync::{Mutex, OnceLock};

use cupti_sys::Cupti;
use cupti_sys::bindings::{
    CUcontext, CUpti_ActivityFlag, CUpti_ActivityKind, CUpti_ActivityMemory2, CUpti_ActivityMemoryKind as Kind,
    CUpti_ActivityMemoryOperationType as Operation,
};

/// Bytes of a buffer for records; CUPTI advises 1 to 10 MiB.
const BUFFER: usize = 4 << 20;

struct Observer {
    cupti: Cupti,
    output: Mutex<BufWriter<File>>,
    /// The recording process: a forked child writes nothing.
    pid: u32,
}

static OBSERVER: OnceLock<Option<Observer>> = OnceLock::new();

/// Called by the driver in `cuInit`, in the calling thread.
///
/// Always returns nonzero (success): a failed recording must not stop the program.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> c_int {
    OBSERVER.get_or_init(|| {
        let mut output = BufWriter::new(File::create(std::env::var_os("CUPTI_TRUTH_OUTPUT")?).ok()?);
        match load() {
            Ok(cupti) => {
                writeln!(output, "cupti {}", cupti.version().unwrap_or(0)).ok()?;
                // SAFETY: `at_exit` stays valid, since CUPTI and the libraries it calls are never unloaded.
                unsafe { libc::atexit(at_exit) };
                Some(Observer { cupti, output: Mutex::new(output), pid: process::id() })
            }
            Err(reason) => {
                let _ = writeln!(output, "failed {reason}").and_then(|()| output.flush());
                None
            }
        }
    });
    1
}

fn load() -> Result<Cupti, Box<dyn std::error::Error>> {
    let cupti = match std::env::var_os("CUPTI_TRUTH_LIBRARY") {
        Some(path) => Cupti::load_from(Path::new(&path))?,
        None => Cupti::load()?,
    };
    // SAFETY: both are functions of this library, which is never unloaded, and meet CUPTI's requirements.
    unsafe { cupti.register_buffers(Some(buffers::request::<BUFFER>), Some(buffer_completed))? };
    cupti.enable(CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMORY2)?;
    Ok(cupti)
}

extern "C" fn at_exit() {
    let Some(Some(observer)) = OBSERVER.get() else { return };
    if observer.pid != process::id() {
        return;
    }
    let flushed = observer.cupti.flush(CUpti_ActivityFlag::CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    let dropped = flushed.and_then(|()| observer.cupti.dropped());
    if let Ok(mut output) = observer.output.lock() {
        let _ = match dropped {
            Ok(records) => writeln!(output, "end {records}"),
            Err(reason) => writeln!(output, "failed {reason}"),
        };
        let _ = output.flush();
    }
}

unsafe extern "C" fn buffer_completed(_: CUcontext, _stream: u32, buffer: *mut u8, _bytes: usize, valid_bytes: usize) {
    if let Some(Some(observer)) = OBSERVER.get()
        && let Ok(mut output) = observer.output.lock()
    {
        // SAFETY: the buffer was just completed, and is freed only below. Newer records begin like the one read here.
        unsafe {
            for record in observer.cupti.records(buffer, valid_bytes) {
                if (*record).kind == CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMORY2 {
                    let _ = write_line(&mut *output, &*record.cast::<CUpti_ActivityMemory2>());
                }
            }
        }
    }
    // SAFETY: CUPTI returns a buffer from `request`, and its records are read.
    unsafe { buffers::free(buffer) };
}

// All fields read here are at the offsets of the oldest record version in these headers.
const _: () = assert!(offset_of!(CUpti_ActivityMemory2, isAsync) == 72);

fn write_line(output: &mut impl Write, record: &CUpti_ActivityMemory2) -> std::io::Result<()> {
    let operation = match record.memoryOperationType {
        Operation::CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION => "alloc",
        Operation::CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE => "free",
        _ => "other",
    };
    let kind = match record.memoryKind {
        Kind::CUPTI_ACTIVITY_MEMORY_KIND_DEVICE if record.isAsync != 0 => "async",
        Kind::CUPTI_ACTIVITY_MEMORY_KIND_DEVICE => "device",
        Kind::CUPTI_ACTIVITY_MEMORY_KIND_MANAGED => "managed",
        Kind::CUPTI_ACTIVITY_MEMORY_KIND_PINNED => "pinned",
        Kind::CUPTI_ACTIVITY_MEMORY_KIND_ARRAY => "array",
        Kind::CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC | Kind::CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC => "static",
        _ => "other",
    };
    let (address, bytes, device, time) = (record.address, record.bytes, record.deviceId, record.timestamp);
    writeln!(output, "{operation} {kind} {address} {bytes} {device} {time}")
}

/// When preloaded instead of injected: makes the driver inject this library.
extern "C" fn constructor() {
    const INJECTION: &CStr = c"CUDA_INJECTION64_PATH";
    if std::env::var_os("CUPTI_TRUTH_OUTPUT").is_none() {
        return;
    }
    // SAFETY: if preloaded, this runs before any other thread; if injected, the variable is set and not changed.
    // `dladdr` only reads, and its path belongs to the linker and stays valid.
    unsafe {
        if libc::getenv(INJECTION.as_ptr()).is_null() {
            let mut library = libc::Dl_info {
                dli_fname: std::ptr::null::<c_char>(),
                dli_fbase: std::ptr::null_mut(),
                dli_sname: std::ptr::null(),
                dli_saddr: std::ptr::null_mut(),
            };
            if libc::dladdr(constructor as *const c_void, &mut library) != 0 && !library.dli_fname.is_null() {
                libc::setenv(INJECTION.as_ptr(), library.dli_fname, 0);
            }
        }
    }
}

/// Makes the dynamic linker run [`constructor`] when it loads the library.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
