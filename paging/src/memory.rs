//! Device memory for programs without another allocator.

use std::sync::Arc;

use crate::arena::Arena;
use crate::cuda_driver::Device;
use crate::error::{Error, Result};

/// Memory on a CUDA device, or on the host if the machine has no device.
///
/// Freed on drop.
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
    /// If the device does not exist, or has too little memory.
    pub fn new(device: Option<i32>, bytes: u64) -> Result<Self> {
        let Some(ordinal) = device else { return Arena::new(bytes).map(|memory| Self(Kind::Host(memory))) };
        let device = Device::open(ordinal)?;
        let address = {
            let _current = device.make_current()?;
            device.allocate(bytes.max(1))?
        };
        Ok(Self(Kind::Device { device, address, bytes }))
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        match &self.0 {
            Kind::Device { address, .. } => *address,
            Kind::Host(memory) => memory.address(),
        }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        match &self.0 {
            Kind::Device { bytes, .. } => *bytes,
            Kind::Host(memory) => memory.bytes(),
        }
    }

    /// Reads from `offset` on.
    ///
    /// Writes to the range must have completed.
    ///
    /// # Errors
    ///
    /// If the range is not inside, or the device has failed.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        let bytes = to.len() as u64;
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes()) {
            return Err(Error::Invalid(format!("{bytes} bytes at {offset} are not inside {}", self.bytes())));
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
