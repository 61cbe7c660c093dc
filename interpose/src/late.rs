//! Loaded late (`dlopen`, in a notebook): the symbols of the program are bound already, so memlab's functions are
//! written into the tables through which the loaded libraries call (their GOTs), and into those of libraries to come.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;

use crate::cuda::{hooks, info, runtime};
use crate::lifecycle;
use crate::recorder::Recorder;
use crate::symbols;
use crate::torch;

/// Where the jump in [`dlopen`] goes; set before any table is patched.
static REAL_DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Load addresses of the objects whose tables have been written to.
static PATCHED: Mutex<Option<HashSet<usize>>> = Mutex::new(None);

/// Set where PyTorch had used CUDA when memlab was loaded.
static FOUND_RUNNING: AtomicBool = AtomicBool::new(false);

/// Patches what is loaded, unless libmemlab was preloaded, when the dynamic linker has bound everything to it.
pub fn patch_if_loaded_late() {
    if !preloaded() {
        REAL_DLOPEN.store(libc::dlopen as *mut c_void, Ordering::Release);
        patch_what_is_new();
        if symbols::path_of_loaded(c"libc10_cuda.so").is_some() && info::is_in_use() {
            FOUND_RUNNING.store(true, Ordering::Relaxed);
            // The recording begins now, and not when CUDA is next used: the agent can then ask PyTorch what there is.
            drop(Recorder::enter());
        }
    }
}

/// Whether memlab came into a program in which PyTorch had used CUDA.
pub fn found_running() -> bool {
    FOUND_RUNNING.load(Ordering::Relaxed)
}

/// Whether libmemlab comes before libc in the order of loading, as only what is preloaded (or linked) does.
pub fn preloaded() -> bool {
    /// The first of the two that was met.
    struct First(Option<bool>);
    unsafe extern "C" fn look(object: *mut libc::dl_phdr_info, _size: usize, first: *mut c_void) -> c_int {
        // SAFETY: a valid description of a loaded object, and the `First` below.
        let (object, first) = unsafe { (&*object, &mut *first.cast::<First>()) };
        if !object.dlpi_name.is_null() && first.0.is_none() {
            // SAFETY: a NUL-terminated name.
            let name = unsafe { CStr::from_ptr(object.dlpi_name) }.to_bytes();
            if name.ends_with(b"/libc.so.6") {
                first.0 = Some(false);
            } else if object.dlpi_addr == symbols::base_of(preloaded as *const c_void) as u64 {
                first.0 = Some(true);
            }
        }
        0
    }
    let mut first = First(None);
    // SAFETY: the callback gets `first` back while it is alive.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut first).cast()) };
    first.0.unwrap_or(false)
}

/// `dlopen` as libraries call it once their tables are patched. The real one looks at its return address, for the
/// caller's RUNPATH, so it is jumped to; what it loads is patched when somebody next asks for a library or a symbol, as
/// Python does right after loading an extension.
#[unsafe(naked)]
unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {patch}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp qword ptr [rip + {real}]",
        patch = sym patch_what_is_new,
        real = sym REAL_DLOPEN,
    )
}

/// Patches libraries loaded since the last time. Does nothing where memlab was preloaded.
pub extern "C" fn patch_what_is_new() {
    static PATCHED_FOR: AtomicU64 = AtomicU64::new(0);
    if REAL_DLOPEN.load(Ordering::Relaxed).is_null() {
        return;
    }
    let loads = loads();
    if PATCHED_FOR.swap(loads, Ordering::AcqRel) != loads {
        crate::quietly(patch_loaded);
    }
}

/// How many objects have ever been loaded.
pub fn loads() -> u64 {
    let mut loads = 0u64;
    // SAFETY: the callback gets `loads` back while it is alive.
    unsafe { libc::dl_iterate_phdr(Some(count_loads), (&raw mut loads).cast()) };
    loads
}

/// Tells how many objects have ever been loaded, and looks at no more than the first.
unsafe extern "C" fn count_loads(object: *mut libc::dl_phdr_info, _size: usize, loads: *mut c_void) -> c_int {
    // SAFETY: a valid description, and the number of [`loads`].
    unsafe { *loads.cast::<u64>() = (*object).dlpi_adds };
    1
}

/// In a forked child: another thread of the parent's may have been patching.
pub fn forget_in_child() {
    lifecycle::free_in_child(&PATCHED);
}

fn replacements() -> HashMap<&'static [u8], *const c_void> {
    let mut table: HashMap<&'static [u8], *const c_void> = HashMap::new();
    table.insert(b"dlopen", dlopen as *const c_void);
    table.insert(b"dlsym", symbols::dlsym as *const c_void);
    table.insert(b"_exit", lifecycle::_exit as *const c_void);
    table.extend(hooks::in_force().map(|hook| (hook.abi_name.as_bytes(), hook.address)));
    table.extend(runtime::HOOKS.iter().map(|(name, address)| (name.as_bytes(), *address)));
    table.extend(torch::hooks().map(|hook| (hook.symbol.to_bytes(), hook.address)));
    table
}

