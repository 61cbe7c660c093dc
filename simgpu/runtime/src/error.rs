//! The runtime's errors, with the numbers of `cudaError` in driver_types.h.

use std::ffi::{CStr, c_char};

use crate::api::last_error;

/// Number, name and description of every error.
static ERRORS: &[(i32, &CStr, &CStr)] = &[
    (0, c"cudaSuccess", c"no error"),
    (1, c"cudaErrorInvalidValue", c"invalid argument"),
    (2, c"cudaErrorMemoryAllocation", c"out of memory"),
    (3, c"cudaErrorInitializationError", c"initialization error"),
    (4, c"cudaErrorCudartUnloading", c"driver shutting down"),
    (5, c"cudaErrorProfilerDisabled", c"profiler disabled"),
    (6, c"cudaErrorProfilerNotInitialized", c"profiler not initialized"),
    (7, c"cudaErrorProfilerAlreadyStarted", c"profiler already started"),
    (8, c"cudaErrorProfilerAlreadyStopped", c"profiler already stopped"),
    (9, c"cudaErrorInvalidConfiguration", c"invalid configuration"),
    (10, c"cudaErrorVersionTranslation", c"version translation"),
    (12, c"cudaErrorInvalidPitchValue", c"invalid pitch value"),
    (13, c"cudaErrorInvalidSymbol", c"invalid symbol"),
    (16, c"cudaErrorInvalidHostPointer", c"invalid host pointer"),
    (17, c"cudaErrorInvalidDevicePointer", c"invalid device pointer"),
    (18, c"cudaErrorInvalidTexture", c"invalid texture"),
    (19, c"cudaErrorInvalidTextureBinding", c"invalid texture binding"),
    (20, c"cudaErrorInvalidChannelDescriptor", c"invalid channel descriptor"),
    (21, c"cudaErrorInvalidMemcpyDirection", c"invalid memcpy direction"),
    (22, c"cudaErrorAddressOfConstant", c"address of constant"),
    (23, c"cudaErrorTextureFetchFailed", c"texture fetch failed"),
    (24, c"cudaErrorTextureNotBound", c"texture not bound"),
    (25, c"cudaErrorSynchronizationError", c"synchronization error"),
    (26, c"cudaErrorInvalidFilterSetting", c"invalid filter setting"),
    (27, c"cudaErrorInvalidNormSetting", c"invalid norm setting"),
    (28, c"cudaErrorMixedDeviceExecution", c"mixed device execution"),
    (31, c"cudaErrorNotYetImplemented", c"not yet implemented"),
    (32, c"cudaErrorMemoryValueTooLarge", c"memory value too large"),
    (34, c"cudaErrorStubLibrary", c"stub library"),
    (35, c"cudaErrorInsufficientDriver", c"insufficient driver"),
    (36, c"cudaErrorCallRequiresNewerDriver", c"call requires newer driver"),
    (37, c"cudaErrorInvalidSurface", c"invalid surface"),
    (43, c"cudaErrorDuplicateVariableName", c"duplicate variable name"),
    (44, c"cudaErrorDuplicateTextureName", c"duplicate texture name"),
    (45, c"cudaErrorDuplicateSurfaceName", c"duplicate surface name"),
    (46, c"cudaErrorDevicesUnavailable", c"devices unavailable"),
    (49, c"cudaErrorIncompatibleDriverContext", c"incompatible driver context"),
    (52, c"cudaErrorMissingConfiguration", c"missing configuration"),
    (53, c"cudaErrorPriorLaunchFailure", c"prior launch failure"),
    (65, c"cudaErrorLaunchMaxDepthExceeded", c"launch max depth exceeded"),
    (66, c"cudaErrorLaunchFileScopedTex", c"launch file scoped tex"),
    (67, c"cudaErrorLaunchFileScopedSurf", c"launch file scoped surf"),
    (68, c"cudaErrorSyncDepthExceeded", c"sync depth exceeded"),
    (69, c"cudaErrorLaunchPendingCountExceeded", c"launch pending count exceeded"),
    (98, c"cudaErrorInvalidDeviceFunction", c"invalid device function"),
    (100, c"cudaErrorNoDevice", c"no CUDA-capable device is detected"),
    (101, c"cudaErrorInvalidDevice", c"invalid device ordinal"),
    (102, c"cudaErrorDeviceNotLicensed", c"device not licensed"),
    (103, c"cudaErrorSoftwareValidityNotEstablished", c"software validity not established"),
    (127, c"cudaErrorStartupFailure", c"startup failure"),
    (200, c"cudaErrorInvalidKernelImage", c"device kernel image is invalid"),
    (201, c"cudaErrorDeviceUninitialized", c"invalid device context"),
    (205, c"cudaErrorMapBufferObjectFailed", c"map buffer object failed"),
    (206, c"cudaErrorUnmapBufferObjectFailed", c"unmap buffer object failed"),
    (207, c"cudaErrorArrayIsMapped", c"array is mapped"),
    (208, c"cudaErrorAlreadyMapped", c"already mapped"),
    (209, c"cudaErrorNoKernelImageForDevice", c"no kernel image for device"),
    (210, c"cudaErrorAlreadyAcquired", c"already acquired"),
    (211, c"cudaErrorNotMapped", c"not mapped"),
    (212, c"cudaErrorNotMappedAsArray", c"not mapped as array"),
    (213, c"cudaErrorNotMappedAsPointer", c"not mapped as pointer"),
    (214, c"cudaErrorECCUncorrectable", c"eccuncorrectable"),
    (215, c"cudaErrorUnsupportedLimit", c"unsupported limit"),
    (216, c"cudaErrorDeviceAlreadyInUse", c"device already in use"),
    (217, c"cudaErrorPeerAccessUnsupported", c"peer access unsupported"),
    (218, c"cudaErrorInvalidPtx", c"invalid ptx"),
    (219, c"cudaErrorInvalidGraphicsContext", c"invalid graphics context"),
    (220, c"cudaErrorNvlinkUncorrectable", c"nvlink uncorrectable"),
    (221, c"cudaErrorJitCompilerNotFound", c"jit compiler not found"),
    (222, c"cudaErrorUnsupportedPtxVersion", c"unsupported ptx version"),
    (223, c"cudaErrorJitCompilationDisabled", c"jit compilation disabled"),
    (224, c"cudaErrorUnsupportedExecAffinity", c"unsupported exec affinity"),
    (225, c"cudaErrorUnsupportedDevSideSync", c"unsupported dev side sync"),
    (226, c"cudaErrorContained", c"contained"),
    (300, c"cudaErrorInvalidSource", c"invalid source"),
    (301, c"cudaErrorFileNotFound", c"file not found"),
    (302, c"cudaErrorSharedObjectSymbolNotFound", c"shared object symbol not found"),
    (303, c"cudaErrorSharedObjectInitFailed", c"shared object init failed"),
    (304, c"cudaErrorOperatingSystem", c"OS call failed or operation not supported on this OS"),
    (400, c"cudaErrorInvalidResourceHandle", c"invalid resource handle"),
    (401, c"cudaErrorIllegalState", c"illegal state"),
    (402, c"cudaErrorLossyQuery", c"lossy query"),
    (500, c"cudaErrorSymbolNotFound", c"named symbol not found"),
    (600, c"cudaErrorNotReady", c"device not ready"),
    (700, c"cudaErrorIllegalAddress", c"an illegal memory access was encountered"),
    (701, c"cudaErrorLaunchOutOfResources", c"launch out of resources"),
    (702, c"cudaErrorLaunchTimeout", c"launch timeout"),
    (703, c"cudaErrorLaunchIncompatibleTexturing", c"launch incompatible texturing"),
    (704, c"cudaErrorPeerAccessAlreadyEnabled", c"peer access is already enabled"),
    (705, c"cudaErrorPeerAccessNotEnabled", c"peer access has not been enabled"),
    (708, c"cudaErrorSetOnActiveProcess", c"set on active process"),
    (709, c"cudaErrorContextIsDestroyed", c"context is destroyed"),
    (710, c"cudaErrorAssert", c"assert"),
    (711, c"cudaErrorTooManyPeers", c"too many peers"),
    (712, c"cudaErrorHostMemoryAlreadyRegistered", c"part or all of the requested memory range is already mapped"),
    (713, c"cudaErrorHostMemoryNotRegistered", c"pointer does not correspond to a registered memory region"),
    (714, c"cudaErrorHardwareStackError", c"hardware stack error"),
    (715, c"cudaErrorIllegalInstruction", c"illegal instruction"),
    (716, c"cudaErrorMisalignedAddress", c"misaligned address"),
    (717, c"cudaErrorInvalidAddressSpace", c"invalid address space"),
    (718, c"cudaErrorInvalidPc", c"invalid pc"),
    (719, c"cudaErrorLaunchFailure", c"unspecified launch failure"),
    (720, c"cudaErrorCooperativeLaunchTooLarge", c"cooperative launch too large"),
    (721, c"cudaErrorTensorMemoryLeak", c"tensor memory leak"),
    (800, c"cudaErrorNotPermitted", c"operation not permitted"),
    (801, c"cudaErrorNotSupported", c"operation not supported"),
    (802, c"cudaErrorSystemNotReady", c"system not ready"),
    (803, c"cudaErrorSystemDriverMismatch", c"system driver mismatch"),
    (804, c"cudaErrorCompatNotSupportedOnDevice", c"compat not supported on device"),
    (805, c"cudaErrorMpsConnectionFailed", c"mps connection failed"),
    (806, c"cudaErrorMpsRpcFailure", c"mps rpc failure"),
    (807, c"cudaErrorMpsServerNotReady", c"mps server not ready"),
    (808, c"cudaErrorMpsMaxClientsReached", c"mps max clients reached"),
    (809, c"cudaErrorMpsMaxConnectionsReached", c"mps max connections reached"),
    (810, c"cudaErrorMpsClientTerminated", c"mps client terminated"),
    (811, c"cudaErrorCdpNotSupported", c"cdp not supported"),
    (812, c"cudaErrorCdpVersionMismatch", c"cdp version mismatch"),
    (900, c"cudaErrorStreamCaptureUnsupported", c"operation not permitted when stream is capturing"),
    (901, c"cudaErrorStreamCaptureInvalidated", c"operation failed due to a previous error during capture"),
    (902, c"cudaErrorStreamCaptureMerge", c"operation would result in a merge of separate capture sequences"),
    (903, c"cudaErrorStreamCaptureUnmatched", c"capture was not initiated in this stream"),
    (904, c"cudaErrorStreamCaptureUnjoined", c"capturing stream has unjoined work"),
    (905, c"cudaErrorStreamCaptureIsolation", c"stream capture isolation"),
    (
        906,
        c"cudaErrorStreamCaptureImplicit",
        c"operation would make the legacy stream depend on a capturing blocking stream",
    ),
    (907, c"cudaErrorCapturedEvent", c"operation not permitted on an event last recorded in a capturing stream"),
    (
        908,
        c"cudaErrorStreamCaptureWrongThread",
        c"attempt to terminate a thread-local capture sequence from another thread",
    ),
    (909, c"cudaErrorTimeout", c"timeout"),
    (910, c"cudaErrorGraphExecUpdateFailure", c"graph exec update failure"),
    (911, c"cudaErrorExternalDevice", c"external device"),
    (912, c"cudaErrorInvalidClusterSize", c"invalid cluster size"),
    (913, c"cudaErrorFunctionNotLoaded", c"function not loaded"),
    (914, c"cudaErrorInvalidResourceType", c"invalid resource type"),
    (915, c"cudaErrorInvalidResourceConfiguration", c"invalid resource configuration"),
    (917, c"cudaErrorStreamDetached", c"stream detached"),
    (999, c"cudaErrorUnknown", c"unknown error"),
];

fn find(code: i32) -> Option<&'static (i32, &'static CStr, &'static CStr)> {
    ERRORS.iter().find(|known| known.0 == code)
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudaGetErrorName(error: i32) -> *const c_char {
    find(error).map_or(c"unrecognized error code", |known| known.1).as_ptr()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudaGetErrorString(error: i32) -> *const c_char {
    find(error).map_or(c"unrecognized error code", |known| known.2).as_ptr()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudaGetLastError() -> i32 {
    last_error(true)
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudaPeekAtLastError() -> i32 {
    last_error(false)
}
