//! Model of a card: the figures that the driver, the runtime and NVML return.

const MIB: u64 = 1 << 20;

/// Width of every card's PCI Express link.
pub const LINK_LANES: u32 = 16;

/// A card. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Name for `--card` and `SIMGPU_CARD`.
    pub name: &'static str,
    /// Name in CUDA, NVML and `nvidia-smi`.
    pub device_name: &'static str,
    /// Device number on the PCI bus.
    pub pci_device: u16,
    /// Bytes that `cuDeviceTotalMem` returns: all memory available to programs, contexts included.
    ///
    /// It differs by up to 1 % between drivers.
    pub memory: u64,
    /// True if `memory` was read on such a card; else it is `board` less the reserve of similar cards.
    pub is_memory_read: bool,
    /// Bytes that NVML and `nvidia-smi` report: `memory` and the driver's reserve.
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
    /// Memory of a process besides its allocations.
    pub context: Context,
}

impl Model {
    /// Returns the limits of one multiprocessor and one block.
    pub fn limits(&self) -> Limits {
        Limits::of(self.capability)
    }

    /// Returns the bytes per second of its memory at the highest clock: two transfers per cycle.
    pub fn memory_bandwidth(&self) -> u64 {
        u64::from(self.memory_clock_khz) * 1000 * 2 * u64::from(self.bus_bits) / 8
    }

    /// Returns its additions and multiplications per second at the highest clock.
    pub fn rates(&self) -> Rates {
        let limits = self.limits();
        let cycles = u64::from(self.multiprocessors) * u64::from(self.clock_khz) * 1000;
        let single = cycles * u64::from(limits.single);
        // The tensor cores of GeForce cards add in float32 at half the rate.
        let tensor_half =
            cycles * u64::from(limits.tensor_half) / if self.device_name.contains("GeForce") { 2 } else { 1 };
        Rates {
            single,
            double: single / u64::from(limits.single_to_double),
            tensor_single: if self.capability < (8, 0) { single } else { tensor_half / 2 },
            tensor_half,
            tensor_byte: if self.capability < (8, 9) { tensor_half } else { tensor_half * 2 },
        }
    }

    /// Returns the generation of its PCI Express link.
    pub fn link_generation(&self) -> u32 {
        match self.capability {
            (7, _) => 3,
            (8, _) => 4,
            _ => 5,
        }
    }

    /// Returns the bytes per second of its link to the host in one direction (PCI-SIG: 8, 16 and 32 GT/s, 128 bits in
    /// 130).
    pub fn link_bandwidth(&self) -> u64 {
        let transfers = 1_000_000_000 << self.link_generation();
        transfers * u64::from(LINK_LANES) / 8 * 128 / 130
    }

    /// Returns the bytes of the board that the driver reserves.
    pub fn reserved(&self) -> u64 {
        self.board - self.memory
    }
}

/// Memory of a process besides its allocations: the context, loaded kernels, and the libraries' own memory.
///
/// A real process starts at `least` and approaches `bytes` as it loads kernels; the simulated one takes `bytes` at
/// once. Excludes cuBLAS's workspaces, which PyTorch allocates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Context {
    /// Bytes in a training program after some steps.
    pub bytes: u64,
    /// Minimum: a program that has made one tensor.
    pub least: u64,
    /// Expected maximum.
    pub most: u64,
    /// True if it was measured on such a card.
    pub is_measured: bool,
}

impl Context {
    /// Measured on an H100 80GB HBM3 and an H200 (driver 580.159, PyTorch 2.11.0+cu130) as NVML's used memory less
    /// PyTorch's reserved, the same on both.
    ///
    /// 524 MiB for the bare context, 616 with one tensor, 682 with cuBLAS, 764 after steps of a transformer with
    /// autocast, convolutions and an LSTM. Long runs showed 0.68 to 0.80 GiB.
    pub(crate) const HOPPER: Context =
        Context { bytes: 764 * MIB, least: 616 * MIB, most: 820 * MIB, is_measured: true };

