//! What `memlab.MemReporter` asks thousands of tensors, in one loop: a call from Python costs more than its answer.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PyString, PyTuple, PyType, PyWeakrefMethods, PyWeakrefReference};

use crate::live_books;

/// Device, shape, elements, key, address and bytes of each tensor.
type Columns<'py> = [Bound<'py, PyList>; 6];

/// A property of a class that is implemented in C, such as `torch.Tensor.shape`, whatever a derived class makes of it.
struct Getter<'py> {
    property: Bound<'py, PyAny>,
    get: ffi::descrgetfunc,
}

impl<'py> Getter<'py> {
    fn new(class: &Bound<'py, PyType>, name: &str) -> PyResult<Self> {
        let property = class.getattr(name)?;
        // SAFETY: the type is alive, and the slot, if there is one, has this function.
        let get = unsafe {
            let slot = ffi::PyType_GetSlot(property.get_type_ptr(), ffi::Py_tp_descr_get);
            std::mem::transmute::<*mut std::ffi::c_void, Option<ffi::descrgetfunc>>(slot)
        };
        let get = get.ok_or_else(|| PyRuntimeError::new_err(format!("torch.Tensor.{name} is no property")))?;
        Ok(Self { property, get })
    }

    fn of(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: all three are alive; the result is a new reference, or null with an exception set.
        unsafe {
            let value = (self.get)(self.property.as_ptr(), object.as_ptr(), object.get_type_ptr().cast());
            Bound::from_owned_ptr_or_err(object.py(), value)
        }
    }

    fn is_true(&self, object: &Bound<'py, PyAny>) -> PyResult<bool> {
        self.of(object)?.is_truthy()
    }
}

/// Shapes that were seen, with their text and elements.
struct Shapes<'py> {
    places: HashMap<Vec<i64>, usize>,
    seen: Vec<(Bound<'py, PyString>, Bound<'py, PyAny>)>,
    dimensions: Vec<i64>,
    last: Vec<i64>,
    last_place: usize,
}

impl<'py> Shapes<'py> {
    fn place_of(&mut self, shape: &Bound<'py, PyTuple>) -> PyResult<usize> {
        self.dimensions.clear();
        for dimension in shape.iter_borrowed() {
            self.dimensions.push(dimension.extract()?);
        }
        if self.dimensions == self.last && !self.seen.is_empty() {
            return Ok(self.last_place);
        }
        self.last.clone_from(&self.dimensions);
        self.last_place = self.place_of_other(shape.py())?;
        Ok(self.last_place)
    }

