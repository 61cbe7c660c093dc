//! Reads the device, shape, memory and gradient of a tensor.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use super::blocks::{BlockPlace, CardBlocks, LiveBlocks};
use super::exchange::{Device, Exchange};
use super::getters::{Getter, call};
use super::shapes::Shapes;

/// See `_native.pyi`.
#[pyclass(module = "memlab._native", frozen)]
pub struct TensorReader {
    plain: [Py<PyType>; 2],
    exchange: Option<Exchange>,
    shape: Getter,
    device: Getter,
    is_cuda: Getter,
    is_meta: Getter,
    is_quantized: Getter,
    is_leaf: Getter,
    retains_grad: Getter,
    grad: Getter,
    data_ptr: Py<PyAny>,
    untyped_storage: Py<PyAny>,
    storage_address: Py<PyAny>,
    storage_nbytes: Py<PyAny>,
    storage_key: Py<PyAny>,
    parts: Py<PyAny>,
    memory_of_other: Py<PyAny>,
}

#[pymethods]
impl TensorReader {
    #[new]
    fn new(
        tensor_class: &Bound<PyType>,
        plain: [Py<PyType>; 2],
        storage_class: &Bound<PyType>,
        storage_key: Py<PyAny>,
        parts: Py<PyAny>,
        memory_of_other: Py<PyAny>,
    ) -> PyResult<Self> {
        let getter = |name| Getter::new(tensor_class, name);
        let method = |class: &Bound<PyType>, name| class.getattr(name).map(Bound::unbind);
        Ok(Self {
            plain,
            exchange: Exchange::of(tensor_class)?,
            shape: getter("shape")?,
            device: getter("device")?,
            is_cuda: getter("is_cuda")?,
            is_meta: getter("is_meta")?,
            is_quantized: getter("is_quantized")?,
            is_leaf: getter("is_leaf")?,
            retains_grad: getter("retains_grad")?,
            grad: getter("grad")?,
            data_ptr: method(tensor_class, "data_ptr")?,
            untyped_storage: method(tensor_class, "untyped_storage")?,
            storage_address: method(storage_class, "data_ptr")?,
            storage_nbytes: method(storage_class, "nbytes")?,
            storage_key,
            parts,
            memory_of_other,
        })
    }
}

impl TensorReader {
    /// Returns true if a tensor is on a CUDA device.
    pub fn is_cuda(&self, tensor: &Bound<PyAny>) -> PyResult<bool> {
        self.is_cuda.is_true(tensor)
    }

    /// Returns the gradient of a tensor.
    ///
    /// Skips tensors that cannot have one, because PyTorch warns about the read.
    pub fn gradient_of<'py>(&self, tensor: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        // A tensor that requires no gradient is a leaf, and may still have one: a frozen parameter.
        if self.is_leaf.is_true(tensor)? || self.retains_grad.is_true(tensor)? {
            let gradient = self.grad.of(tensor)?;
            return Ok((!gradient.is_none()).then_some(gradient));
        }
        Ok(None)
    }
}

/// Memory of one tensor.
pub struct TensorMemory {
    /// Index of its device in [`Reading::devices`].
    pub device: usize,
    /// Index of its shape in [`Reading::shapes`].
    pub shape: usize,
    /// Tensors with the same key share memory.
    pub key: i64,
    pub nbytes: u64,
    /// Block that contains it, if blocks are known.
    pub block: Option<BlockPlace>,
}

impl TensorMemory {
    /// Creates the memory of a tensor in a block of a card.
    fn in_block(device: usize, shape: usize, blocks: &CardBlocks, place: BlockPlace) -> Self {
        let (begin, nbytes) = blocks.extent(place);
        Self { device, shape, key: begin.cast_signed(), nbytes, block: Some(place) }
    }
}

/// Reads tensors, and collects their devices and shapes.
pub struct Reading<'a, 'py> {
    reader: &'a TensorReader,
    blocks: &'a LiveBlocks,
    pub shapes: &'a mut Shapes,
    /// Names of devices.
    pub devices: &'a mut Vec<String>,
    arrays_on: Vec<(Device, usize)>,
    others_on: Vec<(Bound<'py, PyAny>, usize)>,
    guess: BlockPlace,
    was_refused: bool,
    /// Parts of tensors, kept alive: some are created on access, and a new part could have the address of a dead one.
    parts: Vec<Bound<'py, PyAny>>,
}

impl<'a, 'py> Reading<'a, 'py> {
    /// Creates a reader.
    ///
    /// Tensors are searched for in `blocks`. A tensor outside of them has the memory of its storage.
    pub fn new(
        reader: &'a TensorReader,
        blocks: &'a LiveBlocks,
        shapes: &'a mut Shapes,
        devices: &'a mut Vec<String>,
    ) -> Self {
        Self {
            reader,
            blocks,
            shapes,
            devices,
            arrays_on: Vec::new(),
            others_on: Vec::new(),
            guess: BlockPlace::default(),
            was_refused: false,
            parts: Vec::new(),
        }
    }

    /// Returns the memory of a tensor that is one strided array.
    ///
    /// None: it is something else.
    pub fn plain(&mut self, tensor: &Bound<'py, PyAny>) -> PyResult<Option<TensorMemory>> {
        let kind = tensor.get_type_ptr();
        if !self.reader.plain.iter().any(|class| class.as_ptr() == kind.cast()) {
            return Ok(None);
        }
        let read = match self.described(tensor) {
            Ok(None) => self.asked(tensor),
            read => read,
        };
        match read {
            // It has no shape, or no memory.
            Err(error) if error.is_instance_of::<PyRuntimeError>(tensor.py()) => Ok(None),
            read => read,
        }
    }

