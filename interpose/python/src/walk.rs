//! Reads the Python frames of the calling thread, without the GIL and without the C-API.
//!
//! This is safe because only the owning thread changes its chain of frames, a frame keeps its code object alive, and a
//! thread inside a hook is not running bytecode. Frames of other threads are read only while the GIL is held (see
//! [`super::agent`]): then they cannot change either.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use super::layout::{
    self, BYTES_DATA, BYTES_SIZE, CELL_CONTENTS, CODE_ARGUMENTS, CODE_CELL_ARGUMENTS, CODE_CELLS, CODE_LOCALS,
    CurrentFrame, IS_METATYPE, Layout, OBJECT_TYPE, Position, SHIM_OWNER, STRING_LENGTH, STRING_STATE, TUPLE_ITEMS,
    TUPLE_SIZE, TYPE_FLAGS, TYPE_NAME,
};
use super::lines;
use super::probe::Probe;

/// Maximum number of frames of a walk; frames further out are omitted.
pub const MAX_DEPTH: usize = 512;

/// A Python frame as found in memory.
#[derive(Clone, Copy)]
pub struct RawFrame {
    pub code: *const u8,
    /// The instruction: an index or a pointer, depending on the layout.
    pub position: usize,
    pub frame: *const u8,
}

impl RawFrame {
    pub const EMPTY: Self = Self { code: std::ptr::null(), position: 0, frame: std::ptr::null() };
}

/// Fields that reveal whether an address still contains the same code object: addresses are reused.
///
/// The fields are close together in a code object, since every walk reads them for every frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CodeIdentity {
    filename: usize,
    name: usize,
    first_line: i32,
}

impl CodeIdentity {
    /// Matches no code object.
    pub const EMPTY: Self = Self { filename: 0, name: 0, first_line: 0 };
}

/// The Python interpreter in this process, as seen by the walker.
pub struct Interpreter {
    layout: &'static Layout,
    this_thread_state: unsafe extern "C" fn() -> *const u8,
    code_type: *const u8,
    cell_type: *const u8,
}

// SAFETY: the pointers name immortal static objects of libpython.
unsafe impl Send for Interpreter {}
// SAFETY: nothing is written through the pointers.
unsafe impl Sync for Interpreter {}

/// Reason for which Python stacks cannot be read.
pub enum Unsupported {
    /// The process contains no Python: not reported.
    NoPython,
    /// The table does not contain this Python version.
    Unknown(String),
}