    fn place_of_other(&mut self, py: Python<'py>) -> PyResult<usize> {
        if let Some(&place) = self.places.get(&self.dimensions) {
            return Ok(place);
        }
        let text = match &self.dimensions[..] {
            [] => "(1,)".to_owned(), // A scalar is shown as one element, as pytorch_memlab does.
            [one] => format!("({one},)"),
            all => format!("({})", all.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")),
        };
        let elements = self.dimensions.iter().product::<i64>().into_pyobject(py)?.into_any();
        self.seen.push((PyString::new(py, &text), elements));
        self.places.insert(self.dimensions.clone(), self.seen.len() - 1);
        Ok(self.seen.len() - 1)
    }
}

/// Names of devices by the objects that stand for them, of which each answer has a new one.
#[derive(Default)]
struct Devices<'py>(Vec<(Bound<'py, PyAny>, Bound<'py, PyString>)>);

impl<'py> Devices<'py> {
    fn name_of(&mut self, device: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
        for (known, name) in &self.0 {
            if known.eq(&device)? {
                return Ok(name.clone());
            }
        }
        let name = device.str()?;
        self.0.push((device, name.clone()));
        Ok(name)
    }
}

/// A live block, with the place of its device's name.
struct Place {
    address: u64,
    bytes: u64,
    device: usize,
}

/// The live blocks of all devices by address, and the names of the devices.
fn live_blocks(py: Python) -> (Vec<Place>, Vec<Bound<PyString>>) {
    let (blocks, devices) = py.detach(|| {
        let Some(live) = live_books::current() else { return (Vec::new(), Vec::new()) };
        let model = live.books.model();
        let devices: Vec<i32> = model.devices().iter().map(|device| device.index).collect();
        let on = |(place, &device): (usize, &i32)| {
            let blocks = model.blocks(device).into_iter();
            blocks.map(move |block| Place { address: block.address, bytes: block.bytes, device: place })
        };
        let mut blocks: Vec<Place> = devices.iter().enumerate().flat_map(on).collect();
        blocks.sort_unstable_by_key(|block| block.address);
        (blocks, devices)
    });
    (blocks, devices.iter().map(|device| PyString::new(py, &format!("cuda:{device}"))).collect())
}

/// See `_native.pyi`.
#[pyfunction]
pub fn plain_tensors<'py>(
    tensor_class: &Bound<'py, PyType>,
    plain: [Bound<'py, PyType>; 2],
    storage_class: &Bound<'py, PyType>,
    storage_key: &Bound<'py, PyAny>,
    tensors: &Bound<'py, PyList>,
    is_tracked: bool,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    match read(tensor_class, &plain, storage_class, storage_key, tensors, is_tracked) {
        // One of them has no memory of its own, or no shape.
        Err(error) if error.is_instance_of::<PyRuntimeError>(tensors.py()) => Ok(None),
        read => read?.map(|columns| PyTuple::new(tensors.py(), columns)).transpose(),
    }
}

fn read<'py>(
    tensor_class: &Bound<'py, PyType>,
    plain: &[Bound<'py, PyType>; 2],
    storage_class: &Bound<'py, PyType>,
    storage_key: &Bound<'py, PyAny>,
    tensors: &Bound<'py, PyList>,
    is_tracked: bool,
) -> PyResult<Option<Columns<'py>>> {
    let py = tensors.py();
    let [shape, device, is_quantized] = ["shape", "device", "is_quantized"].map(|name| Getter::new(tensor_class, name));
    let (shape, device, is_quantized) = (shape?, device?, is_quantized?);
    let (data_ptr, untyped_storage) = (tensor_class.getattr("data_ptr")?, tensor_class.getattr("untyped_storage")?);
    let (storage_address, storage_nbytes) = (storage_class.getattr("data_ptr")?, storage_class.getattr("nbytes")?);
    let (blocks, names) = if is_tracked { live_blocks(py) } else { (Vec::new(), Vec::new()) };
    let mut known =
        Shapes { places: HashMap::new(), seen: Vec::new(), dimensions: Vec::new(), last: Vec::new(), last_place: 0 };
    let mut devices = Devices::default();
    let count = tensors.len();
    let (mut on, mut shapes) = (Vec::with_capacity(count), Vec::with_capacity(count));
    let (mut keys, mut addresses, mut nbytes) = (vec![0; count], vec![0; count], vec![0; count]);
    let mut guess = 0;
    for (index, tensor) in tensors.iter().enumerate() {
        let kind = tensor.get_type_ptr();
        if !plain.iter().any(|class| class.as_type_ptr() == kind) || is_quantized.is_true(&tensor)? {
            return Ok(None);
        }
        shapes.push(known.place_of(shape.of(&tensor)?.cast::<PyTuple>()?)?);
        let mut block = None;
        if is_tracked {
            addresses[index] = call(&data_ptr, &tensor)?.extract()?;
            block = block_at(&blocks, addresses[index], guess);
        }
        match block {
            Some(place) => {
                guess = place;
                let block = &blocks[place];
                on.push(names[block.device].clone());
                (keys[index], addresses[index], nbytes[index]) =
                    (block.address.cast_signed(), block.address, block.bytes);
            }
            None => {
                on.push(devices.name_of(device.of(&tensor)?)?);
                let storage = call(&untyped_storage, &tensor)?;
                addresses[index] = call(&storage_address, &storage)?.extract()?;
                if addresses[index] == 0 {
                    keys[index] = -storage_key.call1((storage,))?.extract::<i64>()?;
                } else {
                    keys[index] = addresses[index].cast_signed();
                    nbytes[index] = call(&storage_nbytes, &storage)?.extract()?;
                }
            }
        }
    }
    let texts = PyList::new(py, shapes.iter().map(|&place| &known.seen[place].0))?;
    let elements = PyList::new(py, shapes.iter().map(|&place| &known.seen[place].1))?;
    // A key is nearly always the address: they are one object.
    let addresses = integers(py, addresses)?;
    let key = |(place, key): (usize, i64)| match addresses[place].extract::<i64>()? {
        address if address == key => Ok(addresses[place].clone()),
        _ => Ok(key.into_pyobject(py)?),
    };
    let keys: PyResult<Vec<_>> = keys.into_iter().enumerate().map(key).collect();
    let nbytes = integers(py, nbytes)?;
    let [keys, addresses, nbytes] = [keys?, addresses, nbytes].map(|column| PyList::new(py, column));
    Ok(Some([PyList::new(py, on)?, texts, elements, keys?, addresses?, nbytes?]))
}

