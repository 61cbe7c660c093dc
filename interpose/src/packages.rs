//! Lines of AOTInductor packages that call PyTorch.
//!
//! A package is a C++ library that runs without Python. It is unpacked with its source beside it and has a table of lines
//! (Inductor compiles it with `-g1`). So the return address of a call leads to the line, and the line to the node in the
//! source that it computes.

use std::ffi::CStr;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use addr2line::Loader;
use hashbrown::HashMap;
use memlab_inductor::Package;
use parking_lot::Mutex;

use crate::intern::{Frame, WrapperPlace};
use crate::recorder::Recorder;
use crate::thread_state::{CachedFrame, FRAME_CACHE_ENTRIES, ThreadState};
use interpose_base::frame_role::FrameRole;
use interpose_base::loaded_objects;
use interpose_base::locks;
use interpose_python::walk::CodeIdentity;

/// Function of every package that PyTorch looks up when it loads one.
pub const ENTRY: &CStr = c"AOTInductorModelContainerRun";

/// Maximum size of a source that is read, in bytes.
const MAX_SOURCE: u64 = 64 << 20;

/// Number of packages loaded so far.
///
/// After a load, an address can belong to another package.
static LOADS: AtomicUsize = AtomicUsize::new(0);

/// Sources of packages, by their libraries' paths; `None` for other libraries, which have no source beside them.
static SOURCES: Mutex<Option<HashMap<String, Option<Source>>>> = Mutex::new(None);

struct Source {
    /// Name without folders: packages are unpacked into temporary ones.
    name: String,
    package: Package,
    lines: Loader,
}

/// Records that a package was loaded.
pub fn loaded() {
    LOADS.fetch_add(1, Ordering::AcqRel);
}

/// Called in a forked child: another thread of the parent may have been reading.
pub fn reset_in_child() {
    locks::unlock_in_child(&SOURCES);
}

/// Returns the frame of the package line whose call returns to `site`, and true if the line computes a node.
///
/// 0 if the call is not a package's.
pub fn frame(recorder: &Recorder, thread: &mut ThreadState, site: usize) -> (u32, bool) {
    let loads = LOADS.load(Ordering::Acquire);
    let cached = &mut thread.frame_cache[(site ^ site >> 10) % FRAME_CACHE_ENTRIES];
    if cached.code as usize != site || cached.position != loads {
        let (id, has_node) = find(recorder, site).unwrap_or_default();
        let role = if has_node { FrameRole::WRAPPER } else { FrameRole::empty() };
        let frame = Frame { id, role, identity: CodeIdentity::EMPTY };
        *cached = CachedFrame { code: site as *const u8, position: loads, frame };
    }
    (cached.frame.id, cached.frame.role.intersects(FrameRole::WRAPPER))
}

#[cold]
fn find(recorder: &Recorder, site: usize) -> Option<(u32, bool)> {
    let call = site - 1; // The call may be the last instruction of its line.
    let (library, base) = loaded_objects::file_at(call)?;
    let mut sources = SOURCES.lock();
    let sources = sources.get_or_insert_with(HashMap::new);
    let source = sources.entry_ref(&library).or_insert_with(|| source_beside(Path::new(&library))).as_ref()?;
    let line = source.line_at((call - base) as u64)?;
    let node = source.package.node(line).unwrap_or_default();
    let place = WrapperPlace { file: library, line, function: node.to_owned() };
    Some((recorder.interner.package_frame(&recorder.log, &source.name, place), !node.is_empty()))
}

/// Returns the source of a package.
///
/// It has the library's name, except for the ending.
fn source_beside(library: &Path) -> Option<Source> {
    let path = library.with_extension("cpp");
    let is_read = fs::metadata(&path).ok()?.len() <= MAX_SOURCE;
    let text = is_read.then(|| fs::read(&path).ok()).flatten()?;
    let name = path.file_name()?.to_string_lossy().into_owned();
    let package = Package::parse(&String::from_utf8_lossy(&text));
    Some(Source { name, package, lines: Loader::new(library).ok()? })
}

impl Source {
    /// Returns the line of a call at an offset in the library: that of the outermost function, if others are inlined there.
    fn line_at(&self, offset: u64) -> Option<u32> {
        let mut frames = self.lines.find_frames(offset).ok()?;
        let mut outermost = None;
        while let Ok(Some(frame)) = frames.next() {
            outermost = frame.location;
        }
        outermost.filter(|found| found.file.is_some_and(|file| file.ends_with(&self.name)))?.line
    }
}
