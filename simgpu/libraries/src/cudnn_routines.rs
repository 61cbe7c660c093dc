//! Compute routines of cuDNN, each of which launches one kernel that does nothing.
//!
//! Setters of values that are never read are no-ops.

use crate::cudnn_stream;
use simgpu_support::api::nothing;
use simgpu_support::kernels::{Arithmetic, kernel_name};

/// Exports routines that launch one block.
macro_rules! launching {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        extern "C" fn $name(handle: usize) -> i32 {
            cudnn_stream::launch(handle, kernel_name!($name), Arithmetic::default())
        }
    )*};
}

launching! {
    cudnnActivationBackward cudnnActivationForward cudnnAddTensor cudnnBatchNormalizationBackward
    cudnnBatchNormalizationBackwardEx cudnnBatchNormalizationForwardInference
    cudnnBatchNormalizationForwardTraining cudnnBatchNormalizationForwardTrainingEx cudnnCTCLoss
    cudnnCTCLoss_v8 cudnnConvolutionBackwardBias cudnnConvolutionBackwardData
    cudnnConvolutionBackwardFilter cudnnConvolutionBiasActivationForward cudnnConvolutionForward
    cudnnDivisiveNormalizationBackward cudnnDivisiveNormalizationForward cudnnDropoutBackward
    cudnnDropoutForward cudnnLRNCrossChannelBackward cudnnLRNCrossChannelForward
    cudnnMultiHeadAttnBackwardData cudnnMultiHeadAttnBackwardWeights cudnnMultiHeadAttnForward
    cudnnNormalizationBackward cudnnNormalizationForwardInference cudnnNormalizationForwardTraining
    cudnnOpTensor cudnnPoolingBackward cudnnPoolingForward cudnnReduceTensor cudnnScaleTensor
    cudnnSoftmaxBackward cudnnSoftmaxForward cudnnSpatialTfGridGeneratorBackward
    cudnnSpatialTfGridGeneratorForward cudnnSpatialTfSamplerBackward cudnnSpatialTfSamplerForward
    cudnnTransformFilter cudnnTransformTensor cudnnTransformTensorEx
}

nothing! {
    cudnnDestroyActivationDescriptor cudnnDestroyAttnDescriptor cudnnDestroyCTCLossDescriptor
    cudnnDestroyConvolutionDescriptor cudnnDestroyDropoutDescriptor
    cudnnDestroyFusedOpsConstParamPack cudnnDestroyFusedOpsPlan cudnnDestroyFusedOpsVariantParamPack
    cudnnDestroyLRNDescriptor cudnnDestroyOpTensorDescriptor cudnnDestroyPoolingDescriptor
    cudnnDestroyReduceTensorDescriptor cudnnDestroySeqDataDescriptor
    cudnnDestroySpatialTransformerDescriptor cudnnDestroyTensorTransformDescriptor
    cudnnRNNGetClip_v8 cudnnRNNGetClip_v9 cudnnRNNSetClip_v8 cudnnRNNSetClip_v9
    cudnnReorderFilterAndBias cudnnRestoreDropoutDescriptor cudnnSetActivationDescriptor
    cudnnSetActivationDescriptorSwishBeta cudnnSetAttnDescriptor cudnnSetCTCLossDescriptor
    cudnnSetCTCLossDescriptorEx cudnnSetCTCLossDescriptor_v8 cudnnSetCTCLossDescriptor_v9
    cudnnSetCallback cudnnSetConvolution2dDescriptor cudnnSetConvolutionGroupCount
    cudnnSetConvolutionMathType cudnnSetConvolutionNdDescriptor cudnnSetConvolutionReorderType
    cudnnSetDropoutDescriptor cudnnSetFilter4dDescriptor cudnnSetFusedOpsConstParamPackAttribute
    cudnnSetFusedOpsVariantParamPackAttribute cudnnSetLRNDescriptor cudnnSetOpTensorDescriptor
    cudnnSetPooling2dDescriptor cudnnSetPoolingNdDescriptor cudnnSetReduceTensorDescriptor
    cudnnSetSeqDataDescriptor cudnnSetSpatialTransformerNdDescriptor cudnnSetTensor
    cudnnSetTensor4dDescriptor cudnnSetTensor4dDescriptorEx cudnnSetTensorNdDescriptorEx
    cudnnSetTensorTransformDescriptor
}
