//! References of tensors and nodes of autograd graphs in C++, by PyTorch's own getters.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use interpose_base::symbols;
use interpose_python::api::{Api, Object};

use crate::objects::{self, NoArguments, Property, own};
use crate::types::{TypeInfo, inherited};
use memlab_holders::EdgeKind;

/// PyTorch's getters.
pub struct Torch {
    pub tensor: Object,
    pub function_base: Object,
    data_ptr: NoArguments,
    is_cuda: Property,
    is_leaf: Property,
    retains_grad: Property,
    grad: Property,
    grad_fn: Property,
    base: Property,
    saved: SavedTensors,
}

impl Torch {
    /// Finds the getters in the loaded PyTorch; `None` if it is not loaded or lacks one.
    ///
    /// # Safety
    ///
    /// The GIL must be held.
    pub unsafe fn find(api: &Api) -> Option<Self> {
        // SAFETY: the caller holds the GIL; the modules and classes live as long as the process.
        unsafe {
            let native = objects::module(api, c"torch._C");
            let mut tensor = objects::attribute(api, native, c"TensorBase");
            if tensor.is_null() {
                tensor = objects::attribute(api, native, c"_TensorBase"); // Before PyTorch 2.2.
            }
            if tensor.is_null() {
                return None;
            }
            Some(Self {
                tensor,
                function_base: objects::attribute(api, native, c"_FunctionBase"),
                data_ptr: objects::method(tensor, c"data_ptr")?,
                is_cuda: inherited(tensor, c"is_cuda")?,
                is_leaf: inherited(tensor, c"is_leaf")?,
                retains_grad: inherited(tensor, c"retains_grad")?,
                grad: inherited(tensor, c"grad")?,
                grad_fn: inherited(tensor, c"grad_fn")?,
                base: inherited(tensor, c"_base")?,
                saved: SavedTensors::find(api, native)?,
            })
        }
    }

    /// Stops PyTorch from calling the `__torch_function__` of classes in this thread. Returns the guard, or null.
    ///
    /// # Safety
    ///
    /// The GIL must be held.
    pub unsafe fn disable_overrides(api: &Api) -> Object {
        // SAFETY: the caller holds the GIL.
        unsafe {
            let native = objects::module(api, c"torch._C");
            for name in [c"DisableTorchFunctionSubclass", c"DisableTorchFunction"] {
                let guard = objects::call(api, native, name, ptr::null_mut());
                if !guard.is_null() {
                    objects::call(api, guard, c"__enter__", ptr::null_mut());
                    return guard;
                }
            }
            ptr::null_mut()
        }
    }

    /// Undoes [`disable_overrides`](Self::disable_overrides).
    ///
    /// # Safety
    ///
    /// As there; `guard` must be its result.
    pub unsafe fn enable_overrides(api: &Api, guard: Object) {
        if guard.is_null() {
            return;
        }
        // SAFETY: as the caller promises. An empty format makes None.
        unsafe {
            let exit = objects::attribute(api, guard, c"__exit__");
            let none = objects::owned(api, (api.Py_BuildValue)(c"".as_ptr()));
            if !exit.is_null() && !none.is_null() {
                let arguments_end = ptr::null_mut::<c_void>();
                objects::owned(api, (api.PyObject_CallFunctionObjArgs)(exit, none, none, none, arguments_end));
            }
        }
    }

    /// Address of a tensor's memory on a GPU.
    ///
    /// # Safety
    ///
    /// The GIL must be held, and `tensor` be a tensor.
    pub unsafe fn memory(&self, api: &Api, tensor: Object) -> Option<u64> {
        // SAFETY: as the caller promises.
        unsafe {
            if !is_true(api, self.is_cuda.of(tensor)) {
                return None;
            }
            let address = own((self.data_ptr)(tensor, ptr::null_mut()));
            if address.is_null() {
                (api.PyErr_Clear)(); // It has no memory, or it is in parts (sparse).
                return None;
            }
            Some((api.PyLong_AsUnsignedLongLong)(address)).filter(|address| *address != 0)
        }
    }

    /// Calls `look` with what a tensor refers to in C++.
    ///
    /// # Safety
    ///
    /// As for [`memory`](Self::memory).
    pub unsafe fn each_part(&self, api: &Api, tensor: Object, look: &mut dyn FnMut(Object, EdgeKind)) {
        // SAFETY: as the caller promises.
        unsafe {
            let mut found = |object: Object, kind| {
                if object.is_null() {
                    (api.PyErr_Clear)();
                } else {
                    look(object, kind);
                }
            };
            found(self.grad_fn.of(tensor), EdgeKind::Graph);
            found(self.base.of(tensor), EdgeKind::Base);
            // PyTorch warns if another tensor's gradient is read.
            if is_true(api, self.is_leaf.of(tensor)) || is_true(api, self.retains_grad.of(tensor)) {
                found(self.grad.of(tensor), EdgeKind::Gradient);
            }
        }
    }