/// Integers for Python, one object for equal ones that follow each other.
fn integers(py: Python, values: Vec<u64>) -> PyResult<Vec<Bound<PyInt>>> {
    let mut last = (0, 0u64.into_pyobject(py)?);
    let mut integer = |value| {
        if value != last.0 {
            last = (value, value.into_pyobject(py)?);
        }
        Ok(last.1.clone())
    };
    values.into_iter().map(&mut integer).collect()
}

/// The place of the block that contains an address. Looks at `guess` and the block behind it first: tensors are often found
/// in the order of their blocks.
fn block_at(blocks: &[Place], address: u64, guess: usize) -> Option<usize> {
    let is_in = |place: usize| blocks.get(place).is_some_and(|block| address.wrapping_sub(block.address) < block.bytes);
    if is_in(guess) {
        return Some(guess);
    }
    if is_in(guess + 1) {
        return Some(guess + 1);
    }
    let place = blocks.partition_point(|block| block.address <= address).checked_sub(1)?;
    is_in(place).then_some(place)
}

/// The `.grad` of each tensor that has one, with the tensor's place. PyTorch warns when it is read of a tensor that cannot
/// have one, so it is not.
#[pyfunction]
pub fn gradients<'py>(
    tensor_class: &Bound<'py, PyType>,
    tensors: &Bound<'py, PyList>,
) -> PyResult<Vec<(usize, Bound<'py, PyAny>)>> {
    let getter = |name| Getter::new(tensor_class, name);
    let (requires_grad, grad) = (getter("requires_grad")?, getter("grad")?);
    let (is_leaf, retains_grad) = (getter("is_leaf")?, getter("retains_grad")?);
    let mut found = Vec::new();
    for (index, tensor) in tensors.iter().enumerate() {
        // What requires no gradient is a leaf, and can have one nevertheless: a parameter that was frozen.
        if !requires_grad.is_true(&tensor)? || is_leaf.is_true(&tensor)? || retains_grad.is_true(&tensor)? {
            let gradient = grad.of(&tensor)?;
            if !gradient.is_none() {
                found.push((index, gradient));
            }
        }
    }
    Ok(found)
}

/// See `_native.pyi`.
#[pyfunction]
pub fn held_alone<'py>(
    use_count: &Bound<'py, PyAny>,
    tensors: &Bound<'py, PyList>,
    unheld: &Bound<'py, PyList>,
) -> PyResult<Vec<usize>> {
    // SAFETY: the object is alive.
    let references = |object: &Bound<PyAny>| unsafe { ffi::Py_REFCNT(object.as_ptr()) };
    let wanted = references(&unheld.get_item(0)?) + 1;
    let mut found = Vec::new();
    for (place, tensor) in tensors.iter().enumerate() {
        if references(&tensor) == wanted && call(use_count, &tensor)?.extract::<usize>()? > 1 {
            found.push(place);
        }
    }
    Ok(found)
}

