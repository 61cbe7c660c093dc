//! Shares `cuMemAlloc` memory and events with another process.
//!
//! A block is private until its first export. Its bytes then move into a memfd, mapped over the same addresses. The
//! handle names the process and its descriptor of that file. The memory stays charged to the exporter.

use std::ffi::CStr;
use std::fs::OpenOptions;
use std::os::fd::IntoRawFd;

use crate::api::{answer, api};
use crate::code::{Answer, Code};
use crate::current::current_device;
use crate::event;
use crate::pages::{self, PAGE};
use crate::space::{Block, Kind};
use crate::state::{DriverState, state};

/// File name of exported `cuMemAlloc` memory.
const SHARED_NAME: &CStr = c"simgpu:ipc";

/// Contents of the 64 bytes of a `CUipcMemHandle` or `CUipcEventHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Handle {
    magic: u64,
    pid: i32,
    file: i32,
    start_time: u64,
    base: u64,
    size: u64,
    mapped: u64,
    device: u32,
    padding: [u8; 12],
}

const _: () = assert!(size_of::<Handle>() == 64);

const MEMORY: u64 = u64::from_le_bytes(*b"simgpu-m");
const EVENT: u64 = u64::from_le_bytes(*b"simgpu-e");

fn handle(magic: u64) -> Handle {
    let pid = std::process::id() as i32;
    let start_time = simgpu_cards::start_time(pid).unwrap_or(0);
    Handle { magic, pid, file: -1, start_time, base: 0, size: 0, mapped: 0, device: 0, padding: [0; 12] }
}

/// Moves a block's bytes into a memfd mapped at the same address; returns the file.
fn share(block: &mut Block) -> Result<i32, Code> {
    if let Some(file) = block.file {
        return Ok(file);
    }
    let file = pages::file(SHARED_NAME, block.mapped).ok_or(Code::OUT_OF_MEMORY)?;
    for offset in (0..block.mapped).step_by(PAGE as usize) {
        // SAFETY: the block is mapped; reading a page that was never touched commits nothing.
        let page = unsafe { std::slice::from_raw_parts((block.base + offset) as *const u8, PAGE as usize) };
        if page.iter().any(|byte| *byte != 0) {
            // SAFETY: the file is as long as the block.
            unsafe { libc::pwrite(file, page.as_ptr().cast(), page.len(), offset as i64) };
        }
    }
    if !pages::map_file_at(block.base, block.mapped, file, 0, libc::PROT_READ | libc::PROT_WRITE) {
        pages::close(file);
        return Err(Code::MAP_FAILED);
    }
    block.file = Some(file);
    Ok(file)
}

fn export(state: &mut DriverState, address: u64) -> Result<Handle, Code> {
    let base = state.space.find(address).filter(|block| block.kind == Kind::Device).ok_or(Code::INVALID_VALUE)?.base;
    let block = state.space.get_mut(base).ok_or(Code::INVALID_VALUE)?;
    let file = share(block)?;
    let Block { size, mapped, device, .. } = *block;
    let device = state.cards.physical(device) as u32;
    Ok(Handle { file, base, size, mapped, device, ..handle(MEMORY) })
}

/// Opens memory of another process; opening it again returns the same address.
fn open(state: &mut DriverState, from: &Handle) -> Result<u64, Code> {
    if from.magic != MEMORY {
        return Err(Code::INVALID_VALUE);
    }
    if from.pid == std::process::id() as i32 {
        return Err(Code::INVALID_CONTEXT); // as documented, the exporting process cannot open it
    }
    if simgpu_cards::start_time(from.pid) != Some(from.start_time) {
        return Err(Code::INVALID_VALUE);
    }
    let (context, _) = current_device(state)?;
    let device = state.cards.visible(from.device as usize).ok_or(Code::INVALID_DEVICE)?;
    // The inode identifies the memory.
    let path = format!("/proc/{}/fd/{}", from.pid, from.file);
    let name = std::fs::read_link(&path).map_err(|_| Code::INVALID_VALUE)?;
    if !name.to_string_lossy().contains("simgpu:ipc") {
        return Err(Code::INVALID_VALUE);
    }
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(|_| Code::MAP_FAILED)?;
    let number = inode(&file);
    let known = state.space.all().find(|block| block.kind == Kind::Imported && block.id_of_file == number);
    if let Some(base) = known.map(|block| block.base) {
        state.space.get_mut(base).ok_or(Code::INVALID_VALUE)?.references += 1;
        return Ok(base);
    }
    let file = file.into_raw_fd();
    let base = pages::map_file(from.mapped, file).ok_or(Code::MAP_FAILED)?;
    let block = Block::new(base, from.size, from.mapped, Kind::Imported, device);
    state.space.insert(Block { context, file: Some(file), id_of_file: number, references: 1, ..block });
    Ok(base)
}

fn inode(file: &std::fs::File) -> u64 {
    use std::os::unix::fs::MetadataExt;
    file.metadata().map_or(0, |data| data.ino())
}

fn close(state: &mut DriverState, address: u64) -> Answer {
    let block = state.space.get_mut(address).ok_or(Code::INVALID_VALUE)?;
    if block.kind != Kind::Imported {
        return Err(Code::INVALID_VALUE);
    }
    block.references -= 1;
    if block.references == 0
        && let Some(block) = state.space.remove(address)
    {
        crate::allocation::release(state, block);
    }
    Ok(())
}

api! {
    fn cuIpcGetMemHandle(to: *mut Handle, address: u64) {
        let made = export(&mut *state()?, address)?;
        answer(to, made)?;
    }

    fn cuIpcOpenMemHandle_v2 | cuIpcOpenMemHandle (to: *mut u64, from: Handle, _flags: u32) {
        let base = open(&mut *state()?, &from)?;
        answer(to, base)?;
    }

    fn cuIpcCloseMemHandle(address: u64) {
        close(&mut *state()?, address)?;
    }

    fn cuIpcGetEventHandle(to: *mut Handle, known: usize) {
        if event::flags(&*state()?, known)? & event::INTERPROCESS == 0 {
            return Err(Code::INVALID_HANDLE);
        }
        answer(to, handle(EVENT))?;
    }

    fn cuIpcOpenEventHandle(to: *mut usize, from: Handle) {
        if from.magic != EVENT {
            return Err(Code::INVALID_HANDLE);
        }
        const UNTIMED: u32 = 2;
        let made = event::create(&mut *state()?, event::INTERPROCESS | UNTIMED)?;
        answer(to, made)?;
    }
}