    /// Returns the memory of each part of a tensor that is not one strided array, with the suffix for its name.
    pub fn parts(&mut self, tensor: &Bound<'py, PyAny>) -> PyResult<Vec<(String, TensorMemory)>> {
        let py = tensor.py();
        let mut found = Vec::new();
        for part in self.reader.parts.bind(py).call1((tensor,))?.try_iter()? {
            let (suffix, part): (String, Bound<PyAny>) = part?.extract()?;
            let memory = match self.plain(&part)? {
                Some(memory) => memory,
                None => self.other(&part)?,
            };
            found.push((suffix, memory));
            self.parts.push(part);
        }
        Ok(found)
    }

    /// Returns the memory of an array, as DLPack describes it.
    fn described(&mut self, tensor: &Bound<'py, PyAny>) -> PyResult<Option<TensorMemory>> {
        let Some(exchange) = self.reader.exchange else { return Ok(None) };
        // A refusal costs a hundred times as much as a description. DLPack refuses meta tensors, and models have thousands.
        if self.was_refused && self.reader.is_meta.is_true(tensor)? {
            return Ok(None);
        }
        let Some(array) = exchange.array(tensor) else {
            self.was_refused = true;
            return Ok(None);
        };
        let shape = self.shapes.place_of(tensor.py(), array.shape)?;
        let (address, on) = (array.address, array.device);
        let device = self.place_of(on);
        if let Device::Cuda(card) = on
            && let Some(blocks) = self.blocks.of(card)
            && let Some(place) = blocks.find(address, self.guess)
        {
            self.guess = place;
            return Ok(Some(TensorMemory::in_block(device, shape, blocks, place)));
        }
        self.with_storage(tensor, device, shape).map(Some)
    }

    /// Returns the memory of a tensor from its own properties.
    ///
    /// RuntimeError if it has none.
    fn asked(&mut self, tensor: &Bound<'py, PyAny>) -> PyResult<Option<TensorMemory>> {
        let (py, reader) = (tensor.py(), self.reader);
        if reader.is_quantized.is_true(tensor)? {
            return Ok(None);
        }
        let dimensions = reader.shape.of(tensor)?.cast::<PyTuple>()?.extract::<Vec<i64>>()?;
        let shape = self.shapes.place_of(py, &dimensions)?;
        let address = call(reader.data_ptr.bind(py), tensor)?.extract()?;
        if let Some((blocks, place)) = self.blocks.find(address, self.guess) {
            self.guess = place;
            let device = self.place_of(Device::Cuda(blocks.card()));
            return Ok(Some(TensorMemory::in_block(device, shape, blocks, place)));
        }
        let device = self.place_of_other(reader.device.of(tensor)?)?;
        self.with_storage(tensor, device, shape).map(Some)
    }

    fn with_storage(&self, tensor: &Bound<'py, PyAny>, device: usize, shape: usize) -> PyResult<TensorMemory> {
        let (py, reader) = (tensor.py(), self.reader);
        let storage = call(reader.untyped_storage.bind(py), tensor)?;
        let address: u64 = call(reader.storage_address.bind(py), &storage)?.extract()?;
        if address == 0 {
            let key = -call(reader.storage_key.bind(py), &storage)?.extract::<i64>()?;
            return Ok(TensorMemory { device, shape, key, nbytes: 0, block: None });
        }
        let nbytes = call(reader.storage_nbytes.bind(py), &storage)?.extract()?;
        Ok(TensorMemory { device, shape, key: address.cast_signed(), nbytes, block: self.block_at(address) })
    }

    /// Returns the memory of a tensor that is not an array.
    fn other(&mut self, tensor: &Bound<'py, PyAny>) -> PyResult<TensorMemory> {
        let py = tensor.py();
        let answer = self.reader.memory_of_other.bind(py).call1((tensor,))?;
        let (device, shape, elements, address, nbytes): (String, String, i64, u64, u64) = answer.extract()?;
        let device = self.place_of_name(device);
        let shape = self.shapes.add(py, &shape, elements)?;
        let key = if address == 0 { -(tensor.as_ptr() as i64) } else { address.cast_signed() };
        Ok(TensorMemory { device, shape, key, nbytes, block: self.block_at(address) })
    }

    fn block_at(&self, address: u64) -> Option<BlockPlace> {
        self.blocks.find(address, self.guess).map(|(_, place)| place)
    }

    fn place_of(&mut self, device: Device) -> usize {
        if let Some(&(_, place)) = self.arrays_on.iter().find(|(known, _)| *known == device) {
            return place;
        }
        let place = self.place_of_name(match device {
            Device::Cpu => "cpu".to_owned(),
            Device::Cuda(card) => format!("cuda:{card}"),
        });
        self.arrays_on.push((device, place));
        place
    }

    /// Returns the index of a device from its Python object.
    ///
    /// Each read of a tensor's device creates a new object.
    fn place_of_other(&mut self, device: Bound<'py, PyAny>) -> PyResult<usize> {
        for (known, place) in &self.others_on {
            if known.eq(&device)? {
                return Ok(*place);
            }
        }
        let place = self.place_of_name(device.str()?.to_string());
        self.others_on.push((device, place));
        Ok(place)
    }

    fn place_of_name(&mut self, name: String) -> usize {
        self.devices.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.devices.push(name);
            self.devices.len() - 1
        })
    }
}
