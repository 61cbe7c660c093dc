//! Fields of CPython's objects that the public headers define since 3.9 and that no version has moved since.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use interpose_python::api::{Api, Object};
use interpose_python::layout::{OBJECT_TYPE, TYPE_FLAGS, TYPE_NAME};

/// `tp_methods`, `tp_members`, `tp_getset`, `tp_dict`, `tp_traverse` and `tp_is_gc` of a type object.
const TYPE_TRAVERSE: usize = 184;
const TYPE_METHODS: usize = 232;
const TYPE_MEMBERS: usize = 240;
const TYPE_GETSET: usize = 248;
const TYPE_BASE: usize = 256;
const TYPE_DICT: usize = 264;
const TYPE_IS_GC: usize = 328;

/// `Py_TPFLAGS_HAVE_GC`, `Py_TPFLAGS_HEAPTYPE` and the flags of the subclasses of built-in types.
pub const HAVE_GC: u64 = 1 << 14;
pub const HEAP_TYPE: u64 = 1 << 9;
pub const LIST_SUBCLASS: u64 = 1 << 25;
pub const TUPLE_SUBCLASS: u64 = 1 << 26;
pub const DICT_SUBCLASS: u64 = 1 << 29;
pub const EXCEPTION_SUBCLASS: u64 = 1 << 30;
pub const TYPE_SUBCLASS: u64 = 1 << 31;

/// `visitproc`
pub type Visit = unsafe extern "C" fn(Object, *mut c_void) -> c_int;
/// `traverseproc`
pub type Traverse = unsafe extern "C" fn(Object, Visit, *mut c_void) -> c_int;
/// `inquiry`
pub type Inquiry = unsafe extern "C" fn(Object) -> c_int;
/// `getter`
pub type Getter = unsafe extern "C" fn(Object, *mut c_void) -> Object;
/// `PyCFunction` of a method without arguments.
pub type NoArguments = unsafe extern "C" fn(Object, Object) -> Object;

thread_local! {
    /// References that the search in progress owns.
    static OWNED: RefCell<Vec<Object>> = const { RefCell::new(Vec::new()) };
}

/// Notes a new reference, or null: an object must keep its address until the search ends.
pub fn own(object: Object) -> Object {
    if !object.is_null() {
        OWNED.with(|owned| owned.borrow_mut().push(object));
    }
    object
}

/// Drops all references that the search owns, the latest first.
///
/// # Safety
///
/// The GIL must be held, and nothing found by the search be used afterwards.
pub unsafe fn release_owned(api: &Api) {
    let owned = OWNED.with(RefCell::take);
    for object in owned.into_iter().rev() {
        // SAFETY: each is a reference of ours.
        unsafe { (api.Py_DecRef)(object) };
    }
}

/// # Safety
///
/// `base + offset` must be readable as a `T`.
#[inline]
pub unsafe fn read<T: Copy>(base: Object, offset: usize) -> T {
    // SAFETY: the caller promises that a `T` can be read there.
    unsafe { base.cast::<u8>().add(offset).cast::<T>().read_unaligned() }
}

/// # Safety
///
/// `object` must be a live object.
#[inline]
pub unsafe fn class_of(object: Object) -> Object {
    // SAFETY: every object has its type there.
    unsafe { read(object, OBJECT_TYPE) }
}

/// The reference count, without the flags that 3.12 and later keep in its upper half.
///
/// # Safety
///
/// `object` must be a live object.
pub unsafe fn references(object: Object) -> u32 {
    // SAFETY: every object begins with its count.
    unsafe { read(object, 0) }
}

/// # Safety
///
/// `class` must be a live type object; so for the functions below.
pub unsafe fn flags(class: Object) -> u64 {
    // SAFETY: a type has its flags there.
    unsafe { read(class, TYPE_FLAGS) }
}

