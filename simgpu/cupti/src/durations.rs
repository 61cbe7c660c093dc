//! Durations of the device's work. Nothing is computed, so they are estimates by a rule:
//!
//! - A kernel takes 2 µs, and the longer of two times: that of its memory traffic, and that of its arithmetic. It reaches
//!   a usual share of the card's highest rates.
//! - The simulated libraries know their arithmetic and traffic. Of the kernels that PyTorch brings, those of attention,
//!   of elementwise operations and of optimizers are known by their names and numbers of threads. For others, a thread
//!   moves 32 bytes.
//! - A copy between host and device takes 1 µs and the time of its bytes on the link. A copy on the device takes the
//!   time of twice its bytes in memory, and a fill that of its bytes in memory.

use std::ffi::CStr;

use simgpu_observer::{Arithmetic, Dimensions, MemoryKind, Speeds, Task, Unit};

const KERNEL_NS: u64 = 2_000;
const TRANSFER_NS: u64 = 1_000;
const SECOND: u128 = 1_000_000_000;

/// Share of the highest rates that kernels reach, in percent.
const MEMORY_SHARE: u128 = 60;
const ARITHMETIC_SHARE: u128 = 45;

const BYTES_OF_A_THREAD: u64 = 32;

/// Elements of a thread of an elementwise kernel that does not move vectors.
const ELEMENTS_OF_A_THREAD: u64 = 4;

/// Operands of an elementwise kernel whose name does not have their number: two inputs and an output.
const OPERANDS: u64 = 3;

/// Elements that a block of `multi_tensor_apply_kernel` moves of each tensor.
const CHUNK: u64 = 65_536;

/// Returns the duration of a task on a card, in nanoseconds.
pub fn duration(task: &Task, speeds: Speeds) -> u64 {
    let on_device = |kind: MemoryKind| !matches!(kind, MemoryKind::Pageable | MemoryKind::Pinned);
    match *task {
        Task::Kernel { name, grid, block, arithmetic, .. } => {
            let work = match arithmetic == Arithmetic::default() && !name.is_null() {
                // SAFETY: the driver keeps the names of its functions.
                true => named(&unsafe { CStr::from_ptr(name) }.to_string_lossy(), grid, block),
                false => arithmetic,
            };
            let of_memory = time(work.bytes, speeds.memory) * 100 / MEMORY_SHARE;
            let of_arithmetic = time(work.operations, speeds.arithmetic[work.unit as usize]) * 100 / ARITHMETIC_SHARE;
            KERNEL_NS + in_nanoseconds(of_memory.max(of_arithmetic))
        }
        Task::Copy { from, to, bytes, .. } if on_device(from) && on_device(to) => {
            TRANSFER_NS + in_nanoseconds(time(bytes, speeds.memory) * 2)
        }
        Task::Copy { bytes, .. } => TRANSFER_NS + in_nanoseconds(time(bytes, speeds.link)),
        Task::Fill { bytes, .. } => TRANSFER_NS + in_nanoseconds(time(bytes, speeds.memory)),
    }
}

fn time(amount: u64, per_second: u64) -> u128 {
    u128::from(amount) * SECOND / u128::from(per_second.max(1))
}

fn in_nanoseconds(time: u128) -> u64 {
    u64::try_from(time).unwrap_or(u64::MAX)
}

fn count(dimensions: Dimensions) -> u64 {
    dimensions.into_iter().map(u64::from).fold(1, u64::saturating_mul)
}

