//! NVTX: reads the ranges that a program or its libraries mark for profilers.
//!
//! NVTX is a header; each library that uses it contains a copy. Before its first range, a copy loads the library named by
//! `NVTX_INJECTION64_PATH`, calls its `InitializeInjectionNvtx2`, and lets it fill in the functions to call. The types here
//! are those of `nvtxDetail/nvtxTypes.h` and `nvToolsExt.h`, version 3.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use hashbrown::HashMap;
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;

use super::{names, open};
use interpose_base::config::enabled;
use interpose_base::locks;
use interpose_base::panics;

const INJECTION: &CStr = c"NVTX_INJECTION64_PATH";
/// Soname of this library.
///
/// The linker finds it by this name only where it is already loaded. So a child process that inherits the variable but not
/// the library is not affected.
const THIS_LIBRARY: &CStr = c"libmemlab.so";

/// Makes NVTX load this library, unless the program has a profiler that takes its ranges.
pub fn announce() {
    // SAFETY: the strings are NUL-terminated. At a program's start no other thread reads the environment. Where the library
    // is loaded late, this does the same as Python's `os.environ`.
    unsafe { libc::setenv(INJECTION.as_ptr(), THIS_LIBRARY.as_ptr(), 0) };
}

/// `NvtxGetExportTableFunc_t`.
type GetExportTable = unsafe extern "C" fn(u32) -> *const Callbacks;
type Function = *const c_void;

/// `NvtxExportTableCallbacks`.
#[repr(C)]
pub struct Callbacks {
    struct_size: usize,
    /// Returns a module's table and the table's length, by the module's number.
    module_functions: unsafe extern "C" fn(c_uint, *mut *mut *mut Function, *mut c_uint) -> c_int,
}

/// `NVTX_ETID_CALLBACKS`.
const CALLBACKS: u32 = 1;
/// `NVTX_CB_MODULE_CORE` and `NVTX_CB_MODULE_CORE2`, with the places of functions in their tables.
const CORE: c_uint = 1;
const CORE2: c_uint = 5;

fn core() -> [(usize, Function); 4] {
    [
        (8, push_ex as Function),
        (9, push_ascii as Function),
        (10, push_wide as Function),
        (11, pop as *const () as Function),
    ]
}

fn core2() -> [(usize, Function); 6] {
    [
        (4, domain_push_ex as Function),
        (5, domain_pop as Function),
        (10, register_ascii as Function),
        (11, register_wide as Function),
        (12, create_domain_ascii as Function),
        (13, create_domain_wide as Function),
    ]
}

/// Result of a push and a pop where depths are not counted (`NVTX_NO_PUSH_POP_TRACKING`), as without a profiler.
const NO_TRACKING: c_int = -2;

/// Called by each copy of NVTX in the process.
///
/// Returns 1 if its functions are filled in.
///
/// # Safety
///
/// `table` must be the copy's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(table: Option<GetExportTable>) -> c_int {
    let Some(table) = table.filter(|_| enabled()) else { return 0 };
    // SAFETY: the caller's function.
    let Some(callbacks) = (unsafe { table(CALLBACKS).as_ref() }) else { return 0 };
    if callbacks.struct_size < size_of::<Callbacks>() {
        return 0;
    }
    // SAFETY: the tables are of this copy of NVTX, which waits for this function.
    unsafe { fill_in(callbacks, CORE, &core()) && fill_in(callbacks, CORE2, &core2()) }.into()
}

/// # Safety
///
/// `callbacks` are those of a copy of NVTX that is being initialised.
unsafe fn fill_in(callbacks: &Callbacks, module: c_uint, functions: &[(usize, Function)]) -> bool {
    let (mut table, mut size) = (ptr::null_mut::<*mut Function>(), 0);
    // SAFETY: both are written to.
    let found = unsafe { (callbacks.module_functions)(module, &mut table, &mut size) };
    if found == 0 || table.is_null() {
        return false;
    }
    for (place, function) in functions.iter().filter(|(place, _)| *place < size as usize) {
        // SAFETY: within the table, whose entries point to the functions that the copy calls, or are null.
        unsafe {
            let entry = *table.add(*place);
            if !entry.is_null() {
                *entry = *function;
            }
        }
    }
    true
}

/// `nvtxEventAttributes_t`.
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_void,
}

/// `nvtxMessageType_t`.
const ASCII: i32 = 1;
const WIDE: i32 = 2;
const REGISTERED: i32 = 3;