/// The name, with its module in types written in C.
///
/// # Safety
///
/// As for [`flags`].
pub unsafe fn full_name(class: Object) -> String {
    // SAFETY: a type has its name there; it lives as long as the type.
    unsafe {
        let name: *const c_char = read(class, TYPE_NAME);
        if name.is_null() { String::new() } else { CStr::from_ptr(name).to_string_lossy().into_owned() }
    }
}

/// # Safety
///
/// As for [`flags`].
pub unsafe fn base(class: Object) -> Object {
    // SAFETY: a type has its base there; null for `object`.
    unsafe { read(class, TYPE_BASE) }
}

/// The dictionary of a class that a program defined; null for some built-in types.
///
/// # Safety
///
/// As for [`flags`].
pub unsafe fn class_dictionary(class: Object) -> Object {
    // SAFETY: a type has its dictionary there, or null.
    unsafe { read(class, TYPE_DICT) }
}

/// # Safety
///
/// As for [`flags`].
pub unsafe fn traverse(class: Object) -> Option<Traverse> {
    // SAFETY: a type has this function there, or null.
    unsafe { read(class, TYPE_TRAVERSE) }
}

/// # Safety
///
/// As for [`flags`].
pub unsafe fn is_gc(class: Object) -> Option<Inquiry> {
    // SAFETY: a type has this function there, or null.
    unsafe { read(class, TYPE_IS_GC) }
}

/// `PyGetSetDef`
#[derive(Clone, Copy)]
#[repr(C)]
struct GetSet {
    name: *const c_char,
    get: Option<Getter>,
    set: *const c_void,
    doc: *const c_char,
    closure: *mut c_void,
}

/// A property that C defines, called without a lookup that the program could change.
#[derive(Clone, Copy)]
pub struct Property {
    get: Getter,
    closure: *mut c_void,
}

impl Property {
    /// Reads it of an object: a reference that the search owns, or null with an exception set.
    ///
    /// # Safety
    ///
    /// The GIL must be held; the object must be of the class that has the property.
    pub unsafe fn of(self, object: Object) -> Object {
        // SAFETY: as the caller promises.
        own(unsafe { (self.get)(object, self.closure) })
    }
}

/// The properties that a type itself defines in C, whose name `is_wanted` accepts.
///
/// # Safety
///
/// As for [`flags`].
pub unsafe fn properties(class: Object, is_wanted: impl Fn(&CStr) -> bool) -> Vec<Property> {
    let mut found = Vec::new();
    // SAFETY: the array ends with an entry without a name.
    unsafe {
        let mut entry: *const GetSet = read(class, TYPE_GETSET);
        while !entry.is_null() && !(*entry).name.is_null() {
            if let Some(get) = (*entry).get
                && is_wanted(CStr::from_ptr((*entry).name))
            {
                found.push(Property { get, closure: (*entry).closure });
            }
            entry = entry.add(1);
        }
    }
    found
}

/// `PyMethodDef`
#[derive(Clone, Copy)]
#[repr(C)]
struct MethodEntry {
    name: *const c_char,
    function: Option<NoArguments>,
    flags: c_int,
    doc: *const c_char,
}

/// The method without arguments of this name that a type itself defines in C.
///
/// # Safety
///
/// As for [`flags`].
pub unsafe fn method(class: Object, name: &CStr) -> Option<NoArguments> {
    const METH_NOARGS: c_int = 4;
    // SAFETY: the array ends with an entry without a name.
    unsafe {
        let mut entry: *const MethodEntry = read(class, TYPE_METHODS);
        while !entry.is_null() && !(*entry).name.is_null() {
            if CStr::from_ptr((*entry).name) == name {
                return (*entry).function.filter(|_| (*entry).flags & METH_NOARGS != 0);
            }
            entry = entry.add(1);
        }
    }
    None
}

/// `PyMemberDef`
#[derive(Clone, Copy)]
#[repr(C)]
struct Member {
    name: *const c_char,
    kind: c_int,
    offset: isize,
    flags: c_int,
    doc: *const c_char,
}

