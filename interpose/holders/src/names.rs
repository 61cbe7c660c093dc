//! Names of objects and of their references. Only names and types are read, never values.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::OnceLock;

use hashbrown::HashMap;
use interpose_base::symbols;
use interpose_python::api::{Api, Object};
use memlab_holders::{EdgeKind, Node, NodeKind};

use crate::objects;
use crate::types::{TypeKind, inherited};

/// `Py_TPFLAGS_LONG_SUBCLASS` and `Py_TPFLAGS_UNICODE_SUBCLASS`
const INTEGER: u64 = 1 << 24;
const STRING: u64 = 1 << 28;

/// Keys and names longer than this are left out.
const MAX_NAME_BYTES: usize = 64;
/// Elements of a list up to this length are named by their position.
const MAX_POSITIONS: isize = 16;

/// Kinds and labels of an object's references, by the address of the other object.
pub type References = HashMap<usize, (EdgeKind, String)>;

/// The references of an object by which they have names.
///
/// # Safety
///
/// The GIL must be held and the object alive; so for all functions here. The process must be a child that ends: a dictionary
/// may be made for the object's attributes.
pub unsafe fn references(api: &Api, object: Object, kind: TypeKind) -> References {
    let mut found = References::new();
    // SAFETY: as the caller promises.
    unsafe {
        match kind {
            TypeKind::Dictionary => each_entry(api, object, &mut |key, value| {
                found.insert(value as usize, (EdgeKind::Item, key));
            }),
            TypeKind::List | TypeKind::Tuple | TypeKind::Set => items(api, object, &mut found),
            TypeKind::Class => each_entry(api, objects::class_dictionary(object), &mut |key, value| {
                found.insert(value as usize, (EdgeKind::Attribute, key));
            }),
            TypeKind::Exception => {
                for name in [c"__traceback__", c"__context__", c"__cause__"] {
                    let class = objects::class_of(object);
                    let value = inherited(class, name).map_or(ptr::null_mut(), |property| property.of(object));
                    if value.is_null() {
                        (api.PyErr_Clear)();
                    } else {
                        found.insert(value as usize, (EdgeKind::Attribute, name.to_string_lossy().into_owned()));
                    }
                }
            }
            TypeKind::Function => closure(api, object, &mut found),
            TypeKind::Object => objects::each_slot(object, &mut |name, value| {
                found.insert(value as usize, (EdgeKind::Attribute, name));
            }),
            _ => {}
        }
        each_entry(api, attributes(object, kind), &mut |key, value| {
            found.insert(value as usize, (EdgeKind::Attribute, key));
        });
    }
    found
}

/// The dictionary with an object's attributes; null if it has none.
pub unsafe fn attributes(object: Object, kind: TypeKind) -> Object {
    if matches!(kind, TypeKind::Class | TypeKind::Module) {
        return ptr::null_mut();
    }
    type GetDictPtr = unsafe extern "C" fn(Object) -> *mut Object;
    static FUNCTION: OnceLock<Option<GetDictPtr>> = OnceLock::new();
    let function = *FUNCTION.get_or_init(|| {
        let found = symbols::in_process(c"_PyObject_GetDictPtr");
        // SAFETY: `PyObject **_PyObject_GetDictPtr(PyObject *)`, in every version.
        (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, GetDictPtr>(found) })
    });
    let Some(function) = function else { return ptr::null_mut() };
    // SAFETY: as for `references`. The result is null if the class has no dictionary.
    unsafe {
        let place = function(object);
        if place.is_null() { ptr::null_mut() } else { *place }
    }
}

/// The tuple with a function's closure; null if it has none.
pub unsafe fn closure_cells(api: &Api, function: Object) -> Object {
    // SAFETY: as for `references`.
    unsafe {
        let cells = objects::attribute(api, function, c"__closure__");
        if cells.is_null() || objects::flags(objects::class_of(cells)) & objects::TUPLE_SUBCLASS == 0 {
            return ptr::null_mut();
        }
        cells
    }
}

unsafe fn closure(api: &Api, function: Object, found: &mut References) {
    // SAFETY: as for `references`.
    unsafe {
        let (cells, code) = (closure_cells(api, function), objects::attribute(api, function, c"__code__"));
        if cells.is_null() || code.is_null() {
            return;
        }
        for (index, name) in (0..).zip(strings(api, objects::attribute(api, code, c"co_freevars"))) {
            if index < (api.PyObject_Size)(cells) {
                found.insert((api.PyTuple_GetItem)(cells, index) as usize, (EdgeKind::Closure, name));
            }
        }
    }
}

