//! Objects whose references Python's collector does not see: arrays of objects, and modules of TorchScript.

use std::ffi::c_int;
use std::ptr;

use interpose_python::api::{Api, Object};

use crate::{names, objects};

/// Fields of NumPy's arrays and of their element types, the same in all versions:
/// `PyArrayObject_fields` and `PyArray_Descr` in `numpy/ndarraytypes.h`.
const ARRAY_DATA: usize = 16;
const ARRAY_DIMENSIONS: usize = 24;
const ARRAY_SHAPE: usize = 32;
const ARRAY_STRIDES: usize = 40;
const ARRAY_TYPE: usize = 56;
const TYPE_KIND: usize = 24;
/// `NPY_OBJECTLTR` and `NPY_MAXDIMS`
const OBJECTS: u8 = b'O';
const MAX_DIMENSIONS: c_int = 64;
/// Elements of an array that are followed.
const MAX_ELEMENTS: usize = 1 << 22;

/// Calls `look` with each element of a NumPy array of objects.
///
/// # Safety
///
/// The GIL must be held, and `array` be a live array.
pub unsafe fn each_element(array: Object, look: &mut dyn FnMut(Object)) {
    // SAFETY: the fields are as above. A view of an array keeps it alive, so the elements are.
    unsafe {
        let (data, dimensions): (*const u8, c_int) =
            (objects::read(array, ARRAY_DATA), objects::read(array, ARRAY_DIMENSIONS));
        let element_type: Object = objects::read(array, ARRAY_TYPE);
        if data.is_null() || element_type.is_null() || objects::read::<u8>(element_type, TYPE_KIND) != OBJECTS {
            return;
        }
        let dimensions = dimensions.clamp(0, MAX_DIMENSIONS) as usize;
        let sizes: *const isize = objects::read(array, ARRAY_SHAPE);
        let strides: *const isize = objects::read(array, ARRAY_STRIDES);
        let mut places = vec![data];
        for dimension in 0..dimensions {
            let (size, stride) = (*sizes.add(dimension), *strides.add(dimension));
            if places.len().saturating_mul(size as usize) > MAX_ELEMENTS {
                return;
            }
            places = places.iter().flat_map(|start| (0..size).map(move |index| start.offset(index * stride))).collect();
        }
        for place in places {
            let element: Object = place.cast::<Object>().read_unaligned();
            if !element.is_null() {
                look(element);
            }
        }
    }
}

/// Calls `look` with the parameters and buffers of a TorchScript module, and their names.
///
/// # Safety
///
/// The GIL must be held, and `module` be a live `torch.ScriptModule`.
pub unsafe fn each_script_tensor(api: &Api, module: Object, look: &mut dyn FnMut(String, Object)) {
    // SAFETY: as the caller promises. The classes are PyTorch's, and their methods run no code of the program.
    unsafe {
        let native = objects::module(api, c"torch._C");
        for class in [c"ParameterDict", c"BufferDict"] {
            let items = objects::call(api, objects::call(api, native, class, module), c"items", ptr::null_mut());
            if items.is_null() || objects::flags(objects::class_of(items)) & objects::LIST_SUBCLASS == 0 {
                continue;
            }
            for index in 0..(api.PyList_Size)(items) {
                let pair = (api.PyList_GetItem)(items, index);
                if objects::flags(objects::class_of(pair)) & objects::TUPLE_SUBCLASS != 0
                    && (api.PyTuple_Size)(pair) == 2
                {
                    look(names::text(api, (api.PyTuple_GetItem)(pair, 0)), (api.PyTuple_GetItem)(pair, 1));
                }
            }
        }
    }
}
