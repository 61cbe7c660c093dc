//! Workspace and reserve of cuDNN's recurrent networks.
//!
//! cuDNN derives both from its descriptors, by rules that are not documented. These were found by comparing them with
//! the answers of cuDNN 9.19 on an H200 about 3443 configurations; the buffers' names say what they may be for. Equal to
//! the byte are the standard algorithm, with and without projection, and `CUDNN_RNN_ALGO_PERSIST_STATIC` for one layer of
//! halves in one direction, which is what torch takes it for. `CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H`, which torch takes for
//! small hidden sizes, was not measured: it gets the sizes of the standard algorithm.

use crate::cudnn_rnn_network::{Cell, Network};

/// An RNN data descriptor: the shape of a batch.
#[derive(Clone, Copy, Default)]
pub struct Batch {
    /// Time steps of the longest sequence.
    pub longest: usize,
    /// Sequences.
    pub size: usize,
}

/// What a network takes for a batch. All sizes are in bytes.
pub struct Sizes {
    pub network: Network,
    pub batch: Batch,
}

/// What workspace and reserve have beside their buffers.
const HEADER: usize = 256;

/// For the matrix products of each pseudo-layer.
const PRODUCTS: usize = 8 << 20;

/// Time steps whose gates an inference in one direction holds at once.
const STEPS_OF_GATES: usize = 256;

/// Values per hidden unit that the persistent kernels' backward takes whatever the batch.
const PERSISTENT_VALUES: usize = 2432;

/// `CUDNN_DATA_HALF`.
const HALF: i32 = 2;

/// Size of a buffer: the next one starts at a multiple of 32 bytes.
fn buffer(bytes: usize) -> usize {
    bytes.next_multiple_of(32)
}

impl Sizes {
    /// Workspace for a forward without gradients.
    pub fn inference_workspace(&self) -> usize {
        self.common() + self.packed_copies() + self.forward()
    }

    /// Workspace for a training: what its forward takes or what its backward takes, whichever is larger.
    pub fn training_workspace(&self) -> usize {
        // The backward has a gradient for each value that the forward has.
        let backward = self.common() + 2 * self.packed_copies() + self.backward();
        backward.max(self.inference_workspace())
    }

    /// What the forward of a training leaves for its backward.
    pub fn reserve(&self) -> usize {
        let network = &self.network;
        let sequences = network.pseudo_layers() * self.sequence();
        let activations = match network.cell {
            Cell::Plain => buffer(sequences),
            Cell::Lstm => buffer(4 * sequences) + buffer(sequences), // gates, cell states
            Cell::Gru => buffer(6 * sequences),
        };
        let outputs = network.pseudo_layers() * self.batch.longest * self.output_step();
        let projection = if network.has_projection() { buffer(sequences + outputs) } else { 0 };
        let between_layers = network.layers.saturating_sub(1) * network.directions * self.sequence();
        HEADER + activations + projection + buffer(between_layers)
    }

    /// What forward and backward both take.
    fn common(&self) -> usize {
        let network = &self.network;
        let weights = buffer(network.all_matrices() * network.element());
        let before_projection = if network.has_projection() { buffer(network.directions * self.sequence()) } else { 0 };
        let lengths = if network.padded { buffer(self.batch.size * 2 * size_of::<i32>()) } else { 0 };
        HEADER + network.pseudo_layers() * PRODUCTS + weights + before_projection + lengths
    }

    /// Input, output, first and last states without padding, if the program's have padding.
    fn packed_copies(&self) -> usize {
        let network = &self.network;
        if !network.padded {
            return 0;
        }
        let input = buffer(self.batch.longest * self.batch.size * network.input * network.element());
        let output = buffer(network.directions * self.batch.longest * self.output_step());
        let hidden_states = buffer(network.pseudo_layers() * self.output_step());
        let cell_states = if network.cell == Cell::Lstm { buffer(self.all_states()) } else { 0 };
        input + output + 2 * (hidden_states + cell_states)
    }

