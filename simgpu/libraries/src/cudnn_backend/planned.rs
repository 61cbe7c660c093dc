//! Backend of a cuDNN that plans without a device: its own descriptors receive the device in place of the handle that
//! programs set.
//!
//! Without a device, cuDNN does not offer the engines of cuBLASLt. On a card, it uses them for convolutions with 1x1
//! filters, whose other engines would first rearrange the images. Their workspace is known, so plans for such
//! convolutions report it. The gradient of a filter is the exception: on a card, cuDNN estimates whether cuBLASLt or
//! another engine is faster (`is_summed_by_cublaslt`).

use std::collections::HashMap;

use crate::cudnn_planner::Planner;
use simgpu_support::api::{SUCCESS, answer};
use simgpu_support::kernels::{Arithmetic, Unit};
use simgpu_support::table::Table;

// cudnnBackendAttributeType_t
const TYPE_HANDLE: i32 = 0;
const TYPE_DATA_TYPE: i32 = 1;
const TYPE_INTEGER: i32 = 3;
const TYPE_DESCRIPTOR: i32 = 15;

// cudnnBackendDescriptorType_t
const ENGINE: i32 = 2;
const HEURISTIC: i32 = 4;
const PLAN: i32 = 5;
const CONVOLUTION_FORWARD: i32 = 10;
const CONVOLUTION_FILTER_GRADIENT: i32 = 11;
const CONVOLUTION_DATA_GRADIENT: i32 = 12;

// cudnnBackendAttributeName_t
const CONVOLUTION_DILATIONS: i32 = 102;
const CONVOLUTION_STRIDES: i32 = 103;
const CONVOLUTION_PADDINGS: [i32; 2] = [104, 105];
const HEURISTIC_GRAPH: i32 = 201;
const HEURISTIC_RESULTS: i32 = 202;
const HEURISTIC_DEVICE: i32 = 204;
const PLAN_CONFIGURATION: i32 = 401;
const PLAN_WORKSPACE: i32 = 402;
const PLAN_DEVICE: i32 = 407;
const GRAPH_OPERATIONS: i32 = 801;
const TENSOR_DATA_TYPE: i32 = 901;
const TENSOR_DIMENSIONS: i32 = 902;
const TENSOR_STRIDES: i32 = 903;
const ENGINE_DEVICE: i32 = 1307;

// cudnnDataType_t
const FLOAT32: i64 = 0;
const FLOAT16: i64 = 2;
const BFLOAT16: i64 = 9;

/// Known facts about a cuDNN descriptor.
#[derive(Clone, Default)]
struct DescriptorFacts {
    kind: i32,
    /// Numbers and descriptors by attribute.
    attributes: HashMap<i32, Vec<i64>>,
    /// Facts about an operation, and about descriptors made for it.
    operation: Operation,
}

#[derive(Clone, Copy, Default)]
struct Operation {
    /// Known workspace.
    workspace: Option<i64>,
    arithmetic: Arithmetic,
}

static KNOWN: Table<DescriptorFacts> = Table::new();

/// # Safety
/// As cudnnBackendCreateDescriptor.
pub unsafe fn create(planner: &Planner, kind: i32, to: *mut usize) -> i32 {
    // SAFETY: as the caller vouches.
    unsafe {
        let status = (planner.create)(kind, to);
        if status == SUCCESS && !to.is_null() {
            KNOWN.with(|all| all.insert(*to, DescriptorFacts { kind, ..DescriptorFacts::default() }));
        }
        status
    }
}

/// # Safety
/// As cudnnBackendDestroyDescriptor.
pub unsafe fn destroy(planner: &Planner, descriptor: usize) -> i32 {
    KNOWN.remove(descriptor);
    // SAFETY: as the caller vouches.
    unsafe { (planner.destroy)(descriptor) }
}

