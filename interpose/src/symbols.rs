//! Finding the real functions behind our hooks, and the hook on `dlsym` itself.
//!
//! The CUDA runtime reaches the driver by `dlopen` and `dlsym`, and libraries with a static runtime (NCCL, cuBLAS, …) do
//! the same; so whoever asks `dlsym` for a driver function that memlab observes is given memlab's.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

/// The real function behind a hook, looked up once. `F` is its `fn` pointer type.
pub struct Real<F> {
    address: AtomicPtr<c_void>,
    /// The library to look in; empty for the next object in lookup order.
    library: &'static CStr,
    symbol: &'static CStr,
    misses: AtomicU8,
    kind: PhantomData<F>,
}

/// A lookup is dear; what was not found so often will not be.
const PATIENCE: u8 = 32;

// SAFETY: holds nothing but an atomic and static strings.
unsafe impl<F> Sync for Real<F> {}

impl<F: Copy> Real<F> {
    /// A function of a library that was loaded by the time the hook is called, under this name (its soname).
    pub const fn in_library(library: &'static CStr, symbol: &'static CStr) -> Self {
        Self { address: AtomicPtr::new(ptr::null_mut()), library, symbol, misses: AtomicU8::new(0), kind: PhantomData }
    }

    /// A function of the next object in lookup order after libmemlab.
    pub const fn next(symbol: &'static CStr) -> Self {
        Self::in_library(c"", symbol)
    }

    /// The real function; `None` where the library is not loaded or has no such function.
    #[inline]
    pub fn get(&self) -> Option<F> {
        let mut address = self.address.load(Ordering::Acquire);
        if address.is_null() {
            address = self.find();
        }
        // SAFETY: `F` is a function pointer type of pointer size (asserted), and the address is that function's.
        (!address.is_null()).then(|| unsafe {
            const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
            std::mem::transmute_copy(&address)
        })
    }

    /// The name of the function.
    pub fn symbol(&self) -> &'static CStr {
        self.symbol
    }

    /// Takes `address` for the real function, unless one is known.
    pub fn learn(&self, address: *mut c_void) {
        let _ = self.address.compare_exchange(ptr::null_mut(), address, Ordering::AcqRel, Ordering::Relaxed);
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        if self.misses.load(Ordering::Relaxed) >= PATIENCE {
            return ptr::null_mut();
        }
        let found = if self.library.is_empty() {
            // SAFETY: RTLD_NEXT from here: what follows libmemlab.
            let next = unsafe { real_dlsym()(libc::RTLD_NEXT, self.symbol.as_ptr()) };
            // Loaded late, libmemlab is the last of all, and what the program is bound to comes before it.
            if next.is_null() { in_global_scope(self.symbol) } else { next }
        } else {
            let found = in_loaded_library(self.library, self.symbol);
            // Linked into something of another name, as some builds do.
            if found.is_null() { in_global_scope(self.symbol) } else { found }
        };
        if found.is_null() {
            self.misses.fetch_add(1, Ordering::Relaxed);
        } else {
            self.learn(found);
        }
        found
    }
}

/// `symbol` in the library of this soname, if that is loaded; PyTorch loads its libraries RTLD_LOCAL, where RTLD_NEXT
/// does not look.
pub fn in_loaded_library(soname: &CStr, symbol: &CStr) -> *mut c_void {
    // SAFETY: RTLD_NOLOAD only looks; the reference it adds is dropped at once, and the library stays, since its code
    // is what led here.
    unsafe {
        let handle = libc::dlopen(soname.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return ptr::null_mut();
        }
        let found = real_dlsym()(handle, symbol.as_ptr());
        libc::dlclose(handle);
        found
    }
}

/// The file that the library of this soname was loaded from; `None` where it is not loaded.
pub fn path_of_loaded(soname: &CStr) -> Option<String> {
    // SAFETY: RTLD_NOLOAD only looks, and the reference it adds is dropped at once; a handle of glibc's is the library's
    // `link_map`, whose name is NUL-terminated.
    unsafe {
        let handle = libc::dlopen(soname.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return None;
        }
        let mut map: *const LinkMap = ptr::null();
        let known = libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) == 0;
        let path = known.then(|| CStr::from_ptr((*map).name).to_string_lossy().into_owned());
        libc::dlclose(handle);
        path
    }
}

/// The beginning of glibc's `struct link_map`.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
}

/// `symbol` as the program itself sees it, unless that is memlab's own.
fn in_global_scope(symbol: &CStr) -> *mut c_void {
    // SAFETY: a null path gives a handle on the global scope, which needs no closing; plain lookups.
    unsafe {
        let program = libc::dlopen(ptr::null(), libc::RTLD_LAZY);
        let found = if program.is_null() { ptr::null_mut() } else { real_dlsym()(program, symbol.as_ptr()) };
        let ours = !found.is_null() && base_of(found) == base_of(real_dlsym as *const c_void);
        if ours { ptr::null_mut() } else { found }
    }
}

