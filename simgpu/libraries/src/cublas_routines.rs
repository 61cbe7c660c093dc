//! Compute routines of cuBLAS: each launches one kernel that does nothing.
//!
//! Routines that compute on the host, and setters of cuBLAS and cuBLASLt, are no-ops.

use crate::cublas;
use crate::elements::{COMPLEX64, COMPLEX128, FLOAT16, FLOAT32, FLOAT64};
use simgpu_support::api::nothing;
use simgpu_support::kernels::{Arithmetic, kernel_name};

/// Exports routines that launch one block.
macro_rules! launching {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        extern "C" fn $name(handle: usize) -> i32 {
            cublas::launch(handle, kernel_name!($name), 1, Arithmetic::default())
        }
    )*};
}

/// Exports a matrix product. The result has `m` rows and `n` columns, and each of its elements is a sum of `k` products.
/// The list in parentheses has the arguments that follow, up to the size of the batch or the type of the elements.
macro_rules! product {
    ($name:ident ($($argument:ident: $type:ty),*) $batch:expr, $kind:expr) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        #[allow(clippy::too_many_arguments)]
        extern "C" fn $name(handle: usize, _a: i32, _b: i32, m: i32, n: i32, k: i32 $(, $argument: $type)*) -> i32 {
            cublas::multiply(handle, kernel_name!($name), [m, n, k], $batch, $kind)
        }
    };
}

/// Exports matrix products with the same arguments.
macro_rules! products {
    ($arguments:tt $batch:expr, $kind:expr; $($name:ident)*) => {
        $(product! { $name $arguments $batch, $kind })*
    };
}

/// Exports matrix products of elements of one type: `T` (single ones) (batches in arrays) (batches at a distance).
macro_rules! products_of {
    ($($kind:ident: ($($single:ident)*) ($($array:ident)*) ($($strided:ident)*))*) => {$(
        products! { () 1, $kind; $($single)* }
        products! {
            (_alpha: usize, _x: usize, _ldx: i32, _y: usize, _ldy: i32, _beta: usize, _z: usize, _ldz: i32, count: i32)
            count, $kind; $($array)*
        }
        products! {
            (
                _alpha: usize, _x: usize, _ldx: i32, _to_x: i64, _y: usize, _ldy: i32, _to_y: i64, _beta: usize,
                _z: usize, _ldz: i32, _to_z: i64, count: i32
            )
            count, $kind; $($strided)*
        }
    )*};
}

products_of! {
    FLOAT16: (cublasHgemm) (cublasHgemmBatched) (cublasHgemmStridedBatched)
    FLOAT32: (cublasSgemm_v2) (cublasSgemmBatched) (cublasSgemmStridedBatched)
    FLOAT64: (cublasDgemm_v2) (cublasDgemmBatched) (cublasDgemmStridedBatched)
    COMPLEX64:
        (cublasCgemm3m cublasCgemm_v2) (cublasCgemm3mBatched cublasCgemmBatched)
        (cublasCgemm3mStridedBatched cublasCgemmStridedBatched)
    COMPLEX128:
        (cublasZgemm3m cublasZgemm_v2) (cublasZgemmBatched) (cublasZgemmStridedBatched)
}

products! {
    (_alpha: usize, _x: usize, kind: i32) 1, kind;
    cublasCgemm3mEx cublasCgemmEx cublasGemmEx cublasSgemmEx
}

products! {
    (
        _alpha: usize, _x: usize, kind: i32, _ldx: i32, _y: usize, _kind_y: i32, _ldy: i32, _beta: usize, _z: usize,
        _kind_z: i32, _ldz: i32, count: i32
    )
    count, kind; cublasGemmBatchedEx
}

products! {
    (
        _alpha: usize, _x: usize, kind: i32, _ldx: i32, _to_x: i64, _y: usize, _kind_y: i32, _ldy: i32, _to_y: i64,
        _beta: usize, _z: usize, _kind_z: i32, _ldz: i32, _to_z: i64, count: i32
    )
    count, kind; cublasGemmStridedBatchedEx
}