/// Returns what a kernel with this mangled name does.
fn named(name: &str, grid: Dimensions, block: Dimensions) -> Arithmetic {
    let (blocks, threads) = (count(grid), count(grid).saturating_mul(count(block)));
    let element = if name.contains("Half") || name.contains("BFloat16") { 2 } else { 4 };
    let bytes = if let Some(work) = attention(name, grid) {
        return work;
    } else if let Some((_, metadata)) = name.split_once("multi_tensor_apply_kernel") {
        // An optimizer reads all its tensors and writes all but the gradient; others write one.
        let tensors = numbers(metadata).next().unwrap_or(1);
        let moved = if metadata.contains("FusedOptimizer") { 2 * tensors - 1 } else { tensors + 1 };
        blocks.saturating_mul(CHUNK * element * moved)
    } else if let Some((before, arguments)) = name.split_once("elementwise_kernelI") {
        let vector = numbers(arguments).next().filter(|_| before.ends_with("vectorized_")).unwrap_or(0);
        let operands = arguments.split_once("5arrayIPcLm").and_then(|(_, number)| leading(number)).unwrap_or(OPERANDS);
        threads.saturating_mul(vector.max(ELEMENTS_OF_A_THREAD) * operands * element)
    } else {
        threads.saturating_mul(BYTES_OF_A_THREAD)
    };
    Arithmetic { bytes, ..Arithmetic::default() }
}

/// Returns what a kernel of FlashAttention does, or one of `fmha_cutlass`. Queries and keys are taken to be as many.
fn attention(name: &str, [blocks, y, z]: Dimensions) -> Option<Arithmetic> {
    let sequences = u64::from(y) * u64::from(z);
    // Two products of matrices in forward; five in backward.
    let of = |products: u64, length: u64, head: u64, unit| Arithmetic {
        operations: (2 * products * head).saturating_mul(length.saturating_mul(length)).saturating_mul(sequences),
        bytes: 0,
        unit,
    };
    if let Some((_, arguments)) = name.split_once("fmha_cutlassF_") {
        let (_, sizes) = arguments.split_once("aligned_")?;
        let (rows, columns) = (leading(sizes)?, leading(sizes.split_once('x')?.1)?);
        let unit = if arguments.starts_with("f32") { Unit::TensorSingle } else { Unit::TensorHalf };
        return Some(of(2, u64::from(blocks) * rows, columns, unit));
    }
    let (_, arguments) = name.split_once("flash_")?;
    let is_backward = arguments.starts_with("bwd_dq_dk_dv");
    if !is_backward && !arguments.starts_with("fwd_kernel") {
        return None;
    }
    let mut traits = numbers(arguments.split_once("kernel_traitsI")?.1);
    let (head, rows, columns) = (traits.next()?, traits.next()?, traits.next()?);
    // Blocks divide the queries in forward, and the keys in backward.
    let (products, length) = if is_backward { (5, columns) } else { (2, rows) };
    let whole = of(products, u64::from(blocks) * length, head, Unit::TensorHalf);
    // Dropout, and whether half is masked.
    let is_causal = arguments.split_once("EELb").is_some_and(|(_, flags)| flags[1..].starts_with("ELb1"));
    Some(Arithmetic { operations: if is_causal { whole.operations / 2 } else { whole.operations }, ..whole })
}

/// Returns the integers among mangled template arguments.
fn numbers(arguments: &str) -> impl Iterator<Item = u64> {
    arguments.split("Li").skip(1).filter_map(leading)
}