unsafe fn items(api: &Api, sequence: Object, found: &mut References) {
    // SAFETY: as for `references`.
    unsafe {
        let flags = objects::flags(objects::class_of(sequence));
        let get = if flags & objects::LIST_SUBCLASS != 0 {
            api.PyList_GetItem
        } else if flags & objects::TUPLE_SUBCLASS != 0 {
            api.PyTuple_GetItem
        } else {
            return;
        };
        let count = length(api, sequence);
        for index in 0..count {
            let label = if count <= MAX_POSITIONS { index.to_string() } else { String::new() };
            found.insert(get(sequence, index) as usize, (EdgeKind::Item, label));
        }
    }
}

/// Number of elements of a built-in container, or of a subclass of one; 0 of others.
pub unsafe fn length(api: &Api, container: Object) -> isize {
    // SAFETY: as for `references`. The functions of lists, tuples and dictionaries run no code of the program.
    unsafe {
        let class = objects::class_of(container);
        let flags = objects::flags(class);
        let size = if flags & objects::LIST_SUBCLASS != 0 {
            (api.PyList_Size)(container)
        } else if flags & objects::TUPLE_SUBCLASS != 0 {
            (api.PyTuple_Size)(container)
        } else if flags & objects::DICT_SUBCLASS != 0 {
            (api.PyDict_Size)(container)
        } else if flags & objects::HEAP_TYPE == 0 {
            (api.PyObject_Size)(container)
        } else {
            0
        };
        if size < 0 {
            (api.PyErr_Clear)();
        }
        size.max(0)
    }
}

/// Calls `look` with the name of each key of a dictionary, and its value. A key that may not be written is empty.
pub unsafe fn each_entry(api: &Api, dictionary: Object, look: &mut dyn FnMut(String, Object)) {
    if dictionary.is_null() {
        return;
    }
    let (mut position, mut key, mut value) = (0_isize, ptr::null_mut(), ptr::null_mut());
    // SAFETY: as for `references`; the dictionary does not change, since no code runs.
    unsafe {
        if objects::flags(objects::class_of(dictionary)) & objects::DICT_SUBCLASS == 0 {
            return;
        }
        while (api.PyDict_Next)(dictionary, &raw mut position, &raw mut key, &raw mut value) != 0 {
            look(key_name(api, key), value);
        }
    }
}

/// The text of a key that is an identifier or an integer; else empty: it may be anything, also a secret.
unsafe fn key_name(api: &Api, key: Object) -> String {
    // SAFETY: as for `references`.
    unsafe {
        let flags = objects::flags(objects::class_of(key));
        if flags & STRING != 0 {
            let name = text(api, key);
            let is_identifier = |part: &str| {
                !part.is_empty() && part.chars().all(|character| character.is_alphanumeric() || character == '_')
            };
            return if name.len() <= MAX_NAME_BYTES && name.split('.').all(is_identifier) {
                name
            } else {
                String::new()
            };
        }
        if flags & INTEGER != 0 && flags & objects::HEAP_TYPE == 0 {
            let number = (api.PyLong_AsLongLong)(key);
            if (api.PyErr_Occurred)().is_null() {
                return number.to_string();
            }
            (api.PyErr_Clear)();
        }
        String::new()
    }
}

/// The text of a string object; empty for others.
pub unsafe fn text(api: &Api, string: Object) -> String {
    // SAFETY: as for `references`.
    unsafe {
        if string.is_null() || objects::flags(objects::class_of(string)) & STRING == 0 {
            return String::new();
        }
        let mut length = 0_isize;
        let data: *const c_char = (api.PyUnicode_AsUTF8AndSize)(string, &raw mut length);
        if data.is_null() {
            (api.PyErr_Clear)();
            return String::new();
        }
        String::from_utf8_lossy(std::slice::from_raw_parts(data.cast(), length as usize)).into_owned()
    }
}

/// The strings of a tuple.
pub unsafe fn strings(api: &Api, tuple: Object) -> Vec<String> {
    // SAFETY: as for `references`.
    unsafe {
        if tuple.is_null() || objects::flags(objects::class_of(tuple)) & objects::TUPLE_SUBCLASS == 0 {
            return Vec::new();
        }
        (0..(api.PyTuple_Size)(tuple)).map(|index| text(api, (api.PyTuple_GetItem)(tuple, index))).collect()
    }
}

