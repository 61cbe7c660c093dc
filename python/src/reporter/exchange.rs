//! DLPack's table of C functions, which PyTorch has since 2.10: address, shape and device of a tensor in one call that
//! creates no Python object. <https://dmlc.github.io/dlpack/latest/c_api.html>

use std::ffi::{c_int, c_void};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// Version of the table declared here.
///
/// Other tables with the same major version only append fields.
const MAJOR: u32 = 1;
const CPU: i32 = 1;
const CUDA: i32 = 2;

/// The used part of `DLPackExchangeAPI`.
#[repr(C)]
struct Table {
    major: u32,
    minor: u32,
    previous: *const Table,
    other_functions: [*const c_void; 3],
    /// Fills a description of a tensor, valid as long as the tensor does not change. -1: it refuses, with an exception.
    describe: Option<unsafe extern "C" fn(*mut c_void, *mut Description) -> c_int>,
}

/// `DLTensor`.
#[repr(C)]
struct Description {
    data: *mut c_void,
    device_type: i32,
    device_index: i32,
    dimensions: i32,
    type_code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// A device with the same meaning in DLPack and PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Cpu,
    Cuda(i32),
}

/// Description of a tensor that is one strided array.
pub struct Array<'a> {
    pub device: Device,
    /// Address of the first element, wherever in its storage that is; 0: it has no elements.
    pub address: u64,
    pub shape: &'a [i64],
}

/// PyTorch's function that describes tensors.
#[derive(Clone, Copy)]
pub struct Exchange {
    describe: unsafe extern "C" fn(*mut c_void, *mut Description) -> c_int,
}

impl Exchange {
    /// Returns `None` if this PyTorch has no such table.
    pub fn of(tensor_class: &Bound<PyType>) -> PyResult<Option<Self>> {
        let Some(capsule) = tensor_class.getattr_opt("__dlpack_c_exchange_api__")? else { return Ok(None) };
        // SAFETY: the object is alive.
        let mut table: *const Table =
            unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dlpack_exchange_api".as_ptr()) }.cast();
        if table.is_null() {
            drop(PyErr::take(capsule.py())); // Something else has the name.
            return Ok(None);
        }
        // SAFETY: the capsule has a pointer to a table that lives as long as the process, and so do the previous tables. All
        // versions have the version and the pointer to the previous table at the same place; tables with this number have
        // the rest there too.
        unsafe {
            while !table.is_null() && (*table).major != MAJOR {
                table = (*table).previous;
            }
            Ok(table.as_ref().and_then(|table| table.describe).map(|describe| Self { describe }))
        }
    }

    /// Describes a tensor.
    ///
    /// Returns `None` if it is not one array, or is on another device. `tensor` is a `torch.Tensor`, or of a derived class
    /// that adds nothing.
    pub fn array<'a>(&self, tensor: &'a Bound<PyAny>) -> Option<Array<'a>> {
        let mut description = std::mem::MaybeUninit::<Description>::uninit();
        // SAFETY: the object is a tensor, as the function requires, and the description has enough room.
        let description = unsafe {
            if (self.describe)(tensor.as_ptr().cast(), description.as_mut_ptr()) != 0 {
                drop(PyErr::take(tensor.py()));
                return None;
            }
            description.assume_init()
        };
        let device = match description.device_type {
            CPU => Device::Cpu,
            CUDA => Device::Cuda(description.device_index),
            _ => return None,
        };
        let dimensions = usize::try_from(description.dimensions).ok()?;
        let shape = match dimensions {
            0 => &[][..],
            // SAFETY: the tensor has this number of dimensions, and keeps them while no code runs that could change it.
            _ => unsafe { std::slice::from_raw_parts(description.shape, dimensions) },
        };
        Some(Array { device, address: description.data as u64 + description.byte_offset, shape })
    }
}