    /// Calls `look` with the nodes after a node of an autograd graph, and with the tensors that it saved.
    ///
    /// # Safety
    ///
    /// The GIL must be held; `info` must be that of the node's type.
    pub unsafe fn each_saved(&self, api: &Api, node: Object, info: &TypeInfo, look: &mut dyn FnMut(Object, EdgeKind)) {
        // SAFETY: as the caller promises.
        unsafe {
            if let Some(next) = info.next {
                each_item(api, next.of(node), &mut |pair| {
                    let following = (api.PyTuple_GetItem)(pair, 0);
                    if following.is_null() { (api.PyErr_Clear)() } else { look(following, EdgeKind::Graph) }
                });
            }
            if let Some(variable) = info.variable {
                let leaf = variable.of(node);
                if leaf.is_null() { (api.PyErr_Clear)() } else { look(leaf, EdgeKind::Saved) }
            }
            for property in &info.saved {
                let saved = property.of(node);
                each_item(api, saved, &mut |entry| {
                    let data = self.saved.data(api, entry);
                    if !data.is_null() {
                        look(data, EdgeKind::Saved);
                    }
                });
            }
        }
    }
}

/// Way to the tensor in a `torch._C._autograd.SavedTensor` that runs none of the program's hooks.
enum SavedTensors {
    /// The attribute `data`.
    Attribute,
    /// `THPVariable_Wrap` of the first field in C++, and the class of the objects: before PyTorch 2.7.
    Field { class: Object, wrap: Wrap },
}

/// `PyObject *THPVariable_Wrap(at::TensorBase)` or `(const at::TensorBase &)`. Both receive the address of a tensor; the first
/// may take it.
type Wrap = unsafe extern "C" fn(*mut *mut TensorCounts) -> Object;

/// The beginning of `c10::TensorImpl`.
#[repr(C)]
struct TensorCounts {
    methods: *const c_void,
    references: AtomicU32,
}

/// Address of the C++ object in an instance of a class that pybind11 defines.
const PYBIND_VALUE: usize = 16;

impl SavedTensors {
    unsafe fn find(api: &Api, native: Object) -> Option<Self> {
        // SAFETY: the caller holds the GIL.
        unsafe {
            let class = objects::attribute(api, objects::attribute(api, native, c"_autograd"), c"SavedTensor");
            if !objects::attribute(api, class, c"data").is_null() {
                return Some(Self::Attribute);
            }
            let wrap = [c"_Z16THPVariable_WrapN2at10TensorBaseE", c"_Z16THPVariable_WrapRKN2at10TensorBaseE"]
                .into_iter()
                .map(|symbol| symbols::in_loaded_library(c"libtorch_python.so", symbol))
                .find(|function| !function.is_null())?;
            (!class.is_null()).then(|| Self::Field { class, wrap: std::mem::transmute::<*mut c_void, Wrap>(wrap) })
        }
    }

    /// The tensor: a reference that the search owns. Null if the entry is none, or a hook packed its tensor.
    unsafe fn data(&self, api: &Api, entry: Object) -> Object {
        // SAFETY: the caller holds the GIL. The field holds one reference, and `taken` another during the call.
        unsafe {
            match self {
                Self::Attribute => objects::attribute(api, entry, c"data"),
                Self::Field { class, wrap } if objects::class_of(entry) == *class => {
                    let saved: *const *mut TensorCounts = objects::read(entry, PYBIND_VALUE);
                    let mut taken = *saved;
                    (*taken).references.fetch_add(1, Ordering::Relaxed);
                    let data = objects::owned(api, wrap(&raw mut taken));
                    if taken == *saved {
                        (*taken).references.fetch_sub(1, Ordering::Relaxed);
                    }
                    data
                }
                Self::Field { .. } => ptr::null_mut(),
            }
        }
    }
}

/// Calls `look` with the items of a tuple, or with an object that is no tuple; clears the error if it is null.
///
/// # Safety
///
/// The GIL must be held.
unsafe fn each_item(api: &Api, object: Object, look: &mut dyn FnMut(Object)) {
    // SAFETY: the caller holds the GIL.
    unsafe {
        if object.is_null() {
            (api.PyErr_Clear)();
            return;
        }
        if objects::flags(objects::class_of(object)) & objects::TUPLE_SUBCLASS == 0 {
            look(object);
            return;
        }
        for index in 0..(api.PyObject_Size)(object) {
            look((api.PyTuple_GetItem)(object, index));
        }
    }
}

/// Reads a bool that a getter returned.
///
/// # Safety
///
/// The GIL must be held.
unsafe fn is_true(api: &Api, value: Object) -> bool {
    // SAFETY: the caller holds the GIL; a bool is an int.
    unsafe {
        if value.is_null() {
            (api.PyErr_Clear)();
            return false;
        }
        (api.PyLong_AsUnsignedLongLong)(value) == 1
    }
}