    fn forward(&self) -> usize {
        let (gates, sequence, states) = (self.network.gates(), self.sequence(), self.all_states());
        if self.persistent() {
            let states = if self.network.cell == Cell::Lstm { 4 * states } else { 2 * states };
            return buffer(states) + buffer(5 * gates * self.network.directions * sequence);
        }
        let cell_states = if self.network.cell == Cell::Lstm { buffer(2 * states) } else { 0 };
        let one_step = buffer(gates * states) + cell_states;
        if self.bidirectional() {
            one_step + buffer(2 * states) + buffer(2 * gates * sequence) + buffer(4 * sequence)
        } else {
            one_step + buffer(gates * self.batch.longest.min(STEPS_OF_GATES) * self.step())
        }
    }

    fn backward(&self) -> usize {
        let (network, batch, sequence, states) = (&self.network, &self.batch, self.sequence(), self.all_states());
        let cell_states = if network.cell == Cell::Lstm { buffer(2 * states) } else { 0 };
        let widest = batch.longest * batch.size * network.input.max(network.hidden) * network.element();
        let gradients = if self.bidirectional() {
            let between_layers = if network.layers > 1 { 4 * sequence } else { 2 * sequence };
            buffer(2 * states) + buffer(4 * widest) + buffer(between_layers)
        } else {
            buffer(widest) + buffer(self.steps_between_layers() * self.step())
        };
        buffer(states) + cell_states + gradients + if self.persistent() { self.persistent_backward() } else { 0 }
    }

    fn persistent_backward(&self) -> usize {
        let gates = if self.network.cell == Cell::Gru { 6 } else { self.network.gates() };
        buffer(PERSISTENT_VALUES * self.network.hidden * self.network.element())
            + buffer(2 * self.step())
            + buffer(gates * self.sequence())
    }

    /// Time steps whose gradients lie between layers in one direction: of several layers, a chunk for each and one more. The
    /// smaller the batch, the longer the chunks. (Measured were batches of 1, 2, 8, 9, 16, 17, 64 and 100, and 100 and 128
    /// time steps; between those, the limits are assumed.)
    fn steps_between_layers(&self) -> usize {
        let (layers, longest) = (self.network.layers, self.batch.longest);
        if layers <= 1 {
            return longest;
        }
        let chunk = match self.batch.size {
            0..=1 => 32,
            2..=8 => 16,
            9..=16 => 8,
            17..=64 => 4,
            _ => 2,
        };
        let chunk = if longest < 128 { chunk } else { chunk.max(8) };
        longest.min(layers * chunk + chunk.max(8))
    }

    /// For bfloat16, cuDNN answers as for the standard algorithm. Torch asks for halves alone.
    fn persistent(&self) -> bool {
        self.network.persistent && self.network.kind == HALF
    }

    fn bidirectional(&self) -> bool {
        self.network.directions == 2
    }

    /// One value per sequence and hidden unit.
    fn step(&self) -> usize {
        self.batch.size * self.network.hidden * self.network.element()
    }

    /// One value per sequence and element of the output.
    fn output_step(&self) -> usize {
        self.batch.size * self.network.projected * self.network.element()
    }

    /// One value per time step, sequence and hidden unit.
    fn sequence(&self) -> usize {
        self.batch.longest * self.step()
    }