    /// Estimates the context of a card that was not measured.
    ///
    /// The driver sets aside 1 KiB of stack for each thread that can run (264 of the 524 MiB on Hopper). The rest is
    /// Hopper's. Kernels of other cards differ in size, so the minimum excludes kernels.
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

/// Additions and multiplications per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// float32, outside of tensor cores.
    pub single: u64,
    pub double: u64,
    /// float32 rounded to TF32, in tensor cores.
    pub tensor_single: u64,
    /// float16 and bfloat16, in tensor cores.
    pub tensor_half: u64,
    /// Types of one byte, in tensor cores.
    pub tensor_byte: u64,
}

/// Limits that follow from the compute capability (CUDA C++ Programming Guide, "Technical Specifications per Compute
/// Capability", "Arithmetic Instructions"; tensor cores: NVIDIA's papers on each architecture).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Threads per multiprocessor.
    pub threads: u32,
    /// Blocks per multiprocessor.
    pub blocks: u32,
    /// Shared memory of a multiprocessor.
    pub shared: u32,
    /// Maximum shared memory that a block can request.
    pub shared_of_a_block: u32,
    /// Shared memory of each block that the system reserves.
    pub shared_reserved: u32,
    /// Ratio of single-precision to double-precision speed.
    pub single_to_double: u32,
    /// Additions and multiplications in float32 of a multiprocessor per cycle.
    pub single: u32,
    /// The same of tensor cores in float16.
    pub tensor_half: u32,
}

impl Limits {
    const fn of(capability: (u8, u8)) -> Limits {
        const KIB: u32 = 1024;
        let (threads, blocks, shared, single_to_double, single, tensor_half) = match capability {
            (7, 0) => (2048, 32, 96 * KIB, 2, 128, 1024),
            (7, _) => (1024, 16, 64 * KIB, 32, 128, 1024),
            (8, 0) => (2048, 32, 164 * KIB, 2, 128, 2048),
            (8, 6) => (1536, 16, 100 * KIB, 32, 256, 1024),
            (8, _) => (1536, 24, 100 * KIB, 64, 256, 1024),
            (9, _) => (2048, 32, 228 * KIB, 2, 256, 4096),
            (10, _) => (2048, 32, 228 * KIB, 2, 256, 8192),
            _ => (1536, 24, 100 * KIB, 64, 256, 1024),
        };
        let shared_reserved = if capability.0 < 8 { 0 } else { KIB };
        let shared_of_a_block = shared - shared_reserved;
        Limits { threads, blocks, shared, shared_of_a_block, shared_reserved, single_to_double, single, tensor_half }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_data_sheets() {
        // In 10^12 operations per second. The sheets use boost clocks, which are up to 8 % lower than the highest ones.
        let sheets = [
            ("v100-16gb", 15.7, 125.0),
            ("t4", 8.1, 65.0),
            ("a100-80gb", 19.5, 312.0),
            ("a10", 31.2, 125.0),
            ("l40s", 91.6, 362.0),
            ("h100", 67.0, 989.0),
            ("b200", 75.0, 2250.0),
            ("rtx-5090", 104.8, 209.5),
        ];
        for (name, single, tensor_half) in sheets {
            let rates = crate::find(name).expect("a card of the table").rates();
            for (rate, sheet) in [(rates.single, single), (rates.tensor_half, tensor_half)] {
                let share = rate as f64 / 1e12 / sheet;
                assert!((0.97..1.09).contains(&share), "{name}: {rate} of {sheet}e12");
            }
        }
    }

    #[test]
    fn an_estimate_for_the_measured_card_is_what_was_measured() {
        // GIVEN the rule for unmeasured cards, WHEN it is used for the card that it was derived from
        let estimate = Context::estimate(132, (9, 0));
        // THEN it returns the measured figures, marked as an estimate
        assert_eq!(
            estimate,
            Context { least: estimate.least, most: estimate.most, is_measured: false, ..Context::HOPPER }
        );
        assert!(estimate.least < Context::HOPPER.least && estimate.most > Context::HOPPER.most);
    }
}
