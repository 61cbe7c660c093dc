//! Types of elements, and the units that compute with them.

use simgpu_support::kernels::{Arithmetic, Unit};

// cudaDataType
pub const FLOAT32: i32 = 0;
pub const FLOAT64: i32 = 1;
pub const FLOAT16: i32 = 2;
const INT8: i32 = 3;
pub const COMPLEX64: i32 = 4;
pub const COMPLEX128: i32 = 5;
const BFLOAT16: i32 = 14;
const FLOAT8: [i32; 2] = [28, 29];

/// Returns the arithmetic of a batch of products of an `m` x `k` and a `k` x `n` matrix, of elements of this
/// `cudaDataType`. `is_rounded`: float32 may be rounded to TF32.
pub fn product(batch: u64, (m, n, k): (u64, u64, u64), kind: i32, is_rounded: bool) -> Arithmetic {
    let (unit, element) = match kind {
        FLOAT32 if is_rounded => (Unit::TensorSingle, 4),
        FLOAT64 => (Unit::Double, 8),
        FLOAT16 | BFLOAT16 => (Unit::TensorHalf, 2),
        COMPLEX128 => (Unit::Double, 16),
        COMPLEX64 => (Unit::Single, 8),
        INT8 => (Unit::TensorByte, 1),
        kind if FLOAT8.contains(&kind) => (Unit::TensorByte, 1),
        _ => (Unit::Single, 4),
    };
    // A product of complex numbers is four products and two sums.
    let factor = if matches!(kind, COMPLEX64 | COMPLEX128) { 4 } else { 1 };
    let of_all = |count: u64| batch.max(1).saturating_mul(count);
    Arithmetic {
        operations: of_all(2 * m * n * k) * factor,
        bytes: of_all(m * k + k * n + m * n).saturating_mul(element),
        unit,
    }
}