/// Where the object that contains `address` is loaded; null where there is none.
pub fn base_of(address: *const c_void) -> *mut c_void {
    // SAFETY: zeros are a valid Dl_info; dladdr only fills it.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        libc::dladdr(address, &mut info);
        info.dli_fbase
    }
}

/// Where the program itself is loaded, as [`base_of`] says it.
fn program_base() -> *mut c_void {
    // SAFETY: plain query; the kernel's value points into the program.
    base_of(unsafe { libc::getauxval(libc::AT_PHDR) } as *const c_void)
}

/// `symbol` anywhere in the global scope.
pub fn in_process(symbol: &CStr) -> *mut c_void {
    // SAFETY: a plain lookup.
    unsafe { real_dlsym()(libc::RTLD_DEFAULT, symbol.as_ptr()) }
}

/// The function a hook stands before is nowhere to be found, although somebody has called it. To go on would be to give
/// the program wrong results.
pub fn impossible(symbol: &str) -> ! {
    crate::say(&format!("{symbol} was called, but no loaded library has it: unset LD_PRELOAD and report this, please"));
    std::process::abort()
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// glibc's own `dlsym`. Found by version, because by name one finds oneself.
pub fn real_dlsym() -> Dlsym {
    let mut real = REAL_DLSYM.load(Ordering::Acquire);
    if real.is_null() {
        for version in [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"] {
            // SAFETY: strings are NUL-terminated; RTLD_NEXT from libmemlab leads to libc or libdl.
            real = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
            if !real.is_null() {
                break;
            }
        }
        REAL_DLSYM.store(real, Ordering::Release);
    }
    // SAFETY: glibc always has one of these; a null here would mean no dynamic linker.
    unsafe { std::mem::transmute::<*mut c_void, Dlsym>(real) }
}

/// The hook on `dlsym`.
///
/// A name memlab does not know is passed on by a jump, not a call, so that the real function sees the caller's return
/// address: RTLD_NEXT and RTLD_DEFAULT depend on who asks. Must not allocate, lock or start threads: it is called while
/// the loader initialises libraries.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "mov rdx, [rsp]", // Who asks.
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {substitute}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "cmp rax, {absent}",
        "je 3f",
        "ret",
        "2:",
        "jmp qword ptr [rip + {real}]",
        "3:",
        "xor eax, eax",
        "ret",
        substitute = sym substitute,
        real = sym REAL_DLSYM,
        absent = const ABSENT,
    )
}

/// What [`substitute`] answers where nobody but memlab has the function: the program is told that there is none.
const ABSENT: usize = 1;

/// memlab's function for `symbol`, null to let the real `dlsym` answer, or [`ABSENT`].
unsafe extern "C" fn substitute(handle: *mut c_void, symbol: *const c_char, caller: *const c_void) -> *mut c_void {
    let real = real_dlsym(); // Also sets what the jump goes through.
    crate::late::patch_what_is_new();
    // SAFETY: a NUL-terminated string; the first two bytes are read one after the other.
    let driver_name = unsafe { !symbol.is_null() && *symbol == b'c' as c_char && *symbol.add(1) == b'u' as c_char };
    if !driver_name || !crate::enabled() {
        return ptr::null_mut();
    }
    // Only for the program itself is memlab what comes next.
    if handle == libc::RTLD_NEXT && base_of(caller) != program_base() {
        return ptr::null_mut();
    }
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(symbol) };
    let hook = crate::cuda::hooks::by_abi_name(name.to_bytes());
    let own = crate::cuda::hooks::exported(name.to_bytes()).or_else(|| crate::cuda::runtime::hook_of(name.to_bytes()));
    let Some(own) = own else { return ptr::null_mut() };
    // SAFETY: the caller's own request; where RTLD_NEXT got this far, what comes next for memlab does for the program.
    let mut found = unsafe { real(handle, symbol) };
    if ptr::eq(found, own) {
        // Found in the global scope, where memlab comes first.
        // SAFETY: RTLD_NEXT from here: what follows libmemlab.
        found = unsafe { real(libc::RTLD_NEXT, symbol) };
        if found.is_null() {
            return ptr::without_provenance_mut(ABSENT); // Without CUDA in the process there is no such function.
        }
    }
    if found.is_null() && handle == libc::RTLD_NEXT {
        return ptr::without_provenance_mut(ABSENT); // The jump would find memlab's.
    }
    match hook {
        Some(hook) if !found.is_null() => {
            hook.learn(found);
            hook.address.cast_mut()
        }
        _ => ptr::null_mut(), // Asked again by the jump, which leaves the caller its dlerror.
    }
}

/// The file name (without folders) of the library that contains `address`.
pub fn library_of(address: usize) -> Option<String> {
    // SAFETY: zeros are a valid Dl_info; dladdr only fills it.
    let path = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(address as *const c_void, &mut info) == 0 as c_int || info.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(info.dli_fname).to_string_lossy()
    };
    Some(path.rsplit('/').next().unwrap_or(&path).to_owned())
}