launching! {
    cublasAsumEx cublasAxpyEx cublasCaxpy_v2 cublasCcopy_v2 cublasCdgmm cublasCdotc_v2
    cublasCdotu_v2 cublasCgbmv_v2 cublasCgeam cublasCgelsBatched cublasCgemvBatched
    cublasCgemvStridedBatched cublasCgemv_v2 cublasCgeqrfBatched cublasCgerc_v2 cublasCgeru_v2
    cublasCgetrfBatched cublasCgetriBatched cublasCgetrsBatched cublasChbmv_v2 cublasChemm_v2
    cublasChemv_v2 cublasCher2_v2 cublasCher2k_v2 cublasCher_v2 cublasCherk3mEx cublasCherkEx
    cublasCherk_v2 cublasCherkx cublasChpmv_v2 cublasChpr2_v2 cublasChpr_v2 cublasCmatinvBatched
    cublasCopyEx cublasCrot_v2 cublasCscal_v2 cublasCsrot_v2 cublasCsscal_v2 cublasCswap_v2
    cublasCsymm_v2 cublasCsymv_v2 cublasCsyr2_v2 cublasCsyr2k_v2 cublasCsyr_v2 cublasCsyrk3mEx
    cublasCsyrkEx cublasCsyrk_v2 cublasCsyrkx cublasCtbmv_v2 cublasCtbsv_v2 cublasCtpmv_v2
    cublasCtpsv_v2 cublasCtrmm_v2 cublasCtrmv_v2 cublasCtrsmBatched cublasCtrsm_v2 cublasCtrsv_v2
    cublasDasum_v2 cublasDaxpy_v2 cublasDcopy_v2 cublasDdgmm cublasDdot_v2 cublasDgbmv_v2
    cublasDgeam cublasDgelsBatched cublasDgemmGroupedBatched cublasDgemvBatched
    cublasDgemvStridedBatched cublasDgemv_v2 cublasDgeqrfBatched cublasDger_v2 cublasDgetrfBatched
    cublasDgetriBatched cublasDgetrsBatched cublasDmatinvBatched cublasDnrm2_v2 cublasDotEx
    cublasDotcEx cublasDrot_v2 cublasDrotm_v2 cublasDsbmv_v2 cublasDscal_v2 cublasDspmv_v2
    cublasDspr2_v2 cublasDspr_v2 cublasDswap_v2 cublasDsymm_v2 cublasDsymv_v2 cublasDsyr2_v2
    cublasDsyr2k_v2 cublasDsyr_v2 cublasDsyrk_v2 cublasDsyrkx cublasDtbmv_v2 cublasDtbsv_v2
    cublasDtpmv_v2 cublasDtpsv_v2 cublasDtrmm_v2 cublasDtrmv_v2 cublasDtrsmBatched cublasDtrsm_v2
    cublasDtrsv_v2 cublasDzasum_v2 cublasDznrm2_v2 cublasGemmGroupedBatchedEx cublasHSHgemvBatched
    cublasHSHgemvStridedBatched cublasHSSgemvBatched cublasHSSgemvStridedBatched cublasIcamax_v2
    cublasIcamin_v2 cublasIdamax_v2 cublasIdamin_v2 cublasIsamax_v2 cublasIsamin_v2 cublasIzamax_v2
    cublasIzamin_v2 cublasNrm2Ex cublasRotEx cublasRotmEx cublasSasum_v2 cublasSaxpy_v2 cublasScalEx
    cublasScasum_v2 cublasScnrm2_v2 cublasScopy_v2 cublasSdgmm cublasSdot_v2 cublasSgbmv_v2
    cublasSgeam cublasSgelsBatched cublasSgemmGroupedBatched cublasSgemvBatched
    cublasSgemvStridedBatched cublasSgemv_v2 cublasSgeqrfBatched cublasSger_v2 cublasSgetrfBatched
    cublasSgetriBatched cublasSgetrsBatched cublasSmatinvBatched cublasSnrm2_v2 cublasSrot_v2
    cublasSrotm_v2 cublasSsbmv_v2 cublasSscal_v2 cublasSspmv_v2 cublasSspr2_v2 cublasSspr_v2
    cublasSswap_v2 cublasSsymm_v2 cublasSsymv_v2 cublasSsyr2_v2 cublasSsyr2k_v2 cublasSsyr_v2
    cublasSsyrk_v2 cublasSsyrkx cublasStbmv_v2 cublasStbsv_v2 cublasStpmv_v2 cublasStpsv_v2
    cublasStrmm_v2 cublasStrmv_v2 cublasStrsmBatched cublasStrsm_v2 cublasStrsv_v2 cublasSwapEx
    cublasTSSgemvBatched cublasTSSgemvStridedBatched cublasTSTgemvBatched
    cublasTSTgemvStridedBatched cublasUint8gemmBias cublasZaxpy_v2 cublasZcopy_v2 cublasZdgmm
    cublasZdotc_v2 cublasZdotu_v2 cublasZdrot_v2 cublasZdscal_v2 cublasZgbmv_v2 cublasZgeam
    cublasZgelsBatched cublasZgemvBatched cublasZgemvStridedBatched cublasZgemv_v2
    cublasZgeqrfBatched cublasZgerc_v2 cublasZgeru_v2 cublasZgetrfBatched cublasZgetriBatched
    cublasZgetrsBatched cublasZhbmv_v2 cublasZhemm_v2 cublasZhemv_v2 cublasZher2_v2 cublasZher2k_v2
    cublasZher_v2 cublasZherk_v2 cublasZherkx cublasZhpmv_v2 cublasZhpr2_v2 cublasZhpr_v2
    cublasZmatinvBatched cublasZrot_v2 cublasZscal_v2 cublasZswap_v2 cublasZsymm_v2 cublasZsymv_v2
    cublasZsyr2_v2 cublasZsyr2k_v2 cublasZsyr_v2 cublasZsyrk_v2 cublasZsyrkx cublasZtbmv_v2
    cublasZtbsv_v2 cublasZtpmv_v2 cublasZtpsv_v2 cublasZtpttr cublasZtrmm_v2 cublasZtrmv_v2
    cublasZtrsmBatched cublasZtrsm_v2 cublasZtrsv_v2 cublasZtrttp
}

