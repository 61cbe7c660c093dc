//! Kinds of objects, determined once for each type.

use std::ffi::CStr;

use hashbrown::HashMap;
use interpose_base::symbols;
use interpose_python::api::{Api, Object};

use crate::objects::{self, Property, Traverse};

/// Kind of the objects of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeKind {
    Class,
    Module,
    Dictionary,
    /// A list or deque.
    List,
    Tuple,
    Set,
    Function,
    Cell,
    Cache,
    Exception,
    Traceback,
    /// A frame that Python code or a traceback keeps.
    Frame,
    Generator,
    /// A node of an autograd graph that C++ implements.
    Autograd,
    /// A node of a custom autograd function, which is its `ctx`.
    Context,
    Tensor,
    /// An array of NumPy.
    Array,
    /// A module of TorchScript, which C++ implements.
    Script,
    Object,
}

impl TypeKind {
    /// True if objects refer to others that the garbage collector does not see.
    pub const fn is_opaque(self) -> bool {
        matches!(self, Self::Tensor | Self::Array | Self::Script)
    }
}

/// A type, as the walk needs it.
#[derive(Clone)]
pub struct TypeInfo {
    pub kind: TypeKind,
    /// `None`: its objects refer to nothing.
    pub traverse: Option<Traverse>,
    pub is_gc: Option<objects::Inquiry>,
    /// Of a node of an autograd graph: the properties with its saved tensors.
    pub saved: Vec<Property>,
    /// Of such a node, or of a `ctx`: the property with the nodes after it.
    pub next: Option<Property>,
    /// Of the node that accumulates a gradient: the property with the leaf.
    pub variable: Option<Property>,
}

/// The types that were met, by address.
pub struct Types {
    known: HashMap<usize, TypeInfo>,
    pub tensor: Object,
    function_base: Object,
    module: Object,
}

impl Types {
    /// `tensor` and `function_base`: PyTorch's classes of tensors and of custom functions.
    pub fn new(tensor: Object, function_base: Object) -> Self {
        let module = symbols::in_process(c"PyModule_Type");
        Self { known: HashMap::new(), tensor, function_base, module }
    }

    /// # Safety
    ///
    /// The GIL must be held, and `class` be a live type.
    pub unsafe fn of(&mut self, api: &Api, class: Object) -> &TypeInfo {
        let key = class as usize;
        if !self.known.contains_key(&key) {
            // SAFETY: as the caller promises.
            let info = unsafe { self.examined(api, class) };
            self.known.insert(key, info);
        }
        &self.known[&key]
    }

    unsafe fn examined(&self, api: &Api, class: Object) -> TypeInfo {
        // SAFETY: the caller of `of` holds the GIL and passes a live type.
        unsafe {
            let flags = objects::flags(class);
            let is_a = |base: Object| !base.is_null() && (api.PyType_IsSubtype)(class, base) != 0;
            let kind = if is_a(self.tensor) {
                TypeKind::Tensor
            } else if is_a(self.function_base) {
                TypeKind::Context
            } else if is_a(self.module) {
                TypeKind::Module
            } else if is_named(class, &["numpy.ndarray"]) {
                TypeKind::Array
            } else if is_named(class, &["torch.ScriptModule", "torch._C.ScriptModule"]) {
                TypeKind::Script
            } else {
                kind_of(class, flags)
            };
            let has_gc = flags & objects::HAVE_GC != 0;
            let mut info = TypeInfo {
                kind,
                traverse: objects::traverse(class).filter(|_| has_gc),
                is_gc: objects::is_gc(class),
                saved: Vec::new(),
                next: None,
                variable: None,
            };
            if kind == TypeKind::Context {
                info.next = inherited(class, c"next_functions");
            } else if kind == TypeKind::Object && flags & objects::HEAP_TYPE == 0 {
                info.next = inherited(class, c"next_functions").filter(|_| inherited(class, c"metadata").is_some());
                if info.next.is_some() {
                    info.kind = TypeKind::Autograd;
                    info.saved = objects::properties(class, |name| name.to_bytes().starts_with(b"_raw_saved_"));
                    info.variable = inherited(class, c"variable");
                }
            }
            info
        }
    }
}

/// The property of this name of a type or of its bases.
///
/// # Safety
///
/// `class` must be a live type.
pub unsafe fn inherited(class: Object, name: &CStr) -> Option<Property> {
    // SAFETY: a live type, whose bases live as long.
    unsafe { objects::with_bases(class).find_map(|class| objects::properties(class, |other| other == name).pop()) }
}

/// True if a type, or one of its bases, has one of these names.
///
/// # Safety
///
/// `class` must be a live type.
unsafe fn is_named(class: Object, names: &[&str]) -> bool {
    // SAFETY: a live type, whose bases live as long.
    unsafe { objects::with_bases(class).any(|class| names.contains(&objects::full_name(class).as_str())) }
}

/// # Safety
///
/// `class` must be a live type with these flags.
unsafe fn kind_of(class: Object, flags: u64) -> TypeKind {
    let by_flag = [
        (objects::TYPE_SUBCLASS, TypeKind::Class),
        (objects::DICT_SUBCLASS, TypeKind::Dictionary),
        (objects::LIST_SUBCLASS, TypeKind::List),
        (objects::TUPLE_SUBCLASS, TypeKind::Tuple),
        (objects::EXCEPTION_SUBCLASS, TypeKind::Exception),
    ];
    if let Some((_, kind)) = by_flag.iter().find(|(flag, _)| flags & flag != 0) {
        return *kind;
    }
    // SAFETY: a live type.
    match unsafe { objects::full_name(class) }.as_str() {
        "collections.deque" => TypeKind::List,
        "set" | "frozenset" => TypeKind::Set,
        "function" => TypeKind::Function,
        "cell" => TypeKind::Cell,
        "functools._lru_cache_wrapper" => TypeKind::Cache,
        "traceback" => TypeKind::Traceback,
        "frame" => TypeKind::Frame,
        "generator" | "coroutine" | "async_generator" => TypeKind::Generator,
        _ => TypeKind::Object,
    }
}
