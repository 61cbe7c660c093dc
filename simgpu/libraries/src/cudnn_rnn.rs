//! cuDNN's recurrent networks: the layout of the weights, which torch relies on, and the sizes of workspace and
//! reserve.

use crate::api::{CUDNN_8_NOT_SUPPORTED, CUDNN_BAD_PARAM, SUCCESS, answer, api};
use crate::cudnn::{SHAPES, Shape, element_bytes};
use crate::table::Table;

/// An RNN descriptor.
#[derive(Clone, Copy, Default)]
struct Network {
    gates: usize,
    /// Bias vectors per gate: 0, 1 or 2.
    biases: usize,
    directions: usize,
    kind: i32,
    input: usize,
    hidden: usize,
    /// Size of the recurrent output, which a projection makes smaller than `hidden`.
    projected: usize,
    layers: usize,
}

/// An RNN data descriptor: the shape of a batch.
#[derive(Clone, Copy, Default)]
struct Batch {
    longest: usize,
    size: usize,
}

static NETWORKS: Table<Network> = Table::new();
static BATCHES: Table<Batch> = Table::new();

/// A matrix of the weights: rows, columns, and its offset in elements.
struct Matrix {
    rows: usize,
    columns: usize,
    offset: usize,
}

impl Network {
    /// Columns of the input matrices of a pseudo-layer (a layer and a direction).
    fn columns(&self, pseudo_layer: usize) -> usize {
        if pseudo_layer < self.directions { self.input } else { self.projected * self.directions }
    }

    fn has_projection(&self) -> bool {
        self.projected != self.hidden
    }

    /// Elements of the matrices of a pseudo-layer.
    fn matrices(&self, pseudo_layer: usize) -> usize {
        let projection = if self.has_projection() { self.projected * self.hidden } else { 0 };
        self.gates * self.hidden * (self.columns(pseudo_layer) + self.projected) + projection
    }

    fn all_matrices(&self) -> usize {
        (0..self.layers * self.directions).map(|pseudo_layer| self.matrices(pseudo_layer)).sum()
    }

    /// Elements of the biases of one pseudo-layer.
    fn bias(&self) -> usize {
        self.biases * self.gates * self.hidden
    }

    fn all(&self) -> usize {
        self.all_matrices() + self.layers * self.directions * self.bias()
    }

    /// Matrix number `which` of a pseudo-layer: the gates' input matrices, their recurrent ones, the projection. All
    /// matrices come before all biases.
    fn matrix(&self, pseudo_layer: usize, which: usize) -> Option<Matrix> {
        let start: usize = (0..pseudo_layer).map(|before| self.matrices(before)).sum();
        let columns = self.columns(pseudo_layer);
        let (hidden, recurrent) = (self.hidden, self.gates * self.hidden * columns);
        match which {
            which if which < self.gates => {
                Some(Matrix { rows: hidden, columns, offset: start + which * hidden * columns })
            }
            which if which < 2 * self.gates => {
                let offset = start + recurrent + (which - self.gates) * hidden * self.projected;
                Some(Matrix { rows: hidden, columns: self.projected, offset })
            }
            which if which == 2 * self.gates && self.has_projection() => {
                let offset = start + recurrent + self.gates * hidden * self.projected;
                Some(Matrix { rows: self.projected, columns: hidden, offset })
            }
            _ => None,
        }
    }

    /// The offset of bias vector `which` of a pseudo-layer, in elements.
    fn bias_offset(&self, pseudo_layer: usize, which: usize) -> Option<usize> {
        let exists = which < self.biases * self.gates;
        exists.then(|| self.all_matrices() + pseudo_layer * self.bias() + which * self.hidden)
    }
}

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

