//! Hooks for a program that is already running, when memlab was `dlopen`ed, as in a notebook.
//!
//! The program's symbols are already bound. So memlab writes its functions into the tables through which loaded libraries
//! call (their GOTs), and into those of libraries that are loaded later.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use hashbrown::{HashMap, HashSet};
use object::elf::{
    DT_JMPREL, DT_NULL, DT_PLTRELSZ, DT_RELA, DT_RELASZ, DT_STRTAB, DT_SYMTAB, PT_DYNAMIC, PT_GNU_RELRO, R_X86_64_64,
    R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT,
};
use parking_lot::Mutex;

use crate::loaded_objects;
use crate::locks::unlock_in_child;
use crate::panics;

/// memlab's functions by symbol.
pub type Replacements = HashMap<&'static [u8], *const c_void>;

/// Builds the table of all hooks except `dlopen`, which is defined in this file.
static REPLACEMENTS: OnceLock<fn() -> Replacements> = OnceLock::new();

/// The jump target of [`dlopen`]; set before any table is patched, null until then.
static REAL_DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Load addresses of the patched objects.
static PATCHED: Mutex<Option<HashSet<usize>>> = Mutex::new(None);

/// Patches the loaded objects, and from now on those loaded later.
pub fn start(replacements: fn() -> Replacements) {
    if REPLACEMENTS.set(replacements).is_ok() {
        REAL_DLOPEN.store(libc::dlopen as *mut c_void, Ordering::Release);
        patch_new_objects();
    }
}

/// The `dlopen` that libraries call once their tables are patched.
///
/// It jumps to the real one, which reads its return address to find the caller's RUNPATH. The loaded library is patched at
/// the next `dlopen` or `dlsym`. Python calls one right after loading an extension.
///
/// # Safety
///
/// As for the real `dlopen`.
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
        patch = sym patch_new_objects,
        real = sym REAL_DLOPEN,
    )
}

/// Patches objects loaded since the last call.
///
/// Does nothing if memlab was preloaded.
pub extern "C" fn patch_new_objects() {
    static PATCHED_FOR: AtomicU64 = AtomicU64::new(0);
    if REAL_DLOPEN.load(Ordering::Relaxed).is_null() {
        return;
    }
    let loads = loaded_objects::loads();
    if PATCHED_FOR.swap(loads, Ordering::AcqRel) != loads {
        panics::catch(patch_all);
    }
}

/// Patches the tables of one loaded object, whether or not memlab was preloaded.
///
/// `name` is part of its path.
pub fn patch_object(name: &str, replacements: &Replacements) {
    let mut pass = (name, replacements);
    // SAFETY: the callback gets `pass` back while it is alive, and valid descriptions of loaded objects.
    unsafe { libc::dl_iterate_phdr(Some(visit_named), (&raw mut pass).cast()) };
}

/// # Safety
///
/// Must be called by `dl_iterate_phdr`, with the pass of [`patch_object`].
unsafe extern "C" fn visit_named(object: *mut libc::dl_phdr_info, _size: usize, pass: *mut c_void) -> c_int {
    // SAFETY: a valid description, with a NUL-terminated name or none, and the pass of `patch_object`.
    unsafe {
        let (object, (name, replacements)) = (&*object, &*pass.cast::<(&str, &Replacements)>());
        let path = if object.dlpi_name.is_null() { c"" } else { CStr::from_ptr(object.dlpi_name) };
        if path.to_string_lossy().contains(name)
            && let Some(tables) = Tables::of(object)
        {
            tables.patch(replacements);
        }
    }
    0
}

/// Called in a forked child: another thread of the parent may have been patching.
pub fn reset_in_child() {
    unlock_in_child(&PATCHED);
}

fn patch_all() {
    let Some(replacements) = REPLACEMENTS.get() else { return };
    let mut replacements = replacements();
    replacements.insert(b"dlopen", dlopen as *const c_void);
    let mut patched = PATCHED.lock();
    let mut pass = PatchPass { replacements, patched: patched.get_or_insert_with(HashSet::new) };
    // SAFETY: the callback gets `pass` back while it is alive, and valid descriptions of loaded objects.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut pass).cast()) };
}

struct PatchPass<'a> {
    replacements: Replacements,
    patched: &'a mut HashSet<usize>,
}

/// # Safety
///
/// Must be called by `dl_iterate_phdr`, with the `PatchPass` of [`patch_all`].
unsafe extern "C" fn visit(object: *mut libc::dl_phdr_info, _size: usize, pass: *mut c_void) -> c_int {
    // SAFETY: a valid description, with a NUL-terminated name or none, and the `PatchPass` of `patch_all`.
    unsafe {
        let (object, pass) = (&*object, &mut *pass.cast::<PatchPass>());
        let name = if object.dlpi_name.is_null() { c"" } else { CStr::from_ptr(object.dlpi_name) };
        // Skip memlab itself, and the loader and libc, which call none of these functions through their tables.
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

impl Tables {
    /// # Safety
    ///
    /// `object` must describe a loaded object.
    unsafe fn of(object: &libc::dl_phdr_info) -> Option<Self> {
        let base = object.dlpi_addr as usize;
        // SAFETY: headers and dynamic section of a loaded object are mapped; the latter ends with a zero tag. glibc has
        // turned its addresses into absolute ones.
        unsafe {
            let headers = std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into());
            let protected = headers
                .iter()
                .find(|header| header.p_type == PT_GNU_RELRO)
                .map(|header| (base + header.p_vaddr as usize, header.p_memsz as usize));
            let section = headers.iter().find(|header| header.p_type == PT_DYNAMIC)?;
            let mut entry = (base + section.p_vaddr as usize) as *const Dynamic;
            let mut found = HashMap::new();
            while (*entry).tag != i64::from(DT_NULL) {
                found.insert((*entry).tag as u32, (*entry).value as usize);
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

    /// # Safety
    ///
    /// The object must still be loaded.
    unsafe fn patch(&self, replacements: &Replacements) {
        for (relocations, count) in self.relocations {
            for index in 0..count {
                // SAFETY: the tables have that many entries, and symbol indices are inside the symbol table.
                unsafe {
                    let relocation = &*relocations.add(index);
                    let kind = relocation.info as u32;
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

    /// # Safety
    ///
    /// `slot` must be a pointer slot of this object.
    unsafe fn write(&self, slot: *mut *const c_void, value: *const c_void) {
        const PAGE: usize = 4096;
        let address = slot as usize;
        let page = address & !(PAGE - 1);
        let protected = self.protected.is_some_and(|(start, size)| (start..start + size).contains(&address));
        // SAFETY: the slot is aligned, so other threads see the store whole. RELRO pages were writable until relocation
        // ended and are made read-only again.
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
