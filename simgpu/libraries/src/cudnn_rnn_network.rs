//! Description of a recurrent network of cuDNN, and the layout of its weights, which torch relies on.

use crate::cudnn::element_bytes;

/// Computation of a time step (`cudnnRNNMode_t`).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Cell {
    /// tanh or relu
    #[default]
    Plain,
    Lstm,
    Gru,
}

/// Algorithm for the time steps (`cudnnRNNAlgo_t`).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Algorithm {
    #[default]
    Standard,
    /// One kernel for all time steps, which keeps the weights in registers (`CUDNN_RNN_ALGO_PERSIST_STATIC`).
    Persistent,
    /// The same for small hidden sizes (`CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H`), or with a kernel compiled for the
    /// network (`CUDNN_RNN_ALGO_PERSIST_DYNAMIC`).
    PersistentSmall,
}

/// An RNN descriptor.
#[derive(Clone, Copy, Default)]
pub struct Network {
    pub cell: Cell,
    /// Bias vectors per gate: 0, 1 or 2.
    pub biases: usize,
    pub directions: usize,
    /// `cudnnDataType_t`.
    pub kind: i32,
    pub input: usize,
    pub hidden: usize,
    /// Size of the recurrent output, which a projection makes smaller than `hidden`.
    pub projected: usize,
    pub layers: usize,
    pub algorithm: Algorithm,
    /// True if shorter sequences are padded to the longest, in input and output (`CUDNN_RNN_PADDED_IO_ENABLED`).
    pub padded: bool,
}

/// A matrix of the weights: rows, columns, and its offset in elements.
pub struct Matrix {
    pub rows: usize,
    pub columns: usize,
    pub offset: usize,
}

impl Network {
    pub fn gates(&self) -> usize {
        match self.cell {
            Cell::Plain => 1,
            Cell::Lstm => 4,
            Cell::Gru => 3,
        }
    }

    /// Returns layers times directions.
    pub fn pseudo_layers(&self) -> usize {
        self.layers * self.directions
    }

    /// Returns the bytes of an element of the weights and of all computed values.
    pub fn element(&self) -> usize {
        element_bytes(self.kind)
    }

    /// Returns the columns of the input matrices of a pseudo-layer (a layer and a direction).
    fn columns(&self, pseudo_layer: usize) -> usize {
        if pseudo_layer < self.directions { self.input } else { self.projected * self.directions }
    }

    pub fn has_projection(&self) -> bool {
        self.projected != self.hidden
    }

    /// Returns the elements of the matrices of a pseudo-layer.
    fn matrices(&self, pseudo_layer: usize) -> usize {
        let projection = if self.has_projection() { self.projected * self.hidden } else { 0 };
        self.gates() * self.hidden * (self.columns(pseudo_layer) + self.projected) + projection
    }

    /// Returns the elements of all matrices.
    pub fn all_matrices(&self) -> usize {
        (0..self.pseudo_layers()).map(|pseudo_layer| self.matrices(pseudo_layer)).sum()
    }

    /// Returns the elements of the biases of one pseudo-layer.
    fn bias(&self) -> usize {
        self.biases * self.gates() * self.hidden
    }

    /// Returns the elements of all weights.
    pub fn all(&self) -> usize {
        self.all_matrices() + self.pseudo_layers() * self.bias()
    }

    /// Returns matrix number `which` of a pseudo-layer: the gates' input matrices, their recurrent ones, the
    /// projection.
    ///
    /// All matrices come before all biases.
    pub fn matrix(&self, pseudo_layer: usize, which: usize) -> Option<Matrix> {
        let start: usize = (0..pseudo_layer).map(|before| self.matrices(before)).sum();
        let columns = self.columns(pseudo_layer);
        let (hidden, recurrent) = (self.hidden, self.gates() * self.hidden * columns);
        match which {
            which if which < self.gates() => {
                Some(Matrix { rows: hidden, columns, offset: start + which * hidden * columns })
            }
            which if which < 2 * self.gates() => {
                let offset = start + recurrent + (which - self.gates()) * hidden * self.projected;
                Some(Matrix { rows: hidden, columns: self.projected, offset })
            }
            which if which == 2 * self.gates() && self.has_projection() => {
                let offset = start + recurrent + self.gates() * hidden * self.projected;
                Some(Matrix { rows: self.projected, columns: hidden, offset })
            }
            _ => None,
        }
    }

    /// Returns the offset of bias vector `which` of a pseudo-layer, in elements.
    pub fn bias_offset(&self, pseudo_layer: usize, which: usize) -> Option<usize> {
        let exists = which < self.biases * self.gates();
        exists.then(|| self.all_matrices() + pseudo_layer * self.bias() + which * self.hidden)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_contiguous_and_fill_the_space() {
        // GIVEN a two-layer bidirectional LSTM with both bias vectors
        let network = Network {
            cell: Cell::Lstm,
            biases: 2,
            directions: 2,
            input: 5,
            hidden: 7,
            projected: 7,
            layers: 2,
            ..Network::default()
        };
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
