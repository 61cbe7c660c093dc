//! cuDNN's recurrent networks: descriptors, and torch's queries about them: the layout of weights, and the sizes of
//! workspace and reserve.

use crate::cudnn::{SHAPES, Shape};
use crate::cudnn_rnn_network::{Algorithm, Cell, Network};
use crate::cudnn_rnn_sizes::{Batch, Sizes};
use crate::cudnn_stream;
use crate::elements::{self, FLOAT16, FLOAT32};
use simgpu_support::api::{CUDNN_8_NOT_SUPPORTED, CUDNN_BAD_PARAM, SUCCESS, answer, api};
use simgpu_support::kernels::{Arithmetic, kernel_name};
use simgpu_support::table::Table;

static NETWORKS: Table<Network> = Table::new();
static BATCHES: Table<Batch> = Table::new();

fn describe(descriptor: usize, kind: i32, rows: usize, columns: usize) {
    let (rows, columns) = (rows as i32, columns as i32);
    SHAPES.get(descriptor, |shape| {
        *shape =
            Shape { kind, format: 0, dimensions: vec![1, rows, columns], strides: vec![rows * columns, columns, 1] };
    });
}

fn network(descriptor: usize) -> Option<Network> {
    NETWORKS.get(descriptor, |network| *network)
}

/// Returns what a pass computes: the product of all weights and each step of each sequence.
fn arithmetic(descriptor: usize, data: usize) -> Arithmetic {
    match (network(descriptor), BATCHES.get(data, |batch| *batch)) {
        (Some(network), Some(batch)) => {
            let kind = if network.element() == 2 { FLOAT16 } else { FLOAT32 };
            elements::product(1, (batch.steps as u64, 1, network.all() as u64), kind, true)
        }
        _ => Arithmetic::default(),
    }
}

/// Fails the call with which torch up to 2.3 starts a recurrent network.
///
/// The calls after it belong to an interface that is not simulated, and would pass simulated descriptors to the real
/// library.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudnnSetRNNDescriptor_v6() -> i32 {
    CUDNN_8_NOT_SUPPORTED
}

api! {
    fn cudnnCreateRNNDescriptor(to: *mut usize) {
        answer(to, NETWORKS.add(Network::default()));
        SUCCESS
    }

    fn cudnnDestroyRNNDescriptor(descriptor: usize) {
        NETWORKS.remove(descriptor);
        SUCCESS
    }

    fn cudnnCreateRNNDataDescriptor(to: *mut usize) {
        answer(to, BATCHES.add(Batch::default()));
        SUCCESS
    }

    fn cudnnDestroyRNNDataDescriptor(descriptor: usize) {
        BATCHES.remove(descriptor);
        SUCCESS
    }

    fn cudnnSetRNNDescriptor_v8(
        descriptor: usize, algorithm: i32, cell: i32, bias: i32, direction: i32, _input_mode: i32, kind: i32,
        _precision: i32, _math: i32, input: i32, hidden: i32, projected: i32, layers: i32, _dropout: usize, flags: u32,
    ) {
        const PADDED_IO_ENABLED: u32 = 1;
        let set = |network: &mut Network| *network = Network {
            cell: match cell { 2 => Cell::Lstm, 3 => Cell::Gru, _ => Cell::Plain },
            biases: match bias { 0 => 0, 2 => 2, _ => 1 }, // none, double, single
            directions: if direction == 1 { 2 } else { 1 },
            kind,
            input: input as usize,
            hidden: hidden as usize,
            projected: if projected > 0 { projected as usize } else { hidden as usize },
            layers: layers as usize,
            algorithm: match algorithm {
                0 => Algorithm::Standard,
                1 => Algorithm::Persistent,
                _ => Algorithm::PersistentSmall,
            },
            padded: flags & PADDED_IO_ENABLED != 0,
        };
        NETWORKS.get(descriptor, set).map_or(CUDNN_BAD_PARAM, |()| SUCCESS)
    }

    fn cudnnSetRNNDataDescriptor(
        descriptor: usize, _kind: i32, _layout: i32, longest: i32, size: i32, _vector: i32, lengths: *const i32,
        _padding: *const u8,
    ) {
        if lengths.is_null() || size < 0 {
            return CUDNN_BAD_PARAM;
        }
        let size = size as usize;
        let steps = std::slice::from_raw_parts(lengths, size).iter().map(|&length| length as usize).sum();
        let set = |batch: &mut Batch| *batch = Batch { longest: longest as usize, size, steps };
        BATCHES.get(descriptor, set).map_or(CUDNN_BAD_PARAM, |()| SUCCESS)
    }

    fn cudnnGetRNNWeightSpaceSize(_handle: usize, descriptor: usize, to: *mut usize) {
        let Some(network) = network(descriptor) else { return CUDNN_BAD_PARAM };
        answer(to, network.all() * network.element());
        SUCCESS
    }

    fn cudnnGetRNNWeightParams(
        _handle: usize, descriptor: usize, pseudo_layer: i32, _bytes: usize, weights: usize, which: i32,
        matrix_descriptor: usize, matrix_address: *mut usize, bias_descriptor: usize, bias_address: *mut usize,
    ) {
        let Some(network) = network(descriptor) else { return CUDNN_BAD_PARAM };
        let (pseudo_layer, which, element) = (pseudo_layer as usize, which as usize, network.element());
        let matrix = network.matrix(pseudo_layer, which);
        answer(matrix_address, matrix.as_ref().map_or(0, |matrix| weights + matrix.offset * element));
        if let Some(matrix) = matrix {
            describe(matrix_descriptor, network.kind, matrix.rows, matrix.columns);
        }
        let bias = network.bias_offset(pseudo_layer, which);
        answer(bias_address, bias.map_or(0, |offset| weights + offset * element));
        if bias.is_some() {
            describe(bias_descriptor, network.kind, network.hidden, 1);
        }
        SUCCESS
    }

    fn cudnnRNNForward(handle: usize, descriptor: usize, _mode: i32, _lengths: usize, data: usize) {
        cudnn_stream::launch(handle, kernel_name!(cudnnRNNForward), arithmetic(descriptor, data))
    }

    fn cudnnRNNBackwardData_v8(handle: usize, descriptor: usize, _lengths: usize, data: usize) {
        cudnn_stream::launch(handle, kernel_name!(cudnnRNNBackwardData_v8), arithmetic(descriptor, data))
    }

    fn cudnnRNNBackwardWeights_v8(handle: usize, descriptor: usize, _add: i32, _lengths: usize, data: usize) {
        cudnn_stream::launch(handle, kernel_name!(cudnnRNNBackwardWeights_v8), arithmetic(descriptor, data))
    }

    fn cudnnGetRNNTempSpaceSizes(
        _handle: usize, descriptor: usize, mode: i32, data: usize, workspace: *mut usize, reserve: *mut usize,
    ) {
        const TRAINING: i32 = 1;
        let (Some(network), Some(batch)) = (network(descriptor), BATCHES.get(data, |batch| *batch)) else {
            return CUDNN_BAD_PARAM;
        };
        let sizes = Sizes { network, batch };
        answer(workspace, if mode == TRAINING { sizes.training_workspace() } else { sizes.inference_workspace() });
        answer(reserve, if mode == TRAINING { sizes.reserve() } else { 0 });
        SUCCESS
    }
}
