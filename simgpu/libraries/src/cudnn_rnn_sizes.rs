//! Workspace and reserve of cuDNN's recurrent networks.
//!
//! cuDNN derives both from its descriptors, by undocumented rules. The rules here come from a comparison with cuDNN
//! 9.19 on an H200 in 5642 configurations. They match to the byte except for four, which PyTorch does not request (see
//! simgpu/README.md). The buffers' names are guesses at their purpose.

use crate::cudnn_rnn_network::{Algorithm, Cell, Network};

/// An RNN data descriptor: shape of a batch.
#[derive(Clone, Copy, Default)]
pub struct Batch {
    /// Time steps of the longest sequence.
    pub longest: usize,
    /// Sequences.
    pub size: usize,
    /// Time steps of all sequences together.
    pub steps: usize,
}

/// Memory needs of a network for a batch. All sizes are in bytes.
pub struct Sizes {
    pub network: Network,
    pub batch: Batch,
}

/// Bytes of workspace and reserve besides their buffers.
const HEADER: usize = 256;

/// Bytes for the matrix products of each pseudo-layer.
const PRODUCTS: usize = 8 << 20;

/// Time steps whose gates an inference in one direction holds at once.
const STEPS_OF_GATES: usize = 256;

/// Minimum values per hidden unit for the backward of `Algorithm::Persistent`, independent of the batch.
const PERSISTENT_VALUES: usize = 2432;

/// Bytes of a half. Those values have this size for floats too.
const HALF_BYTES: usize = 2;

/// `CUDNN_DATA_BFLOAT16`.
const BFLOAT16: i32 = 9;

/// Returns the size of a buffer: the next one starts at a multiple of 32 bytes.
fn buffer(bytes: usize) -> usize {
    bytes.next_multiple_of(32)
}

impl Sizes {
    /// Returns the workspace for a forward without gradients.
    pub fn inference_workspace(&self) -> usize {
        self.common() + self.packed_copies() + self.forward()
    }

    /// Returns the workspace for training: that of its forward or its backward, whichever is larger.
    pub fn training_workspace(&self) -> usize {
        // The backward has a gradient for each value of the forward.
        let backward = self.common() + 2 * self.packed_copies() + self.backward();
        backward.max(self.inference_workspace())
    }

    /// Returns the bytes that the forward of a training keeps for its backward.
    pub fn reserve(&self) -> usize {
        let network = &self.network;
        let sequences = network.pseudo_layers() * self.sequence();
        let activations = match network.cell {
            Cell::Plain => buffer(sequences),
            Cell::Lstm => buffer(4 * sequences) + buffer(sequences), // gates, cell states
            Cell::Gru => buffer(6 * sequences),
        };
        let outputs = network.pseudo_layers() * self.batch.steps * network.projected * network.element();
        let projection = if network.has_projection() { buffer(sequences + outputs) } else { 0 };
        let between_layers = network.layers.saturating_sub(1) * network.directions * self.sequence();
        HEADER + activations + projection + buffer(between_layers)
    }

    /// Returns the bytes that both forward and backward need.
    fn common(&self) -> usize {
        let network = &self.network;
        let weights = buffer(network.all_matrices() * network.element());
        let before_projection = if network.has_projection() { buffer(network.directions * self.sequence()) } else { 0 };
        let lengths = if network.padded { buffer(self.batch.size * 2 * size_of::<i32>()) } else { 0 };
        HEADER + network.pseudo_layers() * PRODUCTS + weights + before_projection + lengths
    }

