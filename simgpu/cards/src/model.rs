//! What a card is: the figures that the driver, the runtime and NVML answer with.

const MIB: u64 = 1 << 20;

/// The width of every card's PCI Express.
pub const LINK_LANES: u32 = 16;

/// A card. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// How `--card` and `SIMGPU_CARD` name it.
    pub name: &'static str,
    /// Its name in CUDA, NVML and `nvidia-smi`.
    pub device_name: &'static str,
    /// The device number on the PCI bus.
    pub pci_device: u16,
    /// What `cuDeviceTotalMem` says: all that programs can have, contexts included. It differs by up to 1 % between
    /// drivers.
    pub memory: u64,
    /// Whether `memory` was read on such a card; else it is `board` less what similar cards keep back.
    pub is_memory_read: bool,
    /// What NVML and `nvidia-smi` say: `memory` and what the driver keeps for itself.
    pub board: u64,
    /// Compute capability, such as (9, 0).
    pub capability: (u8, u8),
    /// Number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// L2 cache.
    pub l2: u32,
    /// Highest clock of the multiprocessors, in kHz.
    pub clock_khz: u32,
    /// Highest clock of the memory, in kHz.
    pub memory_clock_khz: u32,
    /// Width of the memory bus, in bits.
    pub bus_bits: u32,
    /// What a process takes beside what it allocates.
    pub context: Context,
}

impl Model {
    /// What one multiprocessor and one block can have.
    pub fn limits(&self) -> Limits {
        Limits::of(self.capability)
    }

    /// Bytes per second of its memory at the highest clock: two transfers for each cycle.
    pub fn memory_bandwidth(&self) -> u64 {
        u64::from(self.memory_clock_khz) * 1000 * 2 * u64::from(self.bus_bits) / 8
    }

    /// The generation of its PCI Express.
    pub fn link_generation(&self) -> u32 {
        match self.capability {
            (7, _) => 3,
            (8, _) => 4,
            _ => 5,
        }
    }

    /// Bytes per second of its link to the host in one direction (PCI-SIG: 8, 16 and 32 GT/s, 128 bits in 130).
    pub fn link_bandwidth(&self) -> u64 {
        let transfers = 1_000_000_000 << self.link_generation();
        transfers * u64::from(LINK_LANES) / 8 * 128 / 130
    }

    /// What the driver keeps of the board's memory for itself.
    pub fn reserved(&self) -> u64 {
        self.board - self.memory
    }
}

/// What a process takes beside what it allocates: the context, the kernels that were loaded, and the libraries' own
/// memory. A real process starts at `least` and gets near `bytes` as it loads kernels; the simulated one takes `bytes` at
/// once. Without cuBLAS's workspaces, which PyTorch allocates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Context {
    /// In a training program after some steps.
    pub bytes: u64,
    /// The least: a program that has made one tensor.
    pub least: u64,
    /// The most to be expected.
    pub most: u64,
    /// Whether it was measured on such a card.
    pub is_measured: bool,
}

impl Context {
    /// H100 80GB HBM3 and H200 (driver 580.159, PyTorch 2.11.0+cu130), NVML's used memory less PyTorch's reserved, the same
    /// on both: 524 MiB for the bare context, 616 with one tensor, 682 with cuBLAS, 764 after steps of a transformer with
    /// autocast, convolutions and an LSTM. Long runs were seen at 0.68 to 0.80 GiB.
    pub(crate) const HOPPER: Context =
        Context { bytes: 764 * MIB, least: 616 * MIB, most: 820 * MIB, is_measured: true };

    /// An estimate: the driver sets aside 1 KiB of stack for each thread that can run (264 of the 524 MiB on Hopper), and
    /// the rest is what Hopper takes. Kernels of other cards differ in size, so the least is without any.
    pub(crate) const fn estimate(multiprocessors: u32, capability: (u8, u8)) -> Context {
        let stacks = stacks(multiprocessors, capability);
        let rest = Context::HOPPER.bytes - stacks_of_hopper();
        Context { bytes: stacks + rest, least: stacks + 100 * MIB, most: stacks + rest + 120 * MIB, is_measured: false }
    }
}

const fn stacks(multiprocessors: u32, capability: (u8, u8)) -> u64 {
    multiprocessors as u64 * Limits::of(capability).threads as u64 * 1024
}

const fn stacks_of_hopper() -> u64 {
    stacks(132, (9, 0))
}

/// Limits that follow from the compute capability (CUDA C++ Programming Guide, "Technical Specifications per Compute
/// Capability").
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Threads of a multiprocessor.
    pub threads: u32,
    /// Blocks of a multiprocessor.
    pub blocks: u32,
    /// Shared memory of a multiprocessor.
    pub shared: u32,
    /// The most shared memory that a block can ask for.
    pub shared_of_a_block: u32,
    /// Shared memory of each block that the system keeps.
    pub shared_reserved: u32,
    /// How many times faster single precision is than double.
    pub single_to_double: u32,
}

impl Limits {
    const fn of(capability: (u8, u8)) -> Limits {
        const KIB: u32 = 1024;
        let (threads, blocks, shared, single_to_double) = match capability {
            (7, 0) => (2048, 32, 96 * KIB, 2),
            (7, _) => (1024, 16, 64 * KIB, 32),
            (8, 0) => (2048, 32, 164 * KIB, 2),
            (8, 6) => (1536, 16, 100 * KIB, 32),
            (8, _) => (1536, 24, 100 * KIB, 64),
            (9 | 10, _) => (2048, 32, 228 * KIB, 2),
            _ => (1536, 24, 100 * KIB, 64),
        };
        let shared_reserved = if capability.0 < 8 { 0 } else { KIB };
        let shared_of_a_block = shared - shared_reserved;
        Limits { threads, blocks, shared, shared_of_a_block, shared_reserved, single_to_double }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_for_the_measured_card_is_what_was_measured() {
        // GIVEN the rule for cards that nobody measured, WHEN it is used for the card that it was made from
        let estimate = Context::estimate(132, (9, 0));
        // THEN it says what was measured, and that it is an estimate
        assert_eq!(
            estimate,
            Context { least: estimate.least, most: estimate.most, is_measured: false, ..Context::HOPPER }
        );
        assert!(estimate.least < Context::HOPPER.least && estimate.most > Context::HOPPER.most);
    }
}