/// Returns the number at the start of a text.
fn leading(text: &str) -> Option<u64> {
    let end = text.find(|symbol: char| !symbol.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use simgpu_observer::UNITS;

    use super::*;

    /// 1 TB/s of memory, 50 GB/s to the host, and 10^14 operations a second.
    const SPEEDS: Speeds =
        Speeds { memory: 1_000_000_000_000, link: 50_000_000_000, arithmetic: [100_000_000_000_000; UNITS] };

    fn kernel(name: &'static CStr, grid: Dimensions, block: u32, arithmetic: Arithmetic) -> u64 {
        let block = [block, 1, 1];
        duration(&Task::Kernel { name: name.as_ptr(), grid, block, shared: 0, registers: 32, arithmetic }, SPEEDS)
    }

    #[test]
    fn durations_follow_from_size_and_card() {
        // GIVEN a card, WHEN the duration of copies and fills is computed
        let copy =
            |from, to| duration(&Task::Copy { from, to, devices: [0, 0], bytes: 1_000_000, is_async: true }, SPEEDS);
        // THEN host copies use the link, and device copies use memory twice
        assert_eq!(copy(MemoryKind::Pinned, MemoryKind::Device), 1_000 + 20_000);
        assert_eq!(copy(MemoryKind::Device, MemoryKind::Pageable), 1_000 + 20_000);
        assert_eq!(copy(MemoryKind::Device, MemoryKind::Managed), 1_000 + 2_000);
        assert_eq!(duration(&Task::Fill { bytes: 1_000_000, value: 0, is_async: true }, SPEEDS), 1_000 + 1_000);
    }

    #[test]
    fn a_kernel_takes_the_longer_of_arithmetic_and_traffic() {
        let of = |operations, bytes| kernel(c"k", [1; 3], 1, Arithmetic { operations, bytes, unit: Unit::TensorHalf });
        // 45 % of 10^14 operations a second, and 60 % of 10^12 bytes
        assert_eq!(of(45_000_000_000, 8_000), 2_000 + 1_000_000);
        assert_eq!(of(45_000_000, 60_000_000), 2_000 + 100_000);
    }

    #[test]
    fn kernels_of_pytorch_are_known_by_their_names() {
        let bytes = |name, threads| named(name, [100, 1, 1], [threads, 1, 1]).bytes / 100;
        let of_a_thread = [
            ("_ZN2at6native13reduce_kernelILi512ELi1E", 32),
            // 8 elements of 2 bytes, an input and an output
            (
                "_ZN2at6native29vectorized_elementwise_kernelILi8ENS0_10AbsFunctorIN3c108BFloat16EEESt5arrayIPcLm2EELb0EEEviT0_T1_",
                32,
            ),
            ("_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastINS0_10AbsFunctorIfEEEEvi", 48),
        ];
        for (name, expected) in of_a_thread {
            assert_eq!(bytes(name, 128) / 128, expected, "{name}");
        }
        // A block moves 65,536 elements of each tensor: of four tensors of fused Adam 7 times, of one tensor twice.
        let of_an_element = |name| bytes(name, 512) / 65_536;
        assert_eq!(
            of_an_element("25multi_tensor_apply_kernelINS1_32FusedOptimizerTensorListMetadataILi4EEENS1_20F"),
            28
        );
        assert_eq!(of_an_element("25multi_tensor_apply_kernelINS1_18TensorListMetadataILi1EEENS1_14UnaryOpF"), 8);
    }

    #[test]
    fn attention_grows_with_the_square_of_the_length() {
        // GIVEN 16 heads of 8 sequences of 1,024 tokens, with 64 elements a head
        let operations =
            |name: &str, blocks| attention(name, [blocks, 8, 16]).expect("a kernel of attention").operations;
        let forward = 4 * 64 * 1024 * 1024 * 8 * 16;
        let name = |kind, causal| {
            format!(
                "_ZN13pytorch_flash16flash_{kind}I23Flash_fwd_kernel_traitsILi64ELi128ELi64ELi4ELb0ELb0EN7cutlass10bfloat16_t\
                 E19Flash_kernel_traitsILi64ELi128ELi64ELi4ES3_EELb0ELb{causal}ELb0EEEvNS_16Flash_fwd_paramsE"
            )
        };
        // THEN all pairs of tokens are multiplied, or half of them
        assert_eq!(operations(&name("fwd_kernel", 0), 8), forward);
        assert_eq!(operations(&name("fwd_kernel", 1), 8), forward / 2);
        assert_eq!(operations(&name("bwd_dq_dk_dv_loop_seqk_parallel_kernel", 1), 16), forward * 5 / 4);
        assert_eq!(operations("fmha_cutlassF_f32_aligned_64x64_rf_sm80", 16), forward);
        assert!(attention(&name("bwd_dot_do_o_kernel", 1), [8; 3]).is_none());
    }
}