/// The call with which torch up to 2.3 starts a recurrent network. It fails: the calls after it belong to an interface
/// that is not simulated, and would reach the real library with descriptors of this one.
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
        descriptor: usize, _algorithm: i32, cell: i32, bias: i32, direction: i32, _input_mode: i32, kind: i32,
        _precision: i32, _math: i32, input: i32, hidden: i32, projected: i32, layers: i32, _dropout: usize, _flags: u32,
    ) {
        let set = |network: &mut Network| *network = Network {
            gates: match cell { 2 => 4, 3 => 3, _ => 1 }, // LSTM, GRU, plain
            biases: match bias { 0 => 0, 2 => 2, _ => 1 }, // none, double, single
            directions: if direction == 1 { 2 } else { 1 },
            kind,
            input: input as usize,
            hidden: hidden as usize,
            projected: if projected > 0 { projected as usize } else { hidden as usize },
            layers: layers as usize,
        };
        NETWORKS.get(descriptor, set).map_or(CUDNN_BAD_PARAM, |()| SUCCESS)
    }

    fn cudnnSetRNNDataDescriptor(
        descriptor: usize, _kind: i32, _layout: i32, longest: i32, size: i32, _vector: i32, _lengths: *const i32,
        _padding: *const u8,
    ) {
        let set = |batch: &mut Batch| *batch = Batch { longest: longest as usize, size: size as usize };
        BATCHES.get(descriptor, set).map_or(CUDNN_BAD_PARAM, |()| SUCCESS)
    }

    fn cudnnGetRNNWeightSpaceSize(_handle: usize, descriptor: usize, to: *mut usize) {
        let Some(network) = network(descriptor) else { return CUDNN_BAD_PARAM };
        answer(to, network.all() * element_bytes(network.kind));
        SUCCESS
    }

    fn cudnnGetRNNWeightParams(
        _handle: usize, descriptor: usize, pseudo_layer: i32, _bytes: usize, weights: usize, which: i32,
        matrix_descriptor: usize, matrix_address: *mut usize, bias_descriptor: usize, bias_address: *mut usize,
    ) {
        let Some(network) = network(descriptor) else { return CUDNN_BAD_PARAM };
        let (pseudo_layer, which, element) = (pseudo_layer as usize, which as usize, element_bytes(network.kind));
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

    fn cudnnGetRNNTempSpaceSizes(
        _handle: usize, descriptor: usize, mode: i32, data: usize, workspace: *mut usize, reserve: *mut usize,
    ) {
        const TRAINING: i32 = 1;
        let (Some(network), Some(batch)) = (network(descriptor), BATCHES.get(data, |batch| *batch)) else {
            return CUDNN_BAD_PARAM;
        };
        // The gates' activations of every time step: of one layer in inference, of all layers for backward.
        let step = batch.size * network.hidden * network.gates * element_bytes(network.kind);
        let layer = step * batch.longest * network.directions;
        answer(workspace, layer.max(1 << 16));
        answer(reserve, if mode == TRAINING { layer * network.layers * 2 } else { 0 });
        SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_contiguous_and_fill_the_space() {
        // GIVEN a two-layer bidirectional LSTM with both bias vectors
        let network =
            Network { gates: 4, biases: 2, directions: 2, kind: 0, input: 5, hidden: 7, projected: 7, layers: 2 };
        // WHEN its matrices and then its biases are visited in order
        let mut next = 0;
        for pseudo_layer in 0..4 {
            for which in 0..8 {
                let matrix = network.matrix(pseudo_layer, which).unwrap();
                assert_eq!(matrix.offset, next);
                next += matrix.rows * matrix.columns;
            }
        }
        for pseudo_layer in 0..4 {
            for which in 0..8 {
                assert_eq!(network.bias_offset(pseudo_layer, which), Some(next));
                next += 7;
            }
        }
        // THEN they fill the whole space: torch.nn.LSTM(5, 7, 2, bidirectional=True) has 2072 parameters.
        assert_eq!(next, network.all());
        assert_eq!(next, 2 * (4 * 7 * (5 + 7 + 2)) + 2 * (4 * 7 * (14 + 7 + 2)));
    }
}
