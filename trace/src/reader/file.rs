//! Opens trace files without blocking.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::UNIX_EPOCH;

use crate::model::Model;
use memlab_format::decode_line;
use memlab_format::record::{Header, Record};

/// Maximum length of the header line, in bytes.
const MAX_HEADER_BYTES: u64 = 1 << 20;

/// Opens a trace file for reading. Refuses pipes and devices, without waiting for them or their writers.
///
/// # Errors
///
/// If the system cannot open it, or it is not a file.
pub fn open_file(path: &Path) -> io::Result<File> {
    open(path, libc::O_NONBLOCK | libc::O_NOCTTY)
}

/// Opens a file as [`open_file`] does, but also refuses symbolic links: another user may have created one.
///
/// # Errors
///
/// As [`open_file`], or if it is a symbolic link.
pub fn open_file_no_follow(path: &Path) -> io::Result<File> {
    open(path, libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW)
}

fn open(path: &Path, flags: i32) -> io::Result<File> {
    let refuse = |kind: std::fs::FileType| {
        let what = if kind.is_fifo() {
            "it is a pipe"
        } else if kind.is_socket() {
            "it is a socket"
        } else {
            "it is a device"
        };
        Err(io::Error::other(format!("{what}: traces are read from files")))
    };
    // Checked before opening, because opening some devices is a command.
    let kind = std::fs::metadata(path)?.file_type();
    if !kind.is_file() && !kind.is_dir() {
        return refuse(kind);
    }
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() || kind.is_dir() { Ok(file) } else { refuse(kind) }
}

/// Returns the header of a trace file; `None`: it is no trace.
pub fn read_header(file: &File) -> Option<Header> {
    header_in(file)
}

/// Returns the header of the trace at a path, plain or compressed; `None`: it is no trace.
pub fn read_header_at(path: &Path) -> Option<Header> {
    let mut file = open_file(path).ok()?;
    let mut start = Vec::with_capacity(4);
    file.by_ref().take(4).read_to_end(&mut start).ok()?;
    io::Seek::rewind(&mut file).ok()?;
    if is_zstd(&start) { header_in(zstd::Decoder::new(file).ok()?) } else { header_in(file) }
}

fn header_in(source: impl Read) -> Option<Header> {
    let mut line = Vec::new();
    BufReader::new(source.take(MAX_HEADER_BYTES)).read_until(b'\n', &mut line).ok()?;
    match decode_line(line.strip_suffix(b"\n")?).ok()? {
        Record::Header(header) => Some(*header),
        _ => None,
    }
}

/// Opens the continuation of a trace (`FILE.next`) whose writer died while cutting it down.
///
/// Returns `None` if it does not exist, belongs to another process or is not a trace.
pub(super) fn open_continuation(path: &Path, model: &Model) -> Option<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".next");
    let file = open_file_no_follow(Path::new(&name)).ok()?;
    let header = model.header()?;
    let modified = file.metadata().ok()?.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    let is_ours = modified.as_nanos() >= u128::from(header.start_unix_ns)
        && read_header(&file).is_some_and(|found| (found.id, found.pid) == (header.id.clone(), header.pid));
    io::Seek::rewind(&mut &file).ok()?;
    is_ours.then_some(file)
}

/// Returns true if a file that starts with these bytes is compressed with zstd.
pub(super) fn is_zstd(start: &[u8]) -> bool {
    start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
}