/// Calls a function with one argument, without a tuple for it.
fn call<'py>(function: &Bound<'py, PyAny>, argument: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let none = std::ptr::null_mut::<ffi::PyObject>();
    // SAFETY: both are alive, and null ends the arguments; the result is a new reference, or null with an exception set.
    unsafe {
        let answer = ffi::PyObject_CallFunctionObjArgs(function.as_ptr(), argument.as_ptr(), none);
        Bound::from_owned_ptr_or_err(function.py(), answer)
    }
}

/// The objects that `references` refer to, and those of `others` that are not among them.
#[pyfunction]
pub fn referents<'py>(references: &Bound<'py, PyList>, others: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyList>> {
    let fresh: HashSet<usize> = others.iter().map(|object| object.as_ptr() as usize).collect();
    let mut known = HashSet::new();
    let found = PyList::empty(references.py());
    for reference in references {
        if let Some(object) = reference.cast::<PyWeakrefReference>()?.upgrade() {
            if !fresh.is_empty() && fresh.contains(&(object.as_ptr() as usize)) {
                known.insert(object.as_ptr() as usize);
            }
            found.append(object)?;
        }
    }
    for object in others {
        if !known.contains(&(object.as_ptr() as usize)) {
            found.append(object)?;
        }
    }
    Ok(found)
}

/// See `_native.pyi`.
#[pyfunction]
pub fn table_rows(
    names: &Bound<PyList>,
    shapes: &Bound<PyList>,
    sizes: Vec<u64>,
    widths: [usize; 3],
) -> PyResult<String> {
    let mut text = String::with_capacity(names.len() * (widths.iter().sum::<usize>() + 1));
    let mut last = (u64::MAX, String::new());
    for ((name, shape), size) in names.iter().zip(shapes).zip(sizes) {
        if size != last.0 {
            last = (size, short_size(size));
        }
        let (name, shape) = (name.cast::<PyString>()?.to_string_lossy(), shape.cast::<PyString>()?.to_string_lossy());
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&name);
        pad(&mut text, padding(&name, widths[0]) + padding(&shape, widths[1]));
        text.push_str(&shape);
        pad(&mut text, padding(&last.1, widths[2]));
        text.push_str(&last.1);
    }
    Ok(text)
}

/// How many characters a text is short of a width.
fn padding(text: &str, width: usize) -> usize {
    width.saturating_sub(text.chars().count())
}

fn pad(text: &mut String, mut count: usize) {
    const SPACES: &str = "                                                                ";
    while count > SPACES.len() {
        text.push_str(SPACES);
        count -= SPACES.len();
    }
    text.push_str(&SPACES[..count]);
}

/// As `short_size` in `_tools/short_sizes.py`.
fn short_size(bytes: u64) -> String {
    let units = [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')];
    let (bits, letter) = units.into_iter().find(|(bits, _)| bytes >> bits > 0).unwrap_or((0, 'B'));
    let mut text = String::new();
    let _ = write!(text, "{:.2}{letter}", bytes as f64 / (1u64 << bits) as f64);
    text
}

/// `objects` without those that are in `left_out`.
#[pyfunction]
pub fn without<'py>(objects: &Bound<'py, PyList>, left_out: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyList>> {
    let left_out: HashSet<usize> = left_out.iter().map(|object| object.as_ptr() as usize).collect();
    let found = PyList::empty(objects.py());
    for object in objects.iter().filter(|object| !left_out.contains(&(object.as_ptr() as usize))) {
        found.append(object)?;
    }
    Ok(found)
}