nothing! {
    cublasCrotg_v2 cublasDrotg_v2 cublasDrotmg_v2 cublasGetEmulationSpecialValuesSupport
    cublasGetEmulationStrategy cublasGetFixedPointEmulationMantissaBitCountPointer
    cublasGetFixedPointEmulationMantissaBitOffset cublasGetFixedPointEmulationMantissaControl
    cublasGetFixedPointEmulationMaxMantissaBitCount cublasGetLoggerCallback cublasGetMatrix
    cublasGetMatrixAsync cublasGetVector cublasGetVectorAsync cublasLoggerConfigure
    cublasLtMatmulAlgoConfigSetAttribute cublasLtMatmulDescSetAttribute
    cublasLtMatmulPreferenceDestroy cublasLtMatmulPreferenceSetAttribute cublasRotgEx cublasRotmgEx
    cublasSetEmulationSpecialValuesSupport cublasSetEmulationStrategy
    cublasSetFixedPointEmulationMantissaBitCountPointer
    cublasSetFixedPointEmulationMantissaBitOffset cublasSetFixedPointEmulationMantissaControl
    cublasSetFixedPointEmulationMaxMantissaBitCount cublasSetLoggerCallback cublasSetMatrix
    cublasSetMatrixAsync cublasSetVector cublasSetVectorAsync cublasSrotg_v2 cublasSrotmg_v2
    cublasZrotg_v2
}
