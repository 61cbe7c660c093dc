//! Device memory for programs without another allocator.

use std::sync::Arc;

use crate::arena::Arena;
use crate::cuda_driver::Device;
use crate::error::{Error, Result};

/// Memory on a CUDA device, or without a device on the host, until dropped.
pub struct DeviceMemory(Kind);

enum Kind {
    Device { device: Arc<Device>, address: u64, bytes: u64 },
    Host(Arena),
}

impl DeviceMemory {
    /// Allocates `bytes` on a CUDA device, by ordinal, or on the host.
    ///
    /// # Errors
    ///
    /// If there is no such device, or it has too little memory.
    pub fn new(device: Option<i32>, bytes: u64) -> Result<Self> {
        let Some(ordinal) = device else { return Arena::new(bytes).map(|memory| Self(Kind::Host(memory))) };
        let device = Device::open(ordinal)?;
        let address = {
            let _current = device.make_current()?;
            device.allocate(bytes.max(1))?
        };
        Ok(Self(Kind::Device { device, address, bytes }))
    }

    /// The address of its first byte.
    pub fn address(&self) -> u64 {
        match &self.0 {
            Kind::Device { address, .. } => *address,
            Kind::Host(memory) => memory.address(),
        }
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        match &self.0 {
            Kind::Device { bytes, .. } => *bytes,
            Kind::Host(memory) => memory.bytes(),
        }
    }

    /// Reads from `offset` on. Writes to the range must be done.
    ///
    /// # Errors
    ///
    /// If the range is not inside, or the device has failed.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        let bytes = to.len() as u64;
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes()) {
            return Err(Error::Invalid(format!("{bytes} bytes at {offset} are outside {}", self.bytes())));
        }
        match &self.0 {
            Kind::Device { device, address, .. } => {
                let _current = device.make_current()?;
                device.read(address + offset, to)
            }
            Kind::Host(memory) => {
                let from = memory.at(offset, bytes)?;
                // SAFETY: `at` checked that the range is inside the mapping, and `to` is a distinct buffer of the same length.
                unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
                Ok(())
            }
        }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Kind::Device { device, address, .. } = &self.0
            && let Ok(_current) = device.make_current()
        {
            device.free(*address);
        }
    }
}