/// A name given to NVTX before its use; its handle is the address of this struct.
struct Registered(&'static str);

/// A domain; its handle is the address of this struct.
struct Domain {
    name: &'static str,
    is_taken: bool,
}

/// Domains of CUDA's libraries, which name the position in the library, not the program's activity.
const LIBRARIES: [&str; 9] =
    ["CCCL", "NCCL", "NVSHMEM", "cuBLAS", "cuBLASLt", "cuDNN", "cuFFT", "cuSOLVER", "cuSPARSE"];
/// The domain of `nvtxRangePush`; created domains have their address.
const DEFAULT: open::Domain = 1;

/// Registered names and domains, by name.
///
/// They are never freed.
struct Handles {
    registered: HashMap<&'static str, &'static Registered, FxBuildHasher>,
    domains: HashMap<&'static str, &'static Domain, FxBuildHasher>,
}

impl Handles {
    const NONE: Self =
        Self { registered: HashMap::with_hasher(FxBuildHasher), domains: HashMap::with_hasher(FxBuildHasher) };
}

static HANDLES: Mutex<Handles> = Mutex::new(Handles::NONE);

/// Called in a forked child.
///
/// Handles that the program has stay valid.
pub fn reset_in_child() {
    locks::reset_in_child(&HANDLES, Handles::NONE);
}

/// A name in UTF-8, without memory from the heap.
struct Name {
    bytes: [u8; Self::MAX_NAME_BYTES],
    length: usize,
}

impl Name {
    const MAX_NAME_BYTES: usize = 256;
    const EMPTY: Self = Self { bytes: [0; Self::MAX_NAME_BYTES], length: 0 };

    fn add(&mut self, text: &[u8]) {
        let room = &mut self.bytes[self.length..];
        let length = text.len().min(room.len());
        room[..length].copy_from_slice(&text[..length]);
        self.length += length;
    }

    /// # Safety
    ///
    /// `text` is null or ends in a NUL.
    unsafe fn add_ascii(&mut self, text: *const c_char) {
        if !text.is_null() {
            // SAFETY: the caller promises a NUL within reach; no more bytes are read than fit.
            let length = unsafe { libc::strnlen(text, Self::MAX_NAME_BYTES) };
            // SAFETY: the text has this many bytes.
            self.add(unsafe { std::slice::from_raw_parts(text.cast(), length) });
        }
    }

    /// # Safety
    ///
    /// `text` is null or ends in a NUL.
    unsafe fn add_wide(&mut self, text: *const libc::wchar_t) {
        let mut at = text;
        // SAFETY: the caller promises a NUL, at which this stops.
        while !at.is_null() && self.length + 4 <= Self::MAX_NAME_BYTES && unsafe { *at } != 0 {
            // SAFETY: before the NUL.
            let letter = char::from_u32(unsafe { *at } as u32).unwrap_or(char::REPLACEMENT_CHARACTER);
            self.add(letter.encode_utf8(&mut [0; 4]).as_bytes());
            // SAFETY: at most the NUL.
            at = unsafe { at.add(1) };
        }
    }

    /// # Safety
    ///
    /// `attributes` is null or a description that a program gives NVTX.
    unsafe fn add_message(&mut self, attributes: *const Attributes) {
        // SAFETY: null or valid.
        let Some(attributes) = (unsafe { attributes.as_ref() }) else { return };
        let message = attributes.message;
        // SAFETY: the message is of its type; a registered one is a handle from `register_…`, or null.
        unsafe {
            match attributes.message_type {
                ASCII => self.add_ascii(message.cast()),
                WIDE => self.add_wide(message.cast()),
                REGISTERED => {
                    if let Some(Registered(name)) = message.cast::<Registered>().as_ref() {
                        self.add(name.as_bytes());
                    }
                }
                _ => {}
            }
        }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

unsafe extern "C" fn push_ascii(message: *const c_char) -> c_int {
    let mut name = Name::EMPTY;
    // SAFETY: the program's string.
    unsafe { name.add_ascii(message) };
    super::push(DEFAULT, name.as_bytes());
    NO_TRACKING
}

unsafe extern "C" fn push_wide(message: *const libc::wchar_t) -> c_int {
    let mut name = Name::EMPTY;
    // SAFETY: the program's string.
    unsafe { name.add_wide(message) };
    super::push(DEFAULT, name.as_bytes());
    NO_TRACKING
}

unsafe extern "C" fn push_ex(attributes: *const Attributes) -> c_int {
    let mut name = Name::EMPTY;
    // SAFETY: the program's description.
    unsafe { name.add_message(attributes) };
    super::push(DEFAULT, name.as_bytes());
    NO_TRACKING
}

extern "C" fn pop() -> c_int {
    super::pop(DEFAULT);
    NO_TRACKING
}

unsafe extern "C" fn domain_push_ex(domain: *const Domain, attributes: *const Attributes) -> c_int {
    let mut name = Name::EMPTY;
    // SAFETY: null or a handle of `create_domain_…`.
    let known = unsafe { domain.as_ref() };
    if known.is_some_and(|domain| !domain.is_taken) {
        return NO_TRACKING;
    }
    if let Some(domain) = known {
        name.add(domain.name.as_bytes());
        name.add(b": ");
    }
    // SAFETY: the program's description.
    unsafe { name.add_message(attributes) };
    super::push(id_of(domain), name.as_bytes());
    NO_TRACKING
}

unsafe extern "C" fn domain_pop(domain: *const Domain) -> c_int {
    // SAFETY: null or a handle of `create_domain_…`.
    if unsafe { domain.as_ref() }.is_none_or(|domain| domain.is_taken) {
        super::pop(id_of(domain));
    }
    NO_TRACKING
}

fn id_of(domain: *const Domain) -> open::Domain {
    if domain.is_null() { DEFAULT } else { domain as open::Domain }
}

unsafe extern "C" fn register_ascii(_: *const Domain, text: *const c_char) -> *const Registered {
    let mut name = Name::EMPTY;
    // SAFETY: the program's string.
    unsafe { name.add_ascii(text) };
    register(&name)
}

unsafe extern "C" fn register_wide(_: *const Domain, text: *const libc::wchar_t) -> *const Registered {
    let mut name = Name::EMPTY;
    // SAFETY: the program's string.
    unsafe { name.add_wide(text) };
    register(&name)
}

/// Returns the handle of a name; null if the table is full.
fn register(name: &Name) -> *const Registered {
    let registered = || {
        let name = names::intern(name.as_bytes())?;
        let mut handles = HANDLES.lock();
        Some(ptr::from_ref(*handles.registered.entry(name).or_insert_with(|| Box::leak(Box::new(Registered(name))))))
    };
    panics::catch(registered).flatten().unwrap_or(ptr::null())
}

unsafe extern "C" fn create_domain_ascii(text: *const c_char) -> *const Domain {
    let mut name = Name::EMPTY;
    // SAFETY: the program's string.
    unsafe { name.add_ascii(text) };
    create_domain(&name)
}

unsafe extern "C" fn create_domain_wide(text: *const libc::wchar_t) -> *const Domain {
    let mut name = Name::EMPTY;
    // SAFETY: the program's string.
    unsafe { name.add_wide(text) };
    create_domain(&name)
}

/// Returns the handle of a domain; null, which means the default domain, if the table is full.
fn create_domain(name: &Name) -> *const Domain {
    let created = || {
        let name = names::intern(name.as_bytes())?;
        let mut handles = HANDLES.lock();
        let is_taken = !LIBRARIES.contains(&name);
        let domain = handles.domains.entry(name).or_insert_with(|| Box::leak(Box::new(Domain { name, is_taken })));
        Some(ptr::from_ref(*domain))
    };
    panics::catch(created).flatten().unwrap_or(ptr::null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_that_of_nvtx() {
        assert_eq!(size_of::<Attributes>(), 48);
        assert_eq!(
            (std::mem::offset_of!(Attributes, message_type), std::mem::offset_of!(Attributes, message)),
            (32, 40)
        );
    }

    #[test]
    fn messages_of_every_type() {
        let wide: Vec<libc::wchar_t> = "größer\0".chars().map(|letter| letter as libc::wchar_t).collect();
        // SAFETY: the strings end in a NUL.
        let registered = unsafe { register_ascii(ptr::null(), c"known before".as_ptr()) };
        for (kind, message, expected) in [
            (ASCII, c"forward".as_ptr().cast::<c_void>(), "forward"),
            (WIDE, wide.as_ptr().cast(), "größer"),
            (REGISTERED, registered.cast(), "known before"),
            (REGISTERED, ptr::null(), ""),
            (0, ptr::null(), ""),
        ] {
            let attributes = Attributes {
                version: 3,
                size: 48,
                category: 0,
                color_type: 0,
                color: 0,
                payload_type: 0,
                reserved: 0,
                payload: 0,
                message_type: kind,
                message,
            };
            let mut name = Name::EMPTY;
            // SAFETY: a valid description.
            unsafe { name.add_message(&attributes) };
            assert_eq!(std::str::from_utf8(name.as_bytes()), Ok(expected));
        }
    }

    #[test]
    fn long_messages_are_cut() {
        let mut name = Name::EMPTY;
        let long: Vec<libc::wchar_t> = [0xf6; 300].into_iter().chain([0]).collect();
        // SAFETY: it ends in a NUL.
        unsafe { name.add_wide(long.as_ptr()) };
        assert_eq!(std::str::from_utf8(name.as_bytes()).map(|text| text.chars().count()), Ok(127));
    }

    #[test]
    fn libraries_domains_are_not_taken() {
        let domain = |name: &CStr| {
            // SAFETY: a NUL-terminated string; handles are never freed.
            unsafe { &*create_domain_ascii(name.as_ptr()) }
        };
        assert!(domain(c"trainer").is_taken && !domain(c"NCCL").is_taken);
        assert!(ptr::eq(domain(c"trainer"), domain(c"trainer")));
    }
}