    /// One value per pseudo-layer, sequence and hidden unit.
    fn all_states(&self) -> usize {
        self.network.pseudo_layers() * self.step()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOAT: i32 = 0;
    const BFLOAT16: i32 = 9;

    /// Cell and kind, then input, hidden and projected size; layers and directions; sequences and time steps; padded,
    /// persistent; and what cuDNN 9.19 answers on an H200: workspace of inference and of training, reserve.
    type Row = (Cell, i32, [usize; 3], [usize; 2], [usize; 2], bool, bool, [usize; 3]);

    #[rustfmt::skip]
    const MEASURED: [Row; 29] = [
        (Cell::Plain, HALF, [3, 129, 129], [1, 1], [64, 3], true, false, [8573216, 8706464, 49792]),
        (Cell::Plain, BFLOAT16, [3, 33, 33], [2, 1], [100, 64], false, false, [17219840, 17299040, 1267456]),
        (Cell::Plain, FLOAT, [65, 33, 33], [1, 2], [3, 2], true, false, [16815328, 16823168, 1856]),
        (Cell::Plain, HALF, [65, 33, 33], [4, 2], [128, 5], true, false, [67921344, 68472512, 591616]),
        (Cell::Lstm, HALF, [63, 33, 33], [1, 1], [128, 15], false, false, [8971776, 8971776, 633856]),
        (Cell::Lstm, BFLOAT16, [65, 33, 33], [3, 1], [1, 64], true, false, [25258400, 25266912, 72064]),
        (Cell::Lstm, FLOAT, [65, 33, 33], [1, 2], [256, 512], true, false, [293993792, 326042944, 173015296]),
        (Cell::Lstm, BFLOAT16, [63, 1, 1], [8, 2], [100, 32], false, false, [134321760, 135873760, 601856]),
        (Cell::Gru, BFLOAT16, [63, 33, 33], [1, 1], [256, 7], true, false, [9193280, 9526592, 709888]),
        (Cell::Gru, BFLOAT16, [63, 129, 129], [4, 1], [1, 4], true, false, [34312320, 34312960, 28128]),
        (Cell::Gru, BFLOAT16, [3, 1, 1], [1, 2], [17, 17], true, false, [16787040, 16792352, 7200]),
        (Cell::Gru, HALF, [63, 1, 1], [4, 2], [1, 17], false, false, [67110496, 67118816, 2112]),
        (Cell::Plain, BFLOAT16, [16, 16, 16], [1, 1], [8, 256], false, false, [8455680, 8521216, 65792]),
        (Cell::Lstm, FLOAT, [63, 33, 33], [1, 2], [4, 5], false, false, [16918976, 16918976, 26656]),
        (Cell::Lstm, FLOAT, [128, 1024, 1024], [2, 1], [32, 1000], false, false, [204996864, 204996864, 1441792256]),
        (Cell::Lstm, FLOAT, [65, 512, 512], [2, 1], [256, 512], true, false, [879765760, 927475968, 2952790272]),
        (Cell::Plain, BFLOAT16, [3, 1000, 1000], [2, 1], [1, 512], true, false, [24334592, 26073664, 3072256]),
        (Cell::Plain, HALF, [1024, 1, 1], [3, 1], [8, 128], true, false, [27269664, 31465120, 10496]),
        (Cell::Lstm, FLOAT, [32, 16, 16], [4, 1], [16, 64], true, false, [34091392, 34201984, 1507584]),
        (Cell::Lstm, FLOAT, [256, 96, 96], [4, 1], [64, 100], true, false, [54805248, 61227776, 56525056]),
        (Cell::Lstm, HALF, [3, 1, 1], [8, 1], [100, 64], true, false, [67228480, 67273280, 601856]),
        (Cell::Lstm, HALF, [1, 256, 256], [2, 1], [100, 512], true, false, [98122784, 99556384, 288358656]),
        (Cell::Plain, HALF, [64, 128, 128], [1, 1], [8, 16], true, true, [8659264, 9271616, 33024]),
        (Cell::Lstm, HALF, [1, 128, 128], [1, 1], [8, 16], true, true, [9225792, 9432896, 164096]),
        (Cell::Gru, HALF, [64, 128, 128], [1, 1], [8, 16], true, true, [9085248, 9533760, 196864]),
        (Cell::Lstm, BFLOAT16, [64, 128, 128], [1, 1], [8, 16], true, true, [8786240, 8786240, 164096]),
        (Cell::Lstm, HALF, [64, 128, 128], [1, 1], [8, 1000], true, true, [52633920, 52633920, 10240256]),
        (Cell::Lstm, FLOAT, [64, 128, 100], [2, 2], [8, 16], true, false, [36902208, 36902208, 1908992]),
        (Cell::Lstm, HALF, [64, 128, 32], [1, 1], [8, 16], true, false, [8701248, 8701248, 205056]),
    ];

    #[test]
    fn sizes_are_those_of_a_card() {
        for (cell, kind, [input, hidden, projected], [layers, directions], batch, padded, persistent, card) in MEASURED
        {
            // GIVEN a network and a batch that cuDNN was asked about on a card
            let biases = 2;
            let network =
                Network { cell, biases, directions, kind, input, hidden, projected, layers, persistent, padded };
            let [size, longest] = batch;
            // WHEN the simulated cuDNN is asked
            let sizes = Sizes { network, batch: Batch { longest, size } };
            // THEN it gives the same answers.
            let answers = [sizes.inference_workspace(), sizes.training_workspace(), sizes.reserve()];
            assert_eq!(answers, card, "input {input}, hidden {hidden}, {layers} layers, {batch:?}");
        }
    }
}
