//! The table of cards.
//!
//! The rows `h100` and `h200` were read on such cards (driver 580.159.04). For the others, the memory is from public
//! outputs of `deviceQuery` and `torch.cuda.get_device_properties`, in bytes or in whole MiB, with the version of the
//! driver's CUDA or of PyTorch where known. Drivers differ by up to 1 %; of several figures, the newest driver's is
//! used. Without a public figure, the memory is the board less 402 MiB, the reserve of an RTX 4070 Ti SUPER. Board
//! sizes are those of `nvidia-smi`. Bus, cache and clocks do not affect memory.

use crate::model::{Context, Model};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Memory available to programs.
#[derive(Clone, Copy)]
enum Memory {
    /// Read on such a card, in bytes.
    Read(u64),
    /// Read on such a card, in MiB.
    ReadMib(u64),
    /// No figure was found.
    Board,
}

use Memory::{Board, Read, ReadMib};

/// A card, in the columns of the table.
#[derive(Clone, Copy)]
struct Row(
    /* name */ &'static str,
    /* name in CUDA */ &'static str,
    /* PCI device */ u16,
    /* compute capability */ (u8, u8),
    /* multiprocessors */ u32,
    Memory,
    /* board, MiB */ u64,
    /* bus, bits */ u32,
    /* L2, bytes */ u32,
    /* clocks of multiprocessors and memory, MHz */ (u32, u32),
    /* context, if it was measured */ Option<Context>,
);

#[rustfmt::skip]
const ROWS: [Row; COUNT] = [
    Row("b200",         "NVIDIA B200",                    0x2901, (10, 0), 148, ReadMib(182_631),        183_359, 7_680, 132_644_864, (1_965,  3_996), None), // PyTorch 2.8+cu128
    Row("h200",         "NVIDIA H200",                    0x2335, (9, 0),  132, Read(150_109_880_320),   143_771, 6_016,  62_914_560, (1_980,  3_201), Some(Context::HOPPER)),
    Row("h100",         "NVIDIA H100 80GB HBM3",          0x2330, (9, 0),  132, Read(85_017_493_504),     81_559, 5_120,  52_428_800, (1_980,  2_619), Some(Context::HOPPER)),
    Row("h100-pcie",    "NVIDIA H100 PCIe",               0x2331, (9, 0),  114, ReadMib(81_008),          81_559, 5_120,  52_428_800, (1_755,  1_593), None), // PyTorch 2.0+cu118
    Row("a100-80gb",    "NVIDIA A100-SXM4-80GB",          0x20b2, (8, 0),  108, Read(84_987_740_160),     81_920, 5_120,  41_943_040, (1_410,  1_593), None), // CUDA 12.2
    Row("a100-40gb",    "NVIDIA A100-SXM4-40GB",          0x20b0, (8, 0),  108, Read(42_297_786_368),     40_960, 5_120,  41_943_040, (1_410,  1_215), None), // CUDA 12.3, PCIe; CUDA 11 reported 42,505,273,344
    Row("l40s",         "NVIDIA L40S",                    0x26b9, (8, 9),  142, Read(47_576_711_168),     46_068,   384, 100_663_296, (2_520,  9_001), None), // CUDA 12.4
    Row("l4",           "NVIDIA L4",                      0x27b8, (8, 9),   58, Read(23_612_293_120),     23_034,   192,  50_331_648, (2_040,  6_251), None), // CUDA 12.0
    Row("a10",          "NVIDIA A10",                     0x2236, (8, 6),   72, Read(23_609_475_072),     23_028,   384,   6_291_456, (1_695,  6_251), None), // CUDA 12.2
    Row("a10g",         "NVIDIA A10G",                    0x2237, (8, 6),   80, ReadMib(22_587),          23_028,   384,   6_291_456, (1_710,  6_251), None), // PyTorch 2.15+cu130
    Row("t4",           "Tesla T4",                       0x1eb8, (7, 5),   40, ReadMib(15_095),          15_360,   256,   4_194_304, (1_590,  5_001), None), // PyTorch 2.8 or newer
    Row("v100-32gb",    "Tesla V100-SXM2-32GB",           0x1db5, (7, 0),   80, Read(34_072_559_616),     32_768, 4_096,   6_291_456, (1_530,    877), None), // CUDA 12.9
    Row("v100-16gb",    "Tesla V100-SXM2-16GB",           0x1db1, (7, 0),   80, Read(16_928_342_016),     16_384, 4_096,   6_291_456, (1_530,    877), None), // CUDA 12.4
    Row("rtx-6000-ada", "NVIDIA RTX 6000 Ada Generation", 0x26b1, (8, 9),  142, ReadMib(48_622),          49_140,   384, 100_663_296, (2_505, 10_001), None), // CUDA 12.1
    Row("rtx-a6000",    "NVIDIA RTX A6000",               0x2230, (8, 6),   84, Read(51_160_023_040),     49_140,   384,   6_291_456, (1_800,  8_001), None), // CUDA 12.7
    Row("rtx-5090",     "NVIDIA GeForce RTX 5090",        0x2b85, (12, 0), 170, Read(33_660_534_784),     32_607,   512, 100_663_296, (2_407, 14_001), None), // CUDA 13.0
    Row("rtx-4090",     "NVIDIA GeForce RTX 4090",        0x2684, (8, 9),  128, Read(25_386_352_640),     24_564,   384,  75_497_472, (2_520, 10_501), None), // CUDA 12.4
    Row("rtx-4080",     "NVIDIA GeForce RTX 4080",        0x2704, (8, 9),   76, ReadMib(16_049),          16_376,   256,  67_108_864, (2_505, 11_201), None),
    Row("rtx-4070",     "NVIDIA GeForce RTX 4070",        0x2786, (8, 9),   46, Board,                    12_282,   192,  37_748_736, (2_475, 10_501), None),
    Row("rtx-4060",     "NVIDIA GeForce RTX 4060",        0x2882, (8, 9),   24, Board,                     8_188,   128,  25_165_824, (2_460,  8_501), None),
    Row("rtx-3090",     "NVIDIA GeForce RTX 3090",        0x2204, (8, 6),   82, Read(25_414_860_800),     24_576,   384,   6_291_456, (1_695,  9_751), None), // CUDA 12.2
    Row("rtx-3060",     "NVIDIA GeForce RTX 3060",        0x2504, (8, 6),   28, Read(12_587_106_304),     12_288,   192,   2_359_296, (1_777,  7_501), None), // CUDA 12.4, the card with 12 GB
];