    /// Returns the bytes of input, output, first and last states without padding, if the program's are padded.
    ///
    /// Sized as if all sequences were as long as the longest.
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
        let one_step = match (self.persistent(), self.bidirectional()) {
            (false, false) => buffer(gates * states),
            (false, true) => buffer(gates * states) + buffer(2 * states),
            (true, false) => buffer(2 * states),
            (true, true) => buffer(states) + buffer(2 * states),
        };
        let all_steps = match (self.persistent(), self.bidirectional()) {
            (false, false) => buffer(gates * self.steps(STEPS_OF_GATES)),
            (true, false) => buffer(gates * sequence),
            (_, true) => buffer(2 * gates * sequence) + buffer(4 * sequence),
        };
        let kept_by_kernel = if self.persistent() { buffer(4 * gates * sequence) } else { 0 };
        one_step + self.cell_states() + all_steps + kept_by_kernel
    }

    fn backward(&self) -> usize {
        let (network, sequence, states) = (&self.network, self.sequence(), self.all_states());
        let widest = self.batch.steps * network.input.max(network.hidden) * network.element();
        let between_layers = if network.layers > 1 { 2 * sequence } else { sequence };
        let gradients = if self.bidirectional() {
            buffer(states) + buffer(2 * states) + buffer(4 * widest) + buffer(2 * between_layers)
        } else if self.persistent() {
            buffer(2 * states) + buffer(widest) + buffer(between_layers)
        } else {
            buffer(states) + buffer(widest) + buffer(self.steps(self.steps_between_layers()))
        };
        gradients + self.cell_states() + if self.persistent() { self.persistent_backward() } else { 0 }
    }

    /// Returns the bytes of the cell states of two time steps, for LSTMs.
    fn cell_states(&self) -> usize {
        if self.network.cell == Cell::Lstm { buffer(2 * self.all_states()) } else { 0 }
    }

    fn persistent_backward(&self) -> usize {
        let (network, sequence) = (&self.network, self.sequence());
        let gates = if network.cell == Cell::Gru { 6 } else { network.gates() };
        let least = if network.algorithm == Algorithm::Persistent {
            buffer(PERSISTENT_VALUES * network.hidden * HALF_BYTES)
                + buffer(self.batch.size * network.hidden * HALF_BYTES)
        } else {
            0
        };
        buffer(gates * sequence) + least.max(buffer(8 * sequence))
    }

    /// Returns the time steps whose gradients lie between layers in one direction: with several layers, a chunk for
    /// each and one more.
    ///
    /// The smaller the batch, the longer the chunks. (Batches of 66 to 98 were not measured; the change of chunks from
    /// 4 to 2 in that range is an assumption.)
    fn steps_between_layers(&self) -> usize {
        let (layers, longest) = (self.network.layers, self.batch.longest);
        if layers <= 1 {
            return longest;
        }
        let chunk = match self.batch.size {
            0..=1 => 32,
            2..=8 => 16,
            9..=16 => 8,
            17..=96 => 4,
            _ => 2,
        };
        let chunk = if longest < 128 { chunk } else { chunk.max(8) };
        layers * chunk + chunk.max(8)
    }

    /// Returns true for persistent algorithms. For bfloat16, cuDNN's answers equal those of the standard algorithm.
    fn persistent(&self) -> bool {
        self.network.algorithm != Algorithm::Standard && self.network.kind != BFLOAT16
    }

    fn bidirectional(&self) -> bool {
        self.network.directions == 2
    }

    /// Returns the bytes of one value per sequence and hidden unit.
    fn step(&self) -> usize {
        self.batch.size * self.network.hidden * self.network.element()
    }

    /// Returns the bytes of one value per sequence and element of the output.
    fn output_step(&self) -> usize {
        self.batch.size * self.network.projected * self.network.element()
    }

    /// Returns the bytes of one value per time step of each sequence and hidden unit.
    fn sequence(&self) -> usize {
        self.batch.steps * self.network.hidden * self.network.element()
    }

    /// Returns the same for at most this many time steps. (An upper bound if the sequences differ in length.)
    fn steps(&self, most: usize) -> usize {
        self.sequence().min(most * self.step())
    }

    /// Returns the bytes of one value per pseudo-layer, sequence and hidden unit.
    fn all_states(&self) -> usize {
        self.network.pseudo_layers() * self.step()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Algorithm::{Persistent, PersistentSmall, Standard};

    const FLOAT: i32 = 0;
    const HALF: i32 = 2;

    /// Cell and kind; input, hidden and projected size; layers and directions; sequences, time steps of the longest and
    /// of all together; padded; algorithm; and the answers of cuDNN 9.19 on an H200: workspace of inference and of
    /// training, reserve.
    type Row = (Cell, i32, [usize; 3], [usize; 2], [usize; 3], bool, Algorithm, [usize; 3]);

    #[rustfmt::skip]
    const MEASURED: [Row; 49] = [
        (Cell::Plain, HALF, [3, 129, 129], [1, 1], [64, 3, 192], true, Standard, [8573216, 8706464, 49792]),
        (Cell::Plain, BFLOAT16, [3, 33, 33], [2, 1], [100, 64, 6400], false, Standard, [17219840, 17299040, 1267456]),
        (Cell::Plain, FLOAT, [65, 33, 33], [1, 2], [3, 2, 6], true, Standard, [16815328, 16823168, 1856]),
        (Cell::Plain, HALF, [65, 33, 33], [4, 2], [128, 5, 640], true, Standard, [67921344, 68472512, 591616]),
        (Cell::Lstm, HALF, [63, 33, 33], [1, 1], [128, 15, 1920], false, Standard, [8971776, 8971776, 633856]),
        (Cell::Lstm, BFLOAT16, [65, 33, 33], [3, 1], [1, 64, 64], true, Standard, [25258400, 25266912, 72064]),
        (Cell::Lstm, FLOAT, [65, 33, 33], [1, 2], [256, 512, 131072], true, Standard, [293993792, 326042944, 173015296]),
        (Cell::Lstm, BFLOAT16, [63, 1, 1], [8, 2], [100, 32, 3200], false, Standard, [134321760, 135873760, 601856]),
        (Cell::Gru, BFLOAT16, [63, 33, 33], [1, 1], [256, 7, 1792], true, Standard, [9193280, 9526592, 709888]),
        (Cell::Gru, BFLOAT16, [63, 129, 129], [4, 1], [1, 4, 4], true, Standard, [34312320, 34312960, 28128]),
        (Cell::Gru, BFLOAT16, [3, 1, 1], [1, 2], [17, 17, 289], true, Standard, [16787040, 16792352, 7200]),
        (Cell::Gru, HALF, [63, 1, 1], [4, 2], [1, 17, 17], false, Standard, [67110496, 67118816, 2112]),
        (Cell::Plain, BFLOAT16, [16, 16, 16], [1, 1], [8, 256, 2048], false, Standard, [8455680, 8521216, 65792]),
        (Cell::Lstm, FLOAT, [63, 33, 33], [1, 2], [4, 5, 20], false, Standard, [16918976, 16918976, 26656]),
        (Cell::Lstm, FLOAT, [128, 1024, 1024], [2, 1], [32, 1000, 32000], false, Standard, [204996864, 204996864, 1441792256]),
        (Cell::Lstm, FLOAT, [65, 512, 512], [2, 1], [256, 512, 131072], true, Standard, [879765760, 927475968, 2952790272]),
        (Cell::Plain, BFLOAT16, [3, 1000, 1000], [2, 1], [1, 512, 512], true, Standard, [24334592, 26073664, 3072256]),
        (Cell::Plain, HALF, [1024, 1, 1], [3, 1], [8, 128, 1024], true, Standard, [27269664, 31465120, 10496]),
        (Cell::Lstm, FLOAT, [32, 16, 16], [4, 1], [16, 64, 1024], true, Standard, [34091392, 34201984, 1507584]),
        (Cell::Lstm, FLOAT, [256, 96, 96], [4, 1], [64, 100, 6400], true, Standard, [54805248, 61227776, 56525056]),
        (Cell::Lstm, HALF, [3, 1, 1], [8, 1], [100, 64, 6400], true, Standard, [67228480, 67273280, 601856]),
        (Cell::Lstm, HALF, [1, 256, 256], [2, 1], [100, 512, 51200], true, Standard, [98122784, 99556384, 288358656]),
        (Cell::Plain, HALF, [64, 128, 128], [1, 1], [8, 16, 128], true, Persistent, [8659264, 9271616, 33024]),
        (Cell::Lstm, HALF, [1, 128, 128], [1, 1], [8, 16, 128], true, Persistent, [9225792, 9432896, 164096]),
        (Cell::Gru, HALF, [64, 128, 128], [1, 1], [8, 16, 128], true, Persistent, [9085248, 9533760, 196864]),
        (Cell::Lstm, BFLOAT16, [64, 128, 128], [1, 1], [8, 16, 128], true, Persistent, [8786240, 8786240, 164096]),
        (Cell::Lstm, HALF, [64, 128, 128], [1, 1], [8, 1000, 8000], true, Persistent, [52633920, 52633920, 10240256]),
        (Cell::Lstm, FLOAT, [64, 128, 100], [2, 2], [8, 16, 128], true, Standard, [36902208, 36902208, 1908992]),
        (Cell::Lstm, HALF, [64, 128, 32], [1, 1], [8, 16, 128], true, Standard, [8701248, 8701248, 205056]),
        (Cell::Plain, FLOAT, [3, 33, 33], [1, 1], [64, 100, 6400], true, PersistentSmall, [13573536, 19580832, 845056]),
        (Cell::Plain, FLOAT, [1, 33, 33], [2, 1], [99, 17, 1683], true, PersistentSmall, [18235808, 20072128, 666752]),
        (Cell::Plain, HALF, [3, 192, 192], [1, 2], [33, 2, 66], false, PersistentSmall, [17256704, 17383424, 50944]),
        (Cell::Plain, FLOAT, [3, 1, 1], [2, 2], [99, 64, 6336], true, PersistentSmall, [33943680, 34453760, 152320]),
        (Cell::Lstm, HALF, [1, 33, 33], [1, 1], [9, 101, 909], false, PersistentSmall, [9600192, 9600192, 300256]),
        (Cell::Lstm, FLOAT, [1, 129, 129], [3, 1], [99, 15, 1485], true, PersistentSmall, [43823840, 43823840, 13026720]),
        (Cell::Lstm, HALF, [1024, 129, 129], [1, 2], [7, 1000, 7000], true, PersistentSmall, [87705888, 137728352, 18060256]),
        (Cell::Lstm, FLOAT, [1, 33, 33], [4, 2], [7, 128, 896], true, PersistentSmall, [71076992, 71076992, 5440768]),
        (Cell::Lstm, HALF, [3, 129, 129], [3, 2], [99, 256, 25344], true, PersistentSmall, [249896768, 249896768, 222317824]),
        (Cell::Gru, HALF, [3, 33, 33], [1, 1], [1, 100, 100], true, PersistentSmall, [8502624, 8516704, 39872]),
        (Cell::Gru, FLOAT, [3, 1, 1], [8, 1], [33, 17, 561], true, PersistentSmall, [67156576, 67176704, 123680]),
        (Cell::Gru, FLOAT, [3, 129, 129], [1, 2], [64, 2, 128], true, PersistentSmall, [19103584, 19237216, 792832]),
        (Cell::Gru, HALF, [1, 129, 129], [3, 2], [33, 256, 8448], true, PersistentSmall, [104313984, 108792256, 87183616]),
        (Cell::Plain, BFLOAT16, [1, 1, 1], [8, 1], [9, 2, 18], true, PersistentSmall, [67109920, 67110432, 800]),
        (Cell::Plain, HALF, [128, 128, 128], [1, 1], [64, 16, 1024], true, Persistent, [10355456, 12485376, 262400]),
        (Cell::Plain, BFLOAT16, [3, 384, 384], [3, 1], [65, 100, 6500], true, PersistentSmall, [37115776, 43444704, 24960256]),
        (Cell::Plain, HALF, [64, 64, 64], [4, 1], [65, 101, 6565], true, Standard, [36241568, 38188448, 5882496]),
        (Cell::Gru, FLOAT, [64, 128, 128], [1, 1], [8, 16, 128], true, Persistent, [9781568, 10053952, 393472]),
        (Cell::Lstm, FLOAT, [64, 128, 128], [1, 1], [8, 16, 44], true, Standard, [9011520, 9068864, 112896]),
        (Cell::Lstm, FLOAT, [64, 128, 128], [1, 1], [8, 16, 44], false, Standard, [8896768, 8896768, 112896]),
    ];

    #[test]
    fn sizes_are_those_of_a_card() {
        for (cell, kind, [input, hidden, projected], [layers, directions], batch, padded, algorithm, card) in MEASURED {
            // GIVEN a network and a batch with known answers of cuDNN on a card
            let biases = 2;
            let network =
                Network { cell, biases, directions, kind, input, hidden, projected, layers, algorithm, padded };
            let [size, longest, steps] = batch;
            // WHEN the simulated cuDNN computes the sizes
            let sizes = Sizes { network, batch: Batch { longest, size, steps } };
            // THEN they are the same.
            let answers = [sizes.inference_workspace(), sizes.training_workspace(), sizes.reserve()];
            assert_eq!(answers, card, "input {input}, hidden {hidden}, {layers} layers, {batch:?}");
        }
    }
}