/// # Safety
/// As cudnnBackendSetAttribute.
pub unsafe fn set(
    planner: &Planner,
    descriptor: usize,
    attribute: i32,
    kind: i32,
    count: i64,
    elements: *const u8,
) -> i32 {
    // The real cuDNN does not know the simulated handle, and receives the device instead.
    if kind == TYPE_HANDLE {
        return SUCCESS;
    }
    // SAFETY: as the caller vouches.
    let status = unsafe { (planner.set)(descriptor, attribute, kind, count, elements) };
    if status == SUCCESS && !elements.is_null() {
        let count = count.max(0) as usize;
        let values: Vec<i64> = match kind {
            TYPE_INTEGER | TYPE_DESCRIPTOR => {
                // SAFETY: both kinds have elements of 8 bytes, and the caller vouches for `count` of them.
                let values = unsafe { std::slice::from_raw_parts(elements.cast::<[u8; 8]>(), count) };
                values.iter().map(|bytes| i64::from_ne_bytes(*bytes)).collect()
            }
            TYPE_DATA_TYPE => {
                // SAFETY: a data type is an enumeration of 4 bytes, and the caller vouches for `count` of them.
                let values = unsafe { std::slice::from_raw_parts(elements.cast::<[u8; 4]>(), count) };
                values.iter().map(|bytes| i64::from(i32::from_ne_bytes(*bytes))).collect()
            }
            _ => return status,
        };
        KNOWN.get(descriptor, |own| own.attributes.insert(attribute, values));
    }
    status
}

/// # Safety
/// As cudnnBackendFinalize.
pub unsafe fn finalize(planner: &Planner, descriptor: usize) -> i32 {
    let own = KNOWN.get(descriptor, |own| own.clone()).unwrap_or_default();
    let device_attribute = match own.kind {
        HEURISTIC => Some(HEURISTIC_DEVICE),
        PLAN => Some(PLAN_DEVICE),
        ENGINE => Some(ENGINE_DEVICE),
        _ => None,
    };
    if let (Some(attribute), Some(device)) = (device_attribute, planner.device()) {
        // SAFETY: one descriptor is set, of the kind that the attribute takes. Finalize reports errors.
        unsafe { (planner.set)(descriptor, attribute, TYPE_DESCRIPTOR, 1, (&raw const device).cast()) };
    }
    let made_for = || {
        let [from] = own.numbers(&[GRAPH_OPERATIONS, HEURISTIC_GRAPH, PLAN_CONFIGURATION])?[..] else { return None };
        KNOWN.get(from as usize, |from| from.operation)
    };
    let operation = own.convolution().or_else(made_for).unwrap_or_default();
    KNOWN.get(descriptor, |own| own.operation = operation);
    // SAFETY: as the caller vouches.
    unsafe { (planner.finalize)(descriptor) }
}

/// # Safety
/// As cudnnBackendGetAttribute.
pub unsafe fn get(
    planner: &Planner,
    descriptor: usize,
    attribute: i32,
    kind: i32,
    room: i64,
    count: *mut i64,
    elements: *mut u8,
) -> i32 {
    let operation = KNOWN.get(descriptor, |own| own.operation).unwrap_or_default();
    // SAFETY: as the caller vouches.
    let status = unsafe { (planner.get)(descriptor, attribute, kind, room, count, elements) };
    if status != SUCCESS || elements.is_null() {
        return status;
    }
    match attribute {
        HEURISTIC_RESULTS => {
            for index in 0..room.max(0) as usize {
                // SAFETY: the caller gave `room` descriptors.
                let configuration = unsafe { elements.cast::<usize>().add(index).read_unaligned() };
                KNOWN.get(configuration, |own| own.operation = operation);
            }
        }
        PLAN_WORKSPACE => {
            if let Some(workspace) = operation.workspace {
                // SAFETY: cuDNN has written a number there.
                unsafe { answer(elements.cast(), workspace) };
            }
        }
        _ => {}
    }
    status
}

/// Returns what a plan computes.
pub fn arithmetic(plan: usize) -> Arithmetic {
    KNOWN.get(plan, |own| own.operation.arithmetic).unwrap_or_default()
}

/// The parts of a convolution.
struct Convolution {
    settings: DescriptorFacts,
    filter: DescriptorFacts,
    inputs: DescriptorFacts,
    outputs: DescriptorFacts,
}

impl DescriptorFacts {
    /// Returns the first of these attributes that is set.
    fn numbers(&self, attributes: &[i32]) -> Option<&Vec<i64>> {
        attributes.iter().find_map(|attribute| self.attributes.get(attribute))
    }

    fn lengths(&self) -> Option<&[i64]> {
        Some(self.numbers(&[TENSOR_DIMENSIONS])?)
    }