impl Interpreter {
    /// Looks for CPython among the symbols of the process.
    ///
    /// `lookup` is the real `dlsym` over the global scope.
    pub fn find(lookup: impl Fn(&CStr) -> *mut c_void) -> Result<Self, Unsupported> {
        let (this_thread_state, version) = (lookup(c"PyGILState_GetThisThreadState"), lookup(c"Py_GetVersion"));
        let (code_type, cell_type) = (lookup(c"PyCode_Type"), lookup(c"PyCell_Type"));
        if [this_thread_state, version, code_type, cell_type].contains(&std::ptr::null_mut()) {
            return Err(Unsupported::NoPython);
        }
        // SAFETY: Py_GetVersion takes nothing, returns a static string, and may be called at any time.
        let version = unsafe {
            let version: unsafe extern "C" fn() -> *const c_char = std::mem::transmute(version);
            CStr::from_ptr(version()).to_string_lossy()
        };
        let release = version.split_whitespace().next().unwrap_or_default();
        let unknown =
            |why: &str| Unsupported::Unknown(format!("this memlab does not support Python {release} ({why})"));
        let mut numbers = release.split('.');
        let minor = match (numbers.next(), numbers.next().and_then(|minor| minor.parse().ok())) {
            (Some("3"), Some(minor)) => minor,
            _ => return Err(unknown("not a 3.x release")),
        };
        if version.contains("free-threading") {
            return Err(unknown("a free-threaded build"));
        }
        let layout =
            layout::for_minor(minor).ok_or_else(|| unknown(&format!("supported: {}", layout::known_versions())))?;
        if minor >= layout::PUBLISHED_SINCE {
            let runtime = lookup(c"_PyRuntime");
            if runtime.is_null() {
                return Err(unknown("its runtime structure is hidden"));
            }
            // SAFETY: from `PUBLISHED_SINCE` on _PyRuntime begins with _Py_DebugOffsets, which is longer than this array.
            let words = unsafe { &*runtime.cast::<[u64; layout::PUBLISHED_WORDS]>() };
            layout::agrees(layout, words).map_err(unknown)?;
        }
        Ok(Self {
            layout,
            // SAFETY: `PyThreadState *PyGILState_GetThisThreadState(void)`, since 3.3.
            this_thread_state: unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const u8>(this_thread_state)
            },
            code_type: code_type.cast_const().cast(),
            cell_type: cell_type.cast_const().cast(),
        })
    }

    /// Innermost frame of the calling thread; null if it runs no Python.
    #[inline]
    pub fn innermost(&self) -> *const u8 {
        // SAFETY: callable from any thread at any time; null before start, after finalization and on foreign threads.
        let state = unsafe { (self.this_thread_state)() };
        if state.is_null() { std::ptr::null() } else { self.innermost_of(state) }
    }

    /// Innermost frame of the thread to which `state` (a live `PyThreadState`) belongs.
    #[inline]
    pub fn innermost_of(&self, state: *const u8) -> *const u8 {
        // SAFETY: `state` is alive, and the offsets are this version's.
        unsafe {
            match self.layout.current_frame {
                CurrentFrame::Direct(offset) => read(state, offset),
                CurrentFrame::ThroughCFrame(cframe, offset) => {
                    let cframe: *const u8 = read(state, cframe);
                    if cframe.is_null() { std::ptr::null() } else { read(cframe, offset) }
                }
            }
        }
    }

    /// Walks the chain from `innermost` outwards into `frames`; returns the number of frames found.
    ///
    /// Omits frames that run no Python code (the interpreter's entry shims).
    ///
    /// `last` contains the frames of the previous walk (empty, or of this same interpreter). A frame that is also in `last`
    /// with the same code is not examined closely. Close examination is most of the cost of a walk.
    #[inline]
    pub fn walk(&self, innermost: *const u8, frames: &mut [RawFrame; MAX_DEPTH], last: &[RawFrame]) -> usize {
        /// Number of frames by which a stack may be shorter than before and still be found in `last`.
        const SEARCH_WINDOW_FRAMES: usize = 8;
        let layout = self.layout;
        self.fetch(last);
        let mut frame = innermost;
        let mut count = 0;
        let mut expected = 0;
        while !frame.is_null() && count < MAX_DEPTH {
            // SAFETY: `frame` is a live frame of this thread (or the GIL is held); offsets are this version's.
            unsafe {
                let code = self.code_of(frame);
                let is_met = |old: &RawFrame| ptr::eq(old.frame, frame) && ptr::eq(old.code, code);
                let met = last.get(expected).is_some_and(is_met);
                if met || self.runs_python(frame, code) {
                    if met {
                        expected += 1;
                    } else if let Some(skipped) = last.iter().skip(expected).take(SEARCH_WINDOW_FRAMES).position(is_met)
                    {
                        expected += skipped + 1;
                    }
                    let position = match layout.position {
                        Position::Index(offset, _) => read::<c_int>(frame, offset) as isize as usize,
                        Position::Pointer(offset) => read::<usize>(frame, offset),
                    };
                    frames[count] = RawFrame { code, position, frame };
                    count += 1;
                }
                frame = read(frame, layout.previous);
            }
        }
        count
    }

    /// Prefetches the data that a walk reads of these frames.
    ///
    /// Where PyTorch's work has evicted it from the caches, a walk would otherwise wait for one frame after the other.
    #[inline]
    fn fetch(&self, last: &[RawFrame]) {
        /// Limit on prefetched frames.
        ///
        /// Most stacks have fewer.
        const PREFETCHED_FRAMES: usize = 48;
        for RawFrame { frame, code, .. } in last.iter().take(PREFETCHED_FRAMES) {
            prefetch(frame.wrapping_add(self.layout.previous));
            prefetch(code.wrapping_add(self.layout.code_name));
        }
    }

    /// Returns true if the frame runs a Python function and is not a shim of the interpreter.
    ///
    /// # Safety
    ///
    /// `frame` must be a live frame and `code` the result of [`code_of`](Self::code_of) for it.
    unsafe fn runs_python(&self, frame: *const u8, code: *const u8) -> bool {
        // SAFETY: a live frame has its owner, and a code object its type, at these offsets.
        unsafe {
            let shim = self.layout.owner.is_some_and(|owner| read::<u8>(frame, owner) >= SHIM_OWNER);
            !shim && !code.is_null() && ptr::eq(read::<*const u8>(code, OBJECT_TYPE), self.code_type)
        }
    }

    /// Walks like [`walk`](Self::walk), but the kernel checks every address first.
    ///
    /// Done once, before the first plain walk: it detects a table that does not match this build without a crash.
    pub fn walk_checked(&self, innermost: *const u8, probe: &Probe) -> Result<(), &'static str> {
        let mut frame = innermost;
        for _ in 0..MAX_DEPTH {
            if frame.is_null() {
                return Ok(());
            }
            if !probe.readable(frame, self.layout.locals + 8) {
                return Err("a frame lies outside memory");
            }
            // SAFETY: the kernel has just read these bytes.
            let code = unsafe { self.code_of(frame) };
            if !code.is_null() {
                if !probe.readable(code, self.layout.code_line_table + 8) {
                    return Err("a code object lies outside memory");
                }
                // SAFETY: the kernel has just read these bytes.
                if unsafe { read::<*const u8>(code, OBJECT_TYPE) } == self.code_type {
                    // SAFETY: the kernel has just read the code object up to its line table.
                    let filename = unsafe { read::<*const u8>(code, self.layout.code_filename) };
                    if !probe.readable(filename, self.layout.ascii_header) {
                        return Err("a file name lies outside memory");
                    }
                }
            }
            // SAFETY: the kernel has just read the frame up to its locals.
            frame = unsafe { read(frame, self.layout.previous) };
        }
        Ok(())
    }

    /// # Safety
    ///
    /// `frame` must be a readable frame.
    unsafe fn code_of(&self, frame: *const u8) -> *const u8 {
        // 3.14 tags references in the lowest bits; objects are 8-aligned in every version.
        // SAFETY: a readable frame has its code at this offset.
        unsafe { (read::<usize>(frame, self.layout.code) & !7) as *const u8 }
    }

    /// Identity of the code object that is currently at this address.
    #[inline]
    pub fn identity(&self, code: *const u8) -> CodeIdentity {
        // SAFETY: `code` was found in a live frame of this thread.
        unsafe {
            CodeIdentity {
                filename: read(code, self.layout.code_filename),
                name: read(code, self.layout.code_name),
                first_line: read(code, self.layout.code_first_line),
            }
        }
    }

    /// Returns the object in the frame's local variable of this index (0: a method's `self`), or null.
    ///
    /// Only for frames of functions known to have an object there.
    #[inline]
    pub fn local(&self, frame: *const u8, number: usize) -> *const u8 {
        // SAFETY: a live frame; a variable is null, an object, or the cell that closures share.
        unsafe {
            let object = (read::<usize>(frame, self.layout.locals + 8 * number) & !7) as *const u8;
            if !object.is_null() && read::<*const u8>(object, OBJECT_TYPE) == self.cell_type {
                return read(object, CELL_CONTENTS);
            }
            object
        }
    }

    /// Returns the object in the frame's slot of this index: a local variable, or the cell of one; or null.
    pub fn slot(&self, frame: *const u8, index: usize) -> *const u8 {
        // SAFETY: a live frame has a slot for each local variable of its code.
        unsafe { (read::<usize>(frame, self.layout.locals + 8 * index) & !7) as *const u8 }
    }

    /// First line of a code object.
    pub fn first_line(&self, code: *const u8) -> u32 {
        // SAFETY: a live code object has its first line there.
        u32::try_from(unsafe { read::<c_int>(code, self.layout.code_first_line) }).unwrap_or(0)
    }

    /// Returns true if an argument shared with a closure has a cell among those of the other variables (before 3.11),
    /// instead of in its argument slot.
    #[inline]
    pub fn has_cells_of_arguments_apart(&self) -> bool {
        self.layout.minor < 11
    }

    /// The object's class.
    #[inline]
    pub fn class(&self, object: *const u8) -> *const u8 {
        // SAFETY: `object` is alive: a frame of this thread holds it.
        if object.is_null() { ptr::null() } else { unsafe { read(object, OBJECT_TYPE) } }
    }

    /// The name of the object's class.
    pub fn class_name(&self, object: *const u8) -> String {
        // SAFETY: `object` is alive: a frame of this thread holds it; its class lives as long.
        unsafe { type_name(read(object, OBJECT_TYPE)) }
    }

    /// Current line of the frame.
    pub fn line(&self, raw: &RawFrame) -> Option<u32> {
        let layout = self.layout;
        // SAFETY: `raw.code` is a live code object; its line table is a bytes object.
        let (table, first_line) = unsafe {
            let table: *const u8 = read(raw.code, layout.code_line_table);
            if table.is_null() {
                return None;
            }
            let size: usize = read(table, BYTES_SIZE);
            (std::slice::from_raw_parts(table.add(BYTES_DATA), size), read::<c_int>(raw.code, layout.code_first_line))
        };
        let position = match layout.position {
            Position::Index(_, unit) => (raw.position as isize).max(0) as u32 * unit,
            Position::Pointer(_) => raw.position.saturating_sub(raw.code as usize + layout.code_instructions) as u32,
        };
        lines::line_at(layout.line_table, table, first_line, position)
    }

    pub fn file(&self, code: *const u8) -> String {
        // SAFETY: a live code object's file name is a string object.
        unsafe { self.string(read(code, self.layout.code_filename)) }
    }

    /// Plain name of the function (`forward`), which identifies PyTorch's functions.
    pub fn name(&self, code: *const u8) -> String {
        // SAFETY: a live code object's names are string objects.
        unsafe { self.string(read(code, self.layout.code_name)) }
    }

    /// Qualified name (`GPT.forward`) if the version has it.
    ///
    /// Before 3.11 the class is that of the object on which the method is called.
    pub fn qualified_name(&self, raw: &RawFrame) -> String {
        match self.layout.code_qualname {
            0 => {
                let name = self.name(raw.code);
                // SAFETY: the row is one of a version before 3.11; `raw` is a live frame of this thread.
                match unsafe { self.class_of_method(raw) } {
                    Some(class) => format!("{class}.{name}"),
                    None => name,
                }
            }
            // SAFETY: a live code object's names are string objects.
            offset => unsafe { self.string(read(raw.code, offset)) },
        }
    }

    /// Class whose method a frame runs, found through a first argument named `self` or `cls`.
    ///
    /// # Safety
    ///
    /// Only before 3.11, and for live frames of this thread.
    unsafe fn class_of_method(&self, raw: &RawFrame) -> Option<String> {
        // SAFETY: a live frame, before 3.11. Names of variables are a tuple of strings that lives as long as the code;
        // a local is null or an object that the frame holds, and the same is true for the content of a cell.
        unsafe {
            let names: *const u8 = read(raw.code, self.layout.code_variables);
            if read::<c_int>(raw.code, CODE_ARGUMENTS) < 1 || names.is_null() || read::<usize>(names, TUPLE_SIZE) == 0 {
                return None;
            }
            let first = self.string(read(names, TUPLE_ITEMS));
            if first != "self" && first != "cls" {
                return None;
            }
            let mut object: *const u8 = read(raw.frame, self.layout.locals);
            if object.is_null() {
                object = self.first_argument_in_cell(raw)?;
            }
            let class: *const u8 = read(object, OBJECT_TYPE);
            if first == "self" {
                return Some(type_name(class));
            }
            (read::<u64>(class, TYPE_FLAGS) & IS_METATYPE != 0).then(|| type_name(object))
        }
    }

    /// First argument if a closure of the function also uses it.
    ///
    /// Sharing moves it into a cell behind the locals.
    ///
    /// # Safety
    ///
    /// `raw` must be a live frame of this thread, before 3.11.
    unsafe fn first_argument_in_cell(&self, raw: &RawFrame) -> Option<*const u8> {
        // SAFETY: a live frame, before 3.11. The array has an entry for each of the code's cells.
        unsafe {
            let arguments: *const u8 = read(raw.code, CODE_CELL_ARGUMENTS);
            if arguments.is_null() {
                return None;
            }
            let cells: usize = read(read::<*const u8>(raw.code, CODE_CELLS), TUPLE_SIZE);
            let index = (0..cells).find(|cell| read::<isize>(arguments, 8 * cell) == 0)?;
            let locals = usize::try_from(read::<c_int>(raw.code, CODE_LOCALS)).ok()?;
            let cell: *const u8 = read(raw.frame, self.layout.locals + 8 * (locals + index));
            if cell.is_null() {
                return None;
            }
            let object: *const u8 = read(cell, CELL_CONTENTS);
            (!object.is_null()).then_some(object)
        }
    }

    /// # Safety
    ///
    /// `string` must be null or a live `str` object.
    unsafe fn string(&self, string: *const u8) -> String {
        if string.is_null() {
            return "?".into();
        }
        // SAFETY: not null, so the caller promises a live string; the state bits are: interned 2, kind 3, compact 1,
        // ascii 1.
        unsafe {
            let length: usize = read(string, STRING_LENGTH);
            let state: u32 = read(string, STRING_STATE);
            let (kind, compact, ascii) = ((state >> 2) & 7, (state >> 5) & 1 == 1, (state >> 6) & 1 == 1);
            if !compact {
                return "?".into();
            }
            let data = string.add(if ascii { self.layout.ascii_header } else { self.layout.compact_header });
            match kind {
                1 if ascii => String::from_utf8_lossy(std::slice::from_raw_parts(data, length)).into_owned(),
                1 => std::slice::from_raw_parts(data, length).iter().map(|&latin1| char::from(latin1)).collect(),
                2 => String::from_utf16_lossy(std::slice::from_raw_parts(data.cast(), length)),
                4 => std::slice::from_raw_parts(data.cast::<u32>(), length)
                    .iter()
                    .map(|&point| char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER))
                    .collect(),
                _ => "?".into(),
            }
        }
    }
}

/// The name of a class, without its module.
///
/// # Safety
///
/// `class` must be a live type.
unsafe fn type_name(class: *const u8) -> String {
    // SAFETY: a live type. `tp_name` is NUL-terminated and lives with the type.
    let name = unsafe {
        let name: *const c_char = read(class, TYPE_NAME);
        if name.is_null() { c"?" } else { CStr::from_ptr(name) }
    };
    let name = name.to_string_lossy();
    name.rsplit('.').next().unwrap_or_default().to_owned()
}

/// # Safety
///
/// `base + offset` must be readable as a `T`.
#[inline]
unsafe fn read<T: Copy>(base: *const u8, offset: usize) -> T {
    // SAFETY: the caller promises that a `T` can be read there.
    unsafe { base.add(offset).cast::<T>().read_unaligned() }
}

/// Prefetches a cache line.
///
/// Any address is allowed.
#[inline]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address does nothing that can be seen.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