fn patch_loaded() {
    let mut patched = PATCHED.lock();
    let mut pass = Pass { replacements: replacements(), patched: patched.get_or_insert_with(HashSet::new) };
    // SAFETY: the callback gets `pass` back while it is alive, and valid descriptions of loaded objects.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut pass).cast()) };
}

struct Pass<'a> {
    replacements: HashMap<&'static [u8], *const c_void>,
    patched: &'a mut HashSet<usize>,
}

unsafe extern "C" fn visit(object: *mut libc::dl_phdr_info, _size: usize, pass: *mut c_void) -> c_int {
    // SAFETY: as `patch_loaded` promises.
    unsafe {
        let (object, pass) = (&*object, &mut *pass.cast::<Pass>());
        let name = if object.dlpi_name.is_null() { c"" } else { CStr::from_ptr(object.dlpi_name) };
        // Not ourselves, nor the loader and libc, which call none of these through their tables.
        let own = ["libmemlab.so", "ld-linux", "linux-vdso", "libc.so.6"];
        let skip = own.iter().any(|part| name.to_string_lossy().contains(part));
        if !skip
            && pass.patched.insert(object.dlpi_addr as usize)
            && let Some(tables) = Tables::of(object)
        {
            tables.patch(&pass.replacements);
        }
    }
    0
}

/// The relocation and symbol tables of a loaded object.
struct Tables {
    base: usize,
    symbols: *const libc::Elf64_Sym,
    strings: *const c_char,
    relocations: [(*const Rela, usize); 2],
    /// Pages made read-only after relocation (RELRO).
    protected: Option<(usize, usize)>,
}

/// `Elf64_Rela`
#[repr(C)]
struct Rela {
    offset: u64,
    info: u64,
    addend: i64,
}

/// `Elf64_Dyn`
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

const PT_DYNAMIC: u32 = 2;
const PT_GNU_RELRO: u32 = 0x6474_e552;
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;
const R_X86_64_64: u64 = 1;
const R_X86_64_GLOB_DAT: u64 = 6;
const R_X86_64_JUMP_SLOT: u64 = 7;

impl Tables {
    /// SAFETY: `object` must describe a loaded object.
    unsafe fn of(object: &libc::dl_phdr_info) -> Option<Self> {
        let base = object.dlpi_addr as usize;
        // SAFETY: the caller's word: headers and the dynamic section are mapped; the latter ends with a zero tag. glibc
        // has turned its addresses into absolute ones.
        unsafe {
            let headers = std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into());
            let protected = headers
                .iter()
                .find(|header| header.p_type == PT_GNU_RELRO)
                .map(|header| (base + header.p_vaddr as usize, header.p_memsz as usize));
            let section = headers.iter().find(|header| header.p_type == PT_DYNAMIC)?;
            let mut entry = (base + section.p_vaddr as usize) as *const Dynamic;
            let mut found = HashMap::new();
            while (*entry).tag != 0 {
                found.insert((*entry).tag, (*entry).value as usize);
                entry = entry.add(1);
            }
            let table = |at, size| match (found.get(&at), found.get(&size)) {
                (Some(&at), Some(&size)) => (at as *const Rela, size / size_of::<Rela>()),
                _ => (ptr::null(), 0),
            };
            Some(Self {
                base,
                symbols: *found.get(&DT_SYMTAB)? as *const _,
                strings: *found.get(&DT_STRTAB)? as *const _,
                relocations: [table(DT_JMPREL, DT_PLTRELSZ), table(DT_RELA, DT_RELASZ)],
                protected,
            })
        }
    }

    /// SAFETY: the object must still be loaded.
    unsafe fn patch(&self, replacements: &HashMap<&'static [u8], *const c_void>) {
        for (relocations, count) in self.relocations {
            for index in 0..count {
                // SAFETY: the tables have that many entries, and symbol indices lie inside the symbol table.
                unsafe {
                    let relocation = &*relocations.add(index);
                    let kind = relocation.info & 0xffff_ffff;
                    if !matches!(kind, R_X86_64_JUMP_SLOT | R_X86_64_GLOB_DAT | R_X86_64_64) {
                        continue;
                    }
                    let symbol = &*self.symbols.add((relocation.info >> 32) as usize);
                    let name = CStr::from_ptr(self.strings.add(symbol.st_name as usize));
                    if let Some(&replacement) = replacements.get(name.to_bytes()) {
                        self.write((self.base + relocation.offset as usize) as *mut *const c_void, replacement);
                    }
                }
            }
        }
    }

    /// SAFETY: `slot` must be a pointer slot of this object.
    unsafe fn write(&self, slot: *mut *const c_void, value: *const c_void) {
        const PAGE: usize = 4096;
        let address = slot as usize;
        let page = address & !(PAGE - 1);
        let protected = self.protected.is_some_and(|(start, size)| (start..start + size).contains(&address));
        // SAFETY: the caller's word; an aligned pointer-sized store is seen whole by other threads. RELRO pages were
        // writable until relocation ended and are made read-only again.
        unsafe {
            if protected && libc::mprotect(page as *mut c_void, PAGE, libc::PROT_READ | libc::PROT_WRITE) != 0 {
                return;
            }
            ptr::write_volatile(slot, value);
            if protected {
                libc::mprotect(page as *mut c_void, PAGE, libc::PROT_READ);
            }
        }
    }
}