/// `Py_T_OBJECT_EX`, the kind of the members that `__slots__` makes.
const SLOT: c_int = 16;

/// A type and its bases, in their order.
///
/// # Safety
///
/// As for [`flags`]; the bases live as long as the type.
pub unsafe fn with_bases(class: Object) -> impl Iterator<Item = Object> {
    let is_type = |class: &Object| !class.is_null();
    // SAFETY: the caller passes a live type.
    std::iter::successors(Some(class).filter(is_type), move |class| Some(unsafe { base(*class) }).filter(is_type))
}

/// Calls `look` with the names and values of an object's `__slots__`, those of base classes, too.
///
/// # Safety
///
/// `object` must be a live object, and the GIL be held.
pub unsafe fn each_slot(object: Object, look: &mut dyn FnMut(String, Object)) {
    // SAFETY: the table of members ends with a null name. A member of this kind is null or an object.
    unsafe {
        for class in with_bases(class_of(object)) {
            let mut member: *const Member = read(class, TYPE_MEMBERS);
            while !member.is_null() && !(*member).name.is_null() {
                if (*member).kind == SLOT && (*member).offset > 0 {
                    let value: Object = read(object, (*member).offset as usize);
                    if !value.is_null() {
                        look(CStr::from_ptr((*member).name).to_string_lossy().into_owned(), value);
                    }
                }
                member = member.add(1);
            }
        }
    }
}

/// Calls `look` with each object that this one refers to, as Python's garbage collector sees it.
///
/// # Safety
///
/// The GIL must be held, `object` alive and `traverse` the function of its type.
pub unsafe fn each_referent(object: Object, traverse: Traverse, look: &mut dyn FnMut(Object)) {
    unsafe extern "C" fn visit(referent: Object, look: *mut c_void) -> c_int {
        // SAFETY: `each_referent` passes the address of its closure.
        let look = unsafe { &mut *look.cast::<&mut dyn FnMut(Object)>() };
        look(referent);
        0
    }
    let mut look = look;
    // SAFETY: the closure outlives the call, which calls `visit` on this thread only.
    unsafe { traverse(object, visit, ptr::from_mut(&mut look).cast()) };
}

/// A module that is imported; null if it is not. The reference is the interpreter's.
///
/// # Safety
///
/// The GIL must be held, and the object be alive or null.
pub unsafe fn module(api: &Api, name: &CStr) -> Object {
    // SAFETY: the caller holds the GIL.
    unsafe { (api.PyDict_GetItemString)((api.PyImport_GetModuleDict)(), name.as_ptr()) }
}

/// An attribute of an object whose class C defines: a reference that the search owns. Null if it has none, or the object is
/// null.
///
/// # Safety
///
/// The GIL must be held, and the object be alive or null.
pub unsafe fn attribute(api: &Api, object: Object, name: &CStr) -> Object {
    if object.is_null() {
        return object;
    }
    // SAFETY: as the caller promises.
    unsafe { owned(api, (api.PyObject_GetAttrString)(object, name.as_ptr())) }
}

/// Calls an attribute with an argument, or with none if that is null. Returns a reference that the search owns; null if the
/// object is null, lacks the attribute or raises.
///
/// # Safety
///
/// The GIL must be held, and the object be alive or null.
pub unsafe fn call(api: &Api, object: Object, name: &CStr, argument: Object) -> Object {
    // SAFETY: as the caller promises; the arguments end with a null.
    unsafe {
        let function = attribute(api, object, name);
        if function.is_null() {
            return function;
        }
        owned(api, (api.PyObject_CallFunctionObjArgs)(function, argument, ptr::null_mut::<c_void>()))
    }
}

/// Notes a new reference, or clears the error of a call that returned null.
///
/// # Safety
///
/// The GIL must be held, and the object be alive or null.
pub unsafe fn owned(api: &Api, object: Object) -> Object {
    if object.is_null() {
        // SAFETY: as the caller promises.
        unsafe { (api.PyErr_Clear)() };
    }
    own(object)
}