unsafe fn number(api: &Api, object: Object) -> u32 {
    // SAFETY: as for `references`.
    unsafe {
        if object.is_null() || objects::flags(objects::class_of(object)) & INTEGER == 0 {
            return 0;
        }
        let number = (api.PyLong_AsLongLong)(object);
        (api.PyErr_Clear)();
        u32::try_from(number).unwrap_or(0)
    }
}

/// Describes an object. It has no addresses yet.
pub unsafe fn described(api: &Api, object: Object, kind: TypeKind) -> Node {
    // SAFETY: as for `references`.
    unsafe {
        let class = objects::full_name(objects::class_of(object));
        let class = class.rsplit('.').next().unwrap_or_default().to_owned();
        let named = |kind| Node { kind, name: class.clone(), ..Node::default() };
        let counted = |kind| Node { items: u32::try_from(length(api, object)).unwrap_or(u32::MAX), ..named(kind) };
        match kind {
            TypeKind::Dictionary => counted(NodeKind::Mapping),
            TypeKind::List | TypeKind::Tuple | TypeKind::Set | TypeKind::Array => counted(NodeKind::Sequence),
            TypeKind::Exception => named(NodeKind::Exception),
            TypeKind::Traceback => named(NodeKind::Traceback),
            TypeKind::Context => named(NodeKind::Context),
            TypeKind::Autograd => named(NodeKind::Autograd),
            TypeKind::Tensor => named(NodeKind::Tensor),
            TypeKind::Function => code_of(api, NodeKind::Function, object, c"__code__"),
            TypeKind::Generator => {
                let of = |attribute| code_of(api, NodeKind::Generator, object, attribute);
                [c"gi_code", c"cr_code", c"ag_code"]
                    .map(of)
                    .into_iter()
                    .max_by_key(|node| node.line)
                    .unwrap_or_default()
            }
            TypeKind::Frame => code_of(api, NodeKind::Traceback, object, c"f_code"),
            TypeKind::Cache => {
                let wrapped = objects::attribute(api, object, c"__wrapped__");
                if wrapped.is_null() {
                    named(NodeKind::Cache)
                } else {
                    code_of(api, NodeKind::Cache, wrapped, c"__code__")
                }
            }
            TypeKind::Class => class_node(api, object),
            TypeKind::Cell | TypeKind::Module | TypeKind::Script | TypeKind::Object => named(NodeKind::Object),
        }
    }
}

unsafe fn code_of(api: &Api, kind: NodeKind, object: Object, attribute_name: &CStr) -> Node {
    // SAFETY: as for `references`.
    unsafe {
        let code = objects::attribute(api, object, attribute_name);
        if code.is_null() {
            return Node { kind, ..Node::default() };
        }
        let mut name = text(api, objects::attribute(api, code, c"co_qualname"));
        if name.is_empty() {
            name = text(api, objects::attribute(api, code, c"co_name")); // Before 3.11.
        }
        let file = text(api, objects::attribute(api, code, c"co_filename"));
        Node {
            kind,
            name,
            file,
            line: number(api, objects::attribute(api, code, c"co_firstlineno")),
            ..Node::default()
        }
    }
}

unsafe fn class_node(api: &Api, class: Object) -> Node {
    // SAFETY: as for `references`.
    unsafe {
        let file = file_of_class(api, class);
        Node { kind: NodeKind::Class, name: objects::full_name(class), file, ..Node::default() }
    }
}

/// The file of the module that defines a class; empty for a class that C defines.
pub unsafe fn file_of_class(api: &Api, class: Object) -> String {
    // SAFETY: as for `references`.
    unsafe {
        let dictionary = objects::class_dictionary(class);
        if dictionary.is_null() || objects::flags(class) & objects::HEAP_TYPE == 0 {
            return String::new();
        }
        let module = (api.PyDict_GetItemString)(dictionary, c"__module__".as_ptr());
        file_of_module(api, &text(api, module))
    }
}

/// The file of a loaded module; empty if it has none.
pub unsafe fn file_of_module(api: &Api, name: &str) -> String {
    // SAFETY: as for `references`.
    unsafe {
        let Ok(name) = std::ffi::CString::new(name) else { return String::new() };
        let module = objects::module(api, &name);
        if module.is_null() || objects::flags(objects::class_of(module)) & objects::HEAP_TYPE != 0 {
            return String::new();
        }
        let dictionary = (api.PyModule_GetDict)(module);
        if dictionary.is_null() {
            (api.PyErr_Clear)();
            return String::new();
        }
        text(api, (api.PyDict_GetItemString)(dictionary, c"__file__".as_ptr()))
    }
}
