//! Arguments of the driver's functions.
//!
//! Structures have plain integers where `cuda.h` has enumerations: a newer driver may use values that are unknown here.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;

use cudarc::driver::sys;

/// An argument that memlab only passes on: a stream, pool, graph, node, function, descriptor.
pub type Handle = *mut c_void;

/// An output argument of a call: null, or a `T` that the call writes to.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T: Copy> Out<T> {
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The value, after a call has written it; `None` if the program passed null.
    pub fn get(self) -> Option<T> {
        // SAFETY: not null, so it is the program's variable for the result. C promises no alignment.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// Writes the result, unless the program passed null.
    pub fn set(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so it is the program's variable for a `T`.
            unsafe { self.0.write_unaligned(value) };
        }
    }
}

impl Out<u8> {
    /// Reinterprets the output as another type, which the call's other arguments decide.
    ///
    /// # Safety
    ///
    /// The output has room for a `T`.
    pub unsafe fn of_type<T>(self) -> Out<T> {
        Out(self.0.cast())
    }

    /// Returns the field at this offset of a structure; null if the program passed null.
    ///
    /// # Safety
    ///
    /// The structure has a `T` at this offset.
    pub unsafe fn at<T>(self, offset: usize) -> Out<T> {
        if self.0.is_null() {
            return Out(std::ptr::null_mut());
        }
        // SAFETY: not null, so the program has made room for the structure, which has a field there.
        Out(unsafe { self.0.add(offset) }.cast())
    }
}

impl<T: Copy + Default> Out<T> {
    /// The value, after a call has written it; zero if the program passed null.
    pub fn value(self) -> T {
        self.get().unwrap_or_default()
    }
}

/// An input argument of a call: a structure or array, null or valid during the call.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T: Copy> In<T> {
    /// `None` if the program passed null.
    pub fn get(self) -> Option<T> {
        // SAFETY: not null, so it is the structure that the program passed for the call to read.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// Iterates over the first `count` elements of an array.
    ///
    /// # Safety
    ///
    /// The array has `count` elements: a call that reads them all has succeeded.
    pub unsafe fn elements(self, count: usize) -> impl Iterator<Item = T> {
        // SAFETY: the caller promises that they exist.
        (0..count).map(move |index| unsafe { self.0.add(index).read_unaligned() })
    }
}

/// `CUmemLocation`, in plain integers: a newer driver may use values that enumerations lack.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    pub kind: c_int,
    pub id: c_int,
}

impl Location {
    pub const DEVICE: c_int = 1;
    pub const HOST: c_int = 2;
    pub const HOST_NUMA: c_int = 3;

    pub fn device(device: i32) -> Self {
        Self { kind: Self::DEVICE, id: device }
    }

    /// The device id, if the location is a device.
    pub fn as_device(self) -> Option<i32> {
        (self.kind == Self::DEVICE).then_some(self.id)
    }
}

/// `CUmemAllocationProp`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    pub kind: c_int,
    pub handle_types: c_int,
    pub location: Location,
    pub win32: usize,
    /// Compression, GPUDirect RDMA, usage, and four reserved bytes.
    pub flags: [u8; 8],
}

impl Properties {
    pub const PINNED: c_int = 1;
}

/// `CUmemAccessDesc`
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    pub location: Location,
    pub flags: c_int,
}

impl Access {
    pub const READ_WRITE: c_int = 3;

    pub fn full(device: i32) -> Self {
        Self { location: Location::device(device), flags: Self::READ_WRITE }
    }
}

const _: () = assert!(size_of::<Properties>() == 32 && size_of::<Access>() == 12);

/// `CUDA_ARRAY_DESCRIPTOR`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ArrayShape {
    pub width: usize,
    pub height: usize,
    /// `CUarray_format`
    pub format: c_uint,
    pub channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Array3dShape {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    /// `CUarray_format`
    pub format: c_uint,
    pub channels: c_uint,
    pub flags: c_uint,
}

/// The beginning of `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ExternalMemory {
    pub kind: c_uint,
    pub handle: [u64; 2],
    pub bytes: u64,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AllocationNode {
    pub pool: [u64; offset_of!(sys::CUDA_MEM_ALLOC_NODE_PARAMS, accessDescs) / 8],
    pub access: usize,
    pub access_count: usize,
    pub bytes: usize,
    pub address: u64,
}

const _: () = {
    assert!(offset_of!(ExternalMemory, bytes) == offset_of!(sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size));
    assert!(size_of::<AllocationNode>() == size_of::<sys::CUDA_MEM_ALLOC_NODE_PARAMS>());
    assert!(offset_of!(AllocationNode, address) == offset_of!(sys::CUDA_MEM_ALLOC_NODE_PARAMS, dptr));
    assert!(size_of::<ArrayShape>() == size_of::<sys::CUDA_ARRAY_DESCRIPTOR>());
    assert!(size_of::<Array3dShape>() == size_of::<sys::CUDA_ARRAY3D_DESCRIPTOR>());
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_has_no_value_and_no_fields() {
        let nowhere = Out::<u64>(std::ptr::null_mut());
        nowhere.set(7);
        assert_eq!((nowhere.is_null(), nowhere.get(), nowhere.value()), (true, None, 0));
        assert!(In::<ArrayShape>(std::ptr::null()).get().is_none());
        // SAFETY: null has no field.
        assert!(unsafe { Out::<u8>(std::ptr::null_mut()).at::<usize>(288) }.is_null());
    }

    #[test]
    fn unaligned_outputs_are_written() {
        // GIVEN a structure at an odd address
        let mut bytes = [0u8; 17];
        let structure = Out::<u8>(bytes[1..].as_mut_ptr());
        // WHEN a field of it is set
        // SAFETY: the structure has 16 bytes.
        let field = unsafe { structure.at::<u64>(8) };
        field.set(u64::MAX);
        // THEN it has that value, and no other byte changes
        assert_eq!(field.get(), Some(u64::MAX));
        assert_eq!((bytes[8], bytes[9], bytes[16]), (0, 255, 255));
    }

    #[test]
    fn arrays_are_read_in_order() {
        let numbers = [3, 1, 2];
        // SAFETY: the array has three elements.
        assert_eq!(unsafe { In::<c_int>(numbers.as_ptr()).elements(3) }.collect::<Vec<_>>(), numbers);
    }
}