    /// Returns the facts about a convolution, or one of its gradients; `None` for other descriptors.
    fn convolution(&self) -> Option<Operation> {
        // Convolution, filter, inputs and outputs, by CUDNN_ATTR_OPERATION_CONVOLUTION_*.
        let attributes = match self.kind {
            CONVOLUTION_FORWARD => [702, 703, 704, 705],
            CONVOLUTION_DATA_GRADIENT => [708, 709, 710, 711],
            CONVOLUTION_FILTER_GRADIENT => [714, 715, 716, 717],
            _ => return None,
        };
        let part = |attribute| KNOWN.get(*self.numbers(&[attribute])?.first()? as usize, |part| part.clone());
        let [settings, filter, inputs, outputs] = attributes.map(part);
        let parts = Convolution { settings: settings?, filter: filter?, inputs: inputs?, outputs: outputs? };
        Some(Operation { workspace: parts.workspace(self.kind), arithmetic: parts.arithmetic().unwrap_or_default() })
    }
}

impl Convolution {
    /// Each output is a sum of as many products as the filter has elements for it. The gradients have the same products.
    fn arithmetic(&self) -> Option<Arithmetic> {
        let count = |part: &DescriptorFacts| Some(part.lengths()?.iter().product::<i64>() as u64);
        let ([channels, ..], [data_type]) = (self.filter.lengths()?, &self.inputs.numbers(&[TENSOR_DATA_TYPE])?[..])
        else {
            return None;
        };
        let (unit, element) = match *data_type {
            FLOAT32 => (Unit::TensorSingle, 4), // PyTorch's default for convolutions
            FLOAT16 | BFLOAT16 => (Unit::TensorHalf, 2),
            _ => (Unit::Double, 8),
        };
        let (filter, inputs, outputs) = (count(&self.filter)?, count(&self.inputs)?, count(&self.outputs)?);
        let of_an_output = filter / u64::try_from(*channels).ok()?.max(1);
        Some(Arithmetic { operations: 2 * outputs * of_an_output, bytes: (filter + inputs + outputs) * element, unit })
    }

    /// Returns the workspace of cuBLASLt's engines for a convolution with a 1x1 filter over images with separate
    /// channels; `None` where cuDNN uses another engine.
    ///
    /// Measured on an H100 with cuDNN 9.19: at most 400 bytes, and for the gradient of the filter, one gradient in
    /// float32 per image.
    fn workspace(&self, kind: i32) -> Option<i64> {
        let Convolution { settings, filter, inputs, .. } = self;
        let all = |attribute, wanted| {
            settings.numbers(&[attribute]).is_some_and(|values| values.iter().all(|value| *value == wanted))
        };
        let is_plain = all(CONVOLUTION_STRIDES, 1)
            && all(CONVOLUTION_DILATIONS, 1)
            && CONVOLUTION_PADDINGS.iter().all(|paddings| all(*paddings, 0));
        let [outer, inner, size @ ..] = filter.lengths()? else { return None };
        let [count, channels, ..] = inputs.lengths()? else { return None };
        let channels_are_apart = inputs.numbers(&[TENSOR_STRIDES])?.last() == Some(&1);
        if !is_plain || size.iter().any(|length| *length != 1) || channels != inner || !channels_are_apart {
            return None;
        }
        if kind != CONVOLUTION_FILTER_GRADIENT {
            return Some(0);
        }
        let [data_type] = inputs.numbers(&[TENSOR_DATA_TYPE])?[..] else { return None };
        let is_known = is_summed_by_cublaslt(size.len(), data_type, *outer.min(inner), *count);
        is_known.then_some(count * outer * inner * size_of::<f32>() as i64)
    }
}

/// Returns true where cuDNN has cuBLASLt compute the gradient of a 1x1 filter, with a known workspace.
///
/// cuDNN decides by a time estimate, which it does not return without a device. The rows are its choices on an H100
/// (`benches/workspaces.py`), by the smaller of the filter's numbers of inputs and outputs.
fn is_summed_by_cublaslt(dimensions: usize, data_type: i64, channels: i64, count: i64) -> bool {
    let is_narrow = channels <= 8;
    match (dimensions, data_type) {
        // The result is written at once, so cuBLASLt may split the sum, and the workspace depends on the kernel.
        (_, FLOAT32) if count == 1 => false,
        (2, FLOAT32) => !is_narrow,
        (2, _) => true,
        (_, FLOAT32) => is_narrow,
        // With one channel the matrix is a vector.
        (_, FLOAT16 | BFLOAT16) => channels == 1,
        _ => false,
    }
}
