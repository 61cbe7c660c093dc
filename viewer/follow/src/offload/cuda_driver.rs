//! The CUDA driver's functions to checkpoint another process, loaded on demand: memlab is not linked to the driver.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::time::Duration;

use memlab_base::shared_library::SharedLibrary;

/// The driver's library.
pub const LIBRARY: &CStr = c"libcuda.so.1";

/// The driver's state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverState {
    /// The process runs.
    Running,
    /// Its CUDA calls wait.
    Locked,
    /// The driver holds its device memory in host memory.
    Checkpointed,
    /// An unrecoverable error occurred.
    Failed,
    /// A checkpoint or restore is under way.
    Busy,
    /// A state that this memlab does not know.
    Unknown(i32),
}

impl DriverState {
    fn of(number: c_int) -> Self {
        match number {
            0 => Self::Running,
            1 => Self::Locked,
            2 => Self::Checkpointed,
            3 => Self::Failed,
            4 | 5 => Self::Busy,
            other => Self::Unknown(other),
        }
    }
}

/// An error of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// Error code.
    pub code: i32,
    /// Name and description, if the driver has them.
    pub text: String,
}

impl DriverError {
    /// Returns true if the device memory is too small.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == 2
    }

    /// Returns true if the driver does not support this for the process.
    pub fn is_not_supported(&self) -> bool {
        self.code == 801
    }
}

/// `CUcheckpointLockArgs`.
#[repr(C)]
struct LockArguments {
    timeout_ms: c_uint,
    reserved0: c_uint,
    reserved1: [u64; 7],
}

type GetState = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
type Lock = unsafe extern "C" fn(c_int, *mut LockArguments) -> c_int;
/// Checkpoint, restore, unlock: the arguments may be null.
type Act = unsafe extern "C" fn(c_int, *mut c_void) -> c_int;
type ErrorText = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// The driver of this machine.
pub struct Driver {
    get_state: GetState,
    lock: Lock,
    checkpoint: Act,
    restore: Act,
    unlock: Act,
    error_name: Option<ErrorText>,
    error_string: Option<ErrorText>,
}

impl Driver {
    /// Loads the driver and starts it in this process.
    ///
    /// # Errors
    ///
    /// A message, if the machine has no driver, or it is too old or does not start.
    pub fn open() -> Result<Self, String> {
        let library = SharedLibrary::open(LIBRARY).map_err(|_| {
            "this machine has no CUDA driver (libcuda.so.1 cannot be loaded): run memlab where the program \
                        runs, and in a container give it the GPU"
                .to_owned()
        })?;
        // SAFETY: these are the types that cuda.h declares them with.
        let (driver, init) = unsafe {
            let driver = (|| {
                Some(Self {
                    get_state: library.function(c"cuCheckpointProcessGetState")?,
                    lock: library.function(c"cuCheckpointProcessLock")?,
                    checkpoint: library.function(c"cuCheckpointProcessCheckpoint")?,
                    restore: library.function(c"cuCheckpointProcessRestore")?,
                    unlock: library.function(c"cuCheckpointProcessUnlock")?,
                    error_name: library.function(c"cuGetErrorName"),
                    error_string: library.function(c"cuGetErrorString"),
                })
            })();
            (driver, library.function::<unsafe extern "C" fn(c_uint) -> c_int>(c"cuInit"))
        };
        let Some(driver) = driver else {
            return Err(format!(
                "the CUDA driver here ({}) cannot checkpoint processes: 570 or newer can; a program started with `memlab \
                 run --offload` can be offloaded with this one, too",
                version(&library)
            ));
        };
        // SAFETY: cuInit takes 0.
        let status = init.map_or(0, |init| unsafe { init(0) });
        driver.check(status).map_err(|error| format!("the CUDA driver does not start here: {}", error.text))?;
        Ok(driver)
    }

    /// Returns the state of a process.
    ///
    /// # Errors
    ///
    /// The driver's error, for example for a process that does not use CUDA.
    pub fn state(&self, pid: c_int) -> Result<DriverState, DriverError> {
        let mut state = -1;
        // SAFETY: the state outlives the call.
        let status = unsafe { (self.get_state)(pid, &mut state) };
        self.check(status).map(|()| DriverState::of(state))
    }

    /// Blocks the process's CUDA calls, once its running work is done.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn lock(&self, pid: c_int, timeout: Duration) -> Result<(), DriverError> {
        // 0 would wait without limit.
        let timeout_ms = c_uint::try_from(timeout.as_millis()).unwrap_or(c_uint::MAX).max(1);
        let mut arguments = LockArguments { timeout_ms, reserved0: 0, reserved1: [0; 7] };
        // SAFETY: the arguments are as cuda.h has them and outlive the call.
        let status = unsafe { (self.lock)(pid, &mut arguments) };
        self.check(status)
    }

    /// Moves the device memory of a locked process to the host.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn checkpoint(&self, pid: c_int) -> Result<(), DriverError> {
        // SAFETY: the arguments may be null.
        let status = unsafe { (self.checkpoint)(pid, ptr::null_mut()) };
        self.check(status)
    }

    /// Restores the device memory of a checkpointed process, which stays locked.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn restore(&self, pid: c_int) -> Result<(), DriverError> {
        // SAFETY: the arguments may be null.
        let status = unsafe { (self.restore)(pid, ptr::null_mut()) };
        self.check(status)
    }

    /// Lets a locked process continue.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn unlock(&self, pid: c_int) -> Result<(), DriverError> {
        // SAFETY: the arguments may be null.
        let status = unsafe { (self.unlock)(pid, ptr::null_mut()) };
        self.check(status)
    }

    fn check(&self, code: c_int) -> Result<(), DriverError> {
        if code == 0 {
            return Ok(());
        }
        let text = |function: Option<ErrorText>| {
            let mut text = ptr::null();
            // SAFETY: the pointer outlives the call; on success it points to a string of the driver's that stays.
            unsafe {
                let found = function.is_some_and(|function| function(code, &mut text) == 0) && !text.is_null();
                found.then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        };
        let text = match (text(self.error_name), text(self.error_string)) {
            (Some(name), Some(meaning)) => format!("{meaning} ({name})"),
            (Some(name), None) => name,
            _ => format!("error {code}"),
        };
        Err(DriverError { code, text })
    }
}

/// Version of the driver, for messages.
fn version(library: &SharedLibrary) -> String {
    let release = std::fs::read_to_string("/sys/module/nvidia/version").unwrap_or_default();
    let mut number = 0;
    // SAFETY: cuda.h declares it so, and the number outlives the call.
    let known = unsafe {
        library
            .function::<unsafe extern "C" fn(*mut c_int) -> c_int>(c"cuDriverGetVersion")
            .is_some_and(|get| get(&mut number) == 0)
    };
    let cuda =
        if known { format!("CUDA {}.{}", number / 1000, number % 1000 / 10) } else { "of unknown age".to_owned() };
    match release.trim() {
        "" => cuda,
        release => format!("{release}, {cuda}"),
    }
}