const COUNT: usize = 22;

/// Named cards, the largest of each line first.
pub const MODELS: [Model; COUNT] = {
    let mut models = [DEFAULT; COUNT];
    let mut index = 0;
    while index < COUNT {
        models[index] = ROWS[index].model();
        index += 1;
    }
    models
};

/// Default card: an H100 with little memory and a small context, so that it fits every machine.
pub(crate) const DEFAULT: Model = Model {
    name: "default",
    device_name: "NVIDIA SimGPU (memlab)",
    memory: 8 * GIB,
    is_memory_read: false,
    board: 8 * GIB + 615 * MIB,
    context: Context { bytes: 256 * MIB, least: 256 * MIB, most: 256 * MIB, is_measured: false },
    ..ROWS[H100].model()
};

const H100: usize = 2;

/// Returns a card of a given size: an H100 with this much memory.
pub(crate) fn of_size(memory: u64) -> Model {
    Model { memory, board: memory.saturating_add(DEFAULT.reserved()), context: Context::HOPPER, ..DEFAULT }
}

impl Row {
    const fn model(self) -> Model {
        let Row(
            name,
            device_name,
            pci_device,
            capability,
            multiprocessors,
            memory,
            board_mib,
            bus_bits,
            l2,
            clocks,
            context,
        ) = self;
        let (memory, is_memory_read) = match memory {
            Read(bytes) => (bytes, true),
            ReadMib(mib) => (mib * MIB, true),
            Board => ((board_mib - 402) * MIB, false),
        };
        Model {
            name,
            device_name,
            pci_device,
            memory,
            is_memory_read,
            board: board_mib * MIB,
            capability,
            multiprocessors,
            l2,
            clock_khz: clocks.0 * 1000,
            memory_clock_khz: clocks.1 * 1000,
            bus_bits,
            context: match context {
                Some(context) => context,
                None => Context::estimate(multiprocessors, capability),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_card_is_plausible() {
        for model in MODELS {
            // GIVEN a card, THEN the driver reserves a small part of it
            let reserved = model.reserved() as f64 / model.board as f64;
            assert!((0.002..0.05).contains(&reserved), "{}: {reserved}", model.name);
            // AND many contexts fit
            assert!(model.context.least < model.context.bytes && model.context.bytes < model.context.most);
            assert!(model.context.most * 8 < model.memory, "{}", model.name);
        }
        // AND the default card is as it was before the table existed
        assert_eq!((DEFAULT.memory, DEFAULT.reserved(), DEFAULT.multiprocessors), (8 << 30, 615 << 20, 132));
        assert_eq!(ROWS[H100].0, "h100");
    }
}
