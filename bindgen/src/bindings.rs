// Made by `make bindings` from NVIDIA's headers: declarations only. Not to be edited.

pub const CUPTI_API_VERSION: u32 = 130401;
#[repr(C)]
#[derive(Debug)]
pub struct CUctx_st {
    _unused: [u8; 0],
}
pub type CUcontext = *mut CUctx_st;
impl CUptiResult {
    pub const CUPTI_SUCCESS: CUptiResult = CUptiResult(0);
    pub const CUPTI_ERROR_INVALID_PARAMETER: CUptiResult = CUptiResult(1);
    pub const CUPTI_ERROR_INVALID_DEVICE: CUptiResult = CUptiResult(2);
    pub const CUPTI_ERROR_INVALID_CONTEXT: CUptiResult = CUptiResult(3);
    pub const CUPTI_ERROR_INVALID_EVENT_DOMAIN_ID: CUptiResult = CUptiResult(4);
    pub const CUPTI_ERROR_INVALID_EVENT_ID: CUptiResult = CUptiResult(5);
    pub const CUPTI_ERROR_INVALID_EVENT_NAME: CUptiResult = CUptiResult(6);
    pub const CUPTI_ERROR_INVALID_OPERATION: CUptiResult = CUptiResult(7);
    pub const CUPTI_ERROR_OUT_OF_MEMORY: CUptiResult = CUptiResult(8);
    pub const CUPTI_ERROR_HARDWARE: CUptiResult = CUptiResult(9);
    pub const CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT: CUptiResult = CUptiResult(10);
    pub const CUPTI_ERROR_API_NOT_IMPLEMENTED: CUptiResult = CUptiResult(11);
    pub const CUPTI_ERROR_MAX_LIMIT_REACHED: CUptiResult = CUptiResult(12);
    pub const CUPTI_ERROR_NOT_READY: CUptiResult = CUptiResult(13);
    pub const CUPTI_ERROR_NOT_COMPATIBLE: CUptiResult = CUptiResult(14);
    pub const CUPTI_ERROR_NOT_INITIALIZED: CUptiResult = CUptiResult(15);
    pub const CUPTI_ERROR_INVALID_METRIC_ID: CUptiResult = CUptiResult(16);
    pub const CUPTI_ERROR_INVALID_METRIC_NAME: CUptiResult = CUptiResult(17);
    pub const CUPTI_ERROR_QUEUE_EMPTY: CUptiResult = CUptiResult(18);
    pub const CUPTI_ERROR_INVALID_HANDLE: CUptiResult = CUptiResult(19);
    pub const CUPTI_ERROR_INVALID_STREAM: CUptiResult = CUptiResult(20);
    pub const CUPTI_ERROR_INVALID_KIND: CUptiResult = CUptiResult(21);
    pub const CUPTI_ERROR_INVALID_EVENT_VALUE: CUptiResult = CUptiResult(22);
    pub const CUPTI_ERROR_DISABLED: CUptiResult = CUptiResult(23);
    pub const CUPTI_ERROR_INVALID_MODULE: CUptiResult = CUptiResult(24);
    pub const CUPTI_ERROR_INVALID_METRIC_VALUE: CUptiResult = CUptiResult(25);
    pub const CUPTI_ERROR_HARDWARE_BUSY: CUptiResult = CUptiResult(26);
    pub const CUPTI_ERROR_NOT_SUPPORTED: CUptiResult = CUptiResult(27);
    pub const CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED: CUptiResult = CUptiResult(28);
    pub const CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_DEVICE: CUptiResult = CUptiResult(29);
    pub const CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_NON_P2P_DEVICES: CUptiResult = CUptiResult(30);
    pub const CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_WITH_MPS: CUptiResult = CUptiResult(31);
    pub const CUPTI_ERROR_CDP_TRACING_NOT_SUPPORTED: CUptiResult = CUptiResult(32);
    pub const CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED: CUptiResult = CUptiResult(33);
    pub const CUPTI_ERROR_CUDA_COMPILER_NOT_COMPATIBLE: CUptiResult = CUptiResult(34);
    pub const CUPTI_ERROR_INSUFFICIENT_PRIVILEGES: CUptiResult = CUptiResult(35);
    pub const CUPTI_ERROR_OLD_PROFILER_API_INITIALIZED: CUptiResult = CUptiResult(36);
    pub const CUPTI_ERROR_OPENACC_UNDEFINED_ROUTINE: CUptiResult = CUptiResult(37);
    pub const CUPTI_ERROR_LEGACY_PROFILER_NOT_SUPPORTED: CUptiResult = CUptiResult(38);
    pub const CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED: CUptiResult = CUptiResult(39);
    pub const CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES: CUptiResult = CUptiResult(40);
    pub const CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED: CUptiResult = CUptiResult(41);
    pub const CUPTI_ERROR_CMP_DEVICE_NOT_SUPPORTED: CUptiResult = CUptiResult(42);
    pub const CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED: CUptiResult = CUptiResult(43);
    pub const CUPTI_ERROR_SLI_DEVICE_NOT_SUPPORTED: CUptiResult = CUptiResult(44);
    pub const CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED: CUptiResult = CUptiResult(45);
    pub const CUPTI_ERROR_INVALID_CHIP_NAME: CUptiResult = CUptiResult(46);
    pub const CUPTI_ERROR_HES_TRACE_NOT_SUPPORTED_ON_MPS: CUptiResult = CUptiResult(47);
    pub const CUPTI_ERROR_UNKNOWN: CUptiResult = CUptiResult(999);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUptiResult(pub ::core::ffi::c_uint);
impl CUpti_ApiCallbackSite {
    pub const CUPTI_API_ENTER: CUpti_ApiCallbackSite = CUpti_ApiCallbackSite(0);
    pub const CUPTI_API_EXIT: CUpti_ApiCallbackSite = CUpti_ApiCallbackSite(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ApiCallbackSite(pub ::core::ffi::c_uint);
impl CUpti_CallbackDomain {
    pub const CUPTI_CB_DOMAIN_INVALID: CUpti_CallbackDomain = CUpti_CallbackDomain(0);
    pub const CUPTI_CB_DOMAIN_DRIVER_API: CUpti_CallbackDomain = CUpti_CallbackDomain(1);
    pub const CUPTI_CB_DOMAIN_RUNTIME_API: CUpti_CallbackDomain = CUpti_CallbackDomain(2);
    pub const CUPTI_CB_DOMAIN_RESOURCE: CUpti_CallbackDomain = CUpti_CallbackDomain(3);
    pub const CUPTI_CB_DOMAIN_SYNCHRONIZE: CUpti_CallbackDomain = CUpti_CallbackDomain(4);
    pub const CUPTI_CB_DOMAIN_NVTX: CUpti_CallbackDomain = CUpti_CallbackDomain(5);
    pub const CUPTI_CB_DOMAIN_STATE: CUpti_CallbackDomain = CUpti_CallbackDomain(6);
    pub const CUPTI_CB_DOMAIN_SIZE: CUpti_CallbackDomain = CUpti_CallbackDomain(7);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_CallbackDomain(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_CallbackData {
    pub callbackSite: CUpti_ApiCallbackSite,
    pub functionName: *const ::core::ffi::c_char,
    pub functionParams: *const ::core::ffi::c_void,
    pub functionReturnValue: *mut ::core::ffi::c_void,
    pub symbolName: *const ::core::ffi::c_char,
    pub context: CUcontext,
    pub contextUid: u32,
    pub correlationData: *mut u64,
    pub correlationId: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_CallbackData"][::core::mem::size_of::<CUpti_CallbackData>() - 72usize];
    ["Alignment of CUpti_CallbackData"][::core::mem::align_of::<CUpti_CallbackData>() - 8usize];
    ["Offset of field: CUpti_CallbackData::callbackSite"]
        [::core::mem::offset_of!(CUpti_CallbackData, callbackSite) - 0usize];
    ["Offset of field: CUpti_CallbackData::functionName"]
        [::core::mem::offset_of!(CUpti_CallbackData, functionName) - 8usize];
    ["Offset of field: CUpti_CallbackData::functionParams"]
        [::core::mem::offset_of!(CUpti_CallbackData, functionParams) - 16usize];
    ["Offset of field: CUpti_CallbackData::functionReturnValue"]
        [::core::mem::offset_of!(CUpti_CallbackData, functionReturnValue) - 24usize];
    ["Offset of field: CUpti_CallbackData::symbolName"]
        [::core::mem::offset_of!(CUpti_CallbackData, symbolName) - 32usize];
    ["Offset of field: CUpti_CallbackData::context"][::core::mem::offset_of!(CUpti_CallbackData, context) - 40usize];
    ["Offset of field: CUpti_CallbackData::contextUid"]
        [::core::mem::offset_of!(CUpti_CallbackData, contextUid) - 48usize];
    ["Offset of field: CUpti_CallbackData::correlationData"]
        [::core::mem::offset_of!(CUpti_CallbackData, correlationData) - 56usize];
    ["Offset of field: CUpti_CallbackData::correlationId"]
        [::core::mem::offset_of!(CUpti_CallbackData, correlationId) - 64usize];
};
pub type CUpti_CallbackId = u32;
pub type CUpti_CallbackFunc = ::core::option::Option<
    unsafe extern "C" fn(
        userdata: *mut ::core::ffi::c_void,
        domain: CUpti_CallbackDomain,
        cbid: CUpti_CallbackId,
        cbdata: *const ::core::ffi::c_void,
    ),
>;
#[repr(C)]
#[derive(Debug)]
pub struct CUpti_Subscriber_st {
    _unused: [u8; 0],
}
pub type CUpti_SubscriberHandle = *mut CUpti_Subscriber_st;
impl CUpti_ActivityKind {
    pub const CUPTI_ACTIVITY_KIND_INVALID: CUpti_ActivityKind = CUpti_ActivityKind(0);
    pub const CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER: CUpti_ActivityKind = CUpti_ActivityKind(25);
    pub const CUPTI_ACTIVITY_KIND_MEMORY: CUpti_ActivityKind = CUpti_ActivityKind(45);
    pub const CUPTI_ACTIVITY_KIND_MEMORY2: CUpti_ActivityKind = CUpti_ActivityKind(49);
    pub const CUPTI_ACTIVITY_KIND_MEMORY_POOL: CUpti_ActivityKind = CUpti_ActivityKind(50);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ActivityKind(pub ::core::ffi::c_uint);
impl CUpti_ActivityFlag {
    pub const CUPTI_ACTIVITY_FLAG_NONE: CUpti_ActivityFlag = CUpti_ActivityFlag(0);
    pub const CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: CUpti_ActivityFlag = CUpti_ActivityFlag(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ActivityFlag(pub ::core::ffi::c_uint);
impl CUpti_ActivityMemoryKind {
    pub const CUPTI_ACTIVITY_MEMORY_KIND_UNKNOWN: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(0);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(1);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_PINNED: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(2);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_DEVICE: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(3);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_ARRAY: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(4);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_MANAGED: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(5);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(6);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(7);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ActivityMemoryKind(pub ::core::ffi::c_uint);
impl CUpti_ActivityMemoryOperationType {
    pub const CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_INVALID: CUpti_ActivityMemoryOperationType =
        CUpti_ActivityMemoryOperationType(0);
    pub const CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION: CUpti_ActivityMemoryOperationType =
        CUpti_ActivityMemoryOperationType(1);
    pub const CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE: CUpti_ActivityMemoryOperationType =
        CUpti_ActivityMemoryOperationType(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ActivityMemoryOperationType(pub ::core::ffi::c_uint);
impl CUpti_ActivityMemoryPoolType {
    pub const CUPTI_ACTIVITY_MEMORY_POOL_TYPE_INVALID: CUpti_ActivityMemoryPoolType = CUpti_ActivityMemoryPoolType(0);
    pub const CUPTI_ACTIVITY_MEMORY_POOL_TYPE_LOCAL: CUpti_ActivityMemoryPoolType = CUpti_ActivityMemoryPoolType(1);
    pub const CUPTI_ACTIVITY_MEMORY_POOL_TYPE_IMPORTED: CUpti_ActivityMemoryPoolType = CUpti_ActivityMemoryPoolType(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ActivityMemoryPoolType(pub ::core::ffi::c_uint);
impl CUpti_ActivityMemoryPoolOperationType {
    pub const CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_INVALID: CUpti_ActivityMemoryPoolOperationType =
        CUpti_ActivityMemoryPoolOperationType(0);
    pub const CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_CREATED: CUpti_ActivityMemoryPoolOperationType =
        CUpti_ActivityMemoryPoolOperationType(1);
    pub const CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_DESTROYED: CUpti_ActivityMemoryPoolOperationType =
        CUpti_ActivityMemoryPoolOperationType(2);
    pub const CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_TRIMMED: CUpti_ActivityMemoryPoolOperationType =
        CUpti_ActivityMemoryPoolOperationType(3);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ActivityMemoryPoolOperationType(pub ::core::ffi::c_uint);
#[repr(C)]
#[repr(align(8))]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_Activity {
    pub kind: CUpti_ActivityKind,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_Activity"][::core::mem::size_of::<CUpti_Activity>() - 8usize];
    ["Alignment of CUpti_Activity"][::core::mem::align_of::<CUpti_Activity>() - 8usize];
    ["Offset of field: CUpti_Activity::kind"][::core::mem::offset_of!(CUpti_Activity, kind) - 0usize];
};
#[repr(C, packed(8))]
#[derive(Copy, Clone)]
pub struct CUpti_ActivityMemory4 {
    pub kind: CUpti_ActivityKind,
    pub memoryOperationType: CUpti_ActivityMemoryOperationType,
    pub memoryKind: CUpti_ActivityMemoryKind,
    pub correlationId: u32,
    pub address: u64,
    pub bytes: u64,
    pub timestamp: u64,
    pub PC: u64,
    pub processId: u32,
    pub deviceId: u32,
    pub contextId: u32,
    pub streamId: u32,
    pub name: *const ::core::ffi::c_char,
    pub isAsync: u32,
    pub pad1: u32,
    pub memoryPoolConfig: CUpti_ActivityMemory4__bindgen_ty_1,
    pub source: *const ::core::ffi::c_char,
}
#[repr(C, packed(8))]
#[derive(Copy, Clone)]
pub struct CUpti_ActivityMemory4__bindgen_ty_1 {
    pub memoryPoolType: CUpti_ActivityMemoryPoolType,
    pub pad2: u32,
    pub address: u64,
    pub releaseThreshold: u64,
    pub pool: CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1,
    pub utilizedSize: u64,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1 {
    pub size: u64,
    pub processId: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1"]
        [::core::mem::size_of::<CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1>() - 8usize];
    ["Alignment of CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1"]
        [::core::mem::align_of::<CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1>() - 8usize];
    ["Offset of field: CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1::size"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1, size) - 0usize];
    ["Offset of field: CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1::processId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1, processId) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityMemory4__bindgen_ty_1"]
        [::core::mem::size_of::<CUpti_ActivityMemory4__bindgen_ty_1>() - 40usize];
    ["Alignment of CUpti_ActivityMemory4__bindgen_ty_1"]
        [::core::mem::align_of::<CUpti_ActivityMemory4__bindgen_ty_1>() - 8usize];
    ["Offset of field: CUpti_ActivityMemory4__bindgen_ty_1::memoryPoolType"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4__bindgen_ty_1, memoryPoolType) - 0usize];
    ["Offset of field: CUpti_ActivityMemory4__bindgen_ty_1::pad2"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4__bindgen_ty_1, pad2) - 4usize];
    ["Offset of field: CUpti_ActivityMemory4__bindgen_ty_1::address"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4__bindgen_ty_1, address) - 8usize];
    ["Offset of field: CUpti_ActivityMemory4__bindgen_ty_1::releaseThreshold"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4__bindgen_ty_1, releaseThreshold) - 16usize];
    ["Offset of field: CUpti_ActivityMemory4__bindgen_ty_1::pool"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4__bindgen_ty_1, pool) - 24usize];
    ["Offset of field: CUpti_ActivityMemory4__bindgen_ty_1::utilizedSize"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4__bindgen_ty_1, utilizedSize) - 32usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityMemory4"][::core::mem::size_of::<CUpti_ActivityMemory4>() - 128usize];
    ["Alignment of CUpti_ActivityMemory4"][::core::mem::align_of::<CUpti_ActivityMemory4>() - 8usize];
    ["Offset of field: CUpti_ActivityMemory4::kind"][::core::mem::offset_of!(CUpti_ActivityMemory4, kind) - 0usize];
    ["Offset of field: CUpti_ActivityMemory4::memoryOperationType"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, memoryOperationType) - 4usize];
    ["Offset of field: CUpti_ActivityMemory4::memoryKind"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, memoryKind) - 8usize];
    ["Offset of field: CUpti_ActivityMemory4::correlationId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, correlationId) - 12usize];
    ["Offset of field: CUpti_ActivityMemory4::address"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, address) - 16usize];
    ["Offset of field: CUpti_ActivityMemory4::bytes"][::core::mem::offset_of!(CUpti_ActivityMemory4, bytes) - 24usize];
    ["Offset of field: CUpti_ActivityMemory4::timestamp"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, timestamp) - 32usize];
    ["Offset of field: CUpti_ActivityMemory4::PC"][::core::mem::offset_of!(CUpti_ActivityMemory4, PC) - 40usize];
    ["Offset of field: CUpti_ActivityMemory4::processId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, processId) - 48usize];
    ["Offset of field: CUpti_ActivityMemory4::deviceId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, deviceId) - 52usize];
    ["Offset of field: CUpti_ActivityMemory4::contextId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, contextId) - 56usize];
    ["Offset of field: CUpti_ActivityMemory4::streamId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, streamId) - 60usize];
    ["Offset of field: CUpti_ActivityMemory4::name"][::core::mem::offset_of!(CUpti_ActivityMemory4, name) - 64usize];
    ["Offset of field: CUpti_ActivityMemory4::isAsync"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, isAsync) - 72usize];
    ["Offset of field: CUpti_ActivityMemory4::pad1"][::core::mem::offset_of!(CUpti_ActivityMemory4, pad1) - 76usize];
    ["Offset of field: CUpti_ActivityMemory4::memoryPoolConfig"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, memoryPoolConfig) - 80usize];
    ["Offset of field: CUpti_ActivityMemory4::source"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, source) - 120usize];
};
#[repr(C, packed(8))]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_ActivityMemoryPool3 {
    pub kind: CUpti_ActivityKind,
    pub memoryPoolOperationType: CUpti_ActivityMemoryPoolOperationType,
    pub memoryPoolType: CUpti_ActivityMemoryPoolType,
    pub correlationId: u32,
    pub processId: u32,
    pub deviceId: u32,
    pub minBytesToKeep: usize,
    pub address: u64,
    pub size: u64,
    pub releaseThreshold: u64,
    pub timestamp: u64,
    pub utilizedSize: u64,
    pub isManagedPool: u8,
    pub pad2: [u8; 7usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityMemoryPool3"][::core::mem::size_of::<CUpti_ActivityMemoryPool3>() - 80usize];
    ["Alignment of CUpti_ActivityMemoryPool3"][::core::mem::align_of::<CUpti_ActivityMemoryPool3>() - 8usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::kind"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, kind) - 0usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::memoryPoolOperationType"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, memoryPoolOperationType) - 4usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::memoryPoolType"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, memoryPoolType) - 8usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::correlationId"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, correlationId) - 12usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::processId"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, processId) - 16usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::deviceId"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, deviceId) - 20usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::minBytesToKeep"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, minBytesToKeep) - 24usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::address"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, address) - 32usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::size"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, size) - 40usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::releaseThreshold"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, releaseThreshold) - 48usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::timestamp"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, timestamp) - 56usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::utilizedSize"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, utilizedSize) - 64usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::isManagedPool"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, isManagedPool) - 72usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::pad2"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, pad2) - 73usize];
};
pub type CUpti_BuffersCallbackRequestFunc =
    ::core::option::Option<unsafe extern "C" fn(buffer: *mut *mut u8, size: *mut usize, maxNumRecords: *mut usize)>;
pub type CUpti_BuffersCallbackCompleteFunc = ::core::option::Option<
    unsafe extern "C" fn(context: CUcontext, streamId: u32, buffer: *mut u8, size: usize, validSize: usize),
>;
#[repr(C, packed(8))]
#[derive(Copy, Clone)]
pub struct CUpti_ActivityMemory2 {
    pub kind: CUpti_ActivityKind,
    pub memoryOperationType: CUpti_ActivityMemoryOperationType,
    pub memoryKind: CUpti_ActivityMemoryKind,
    pub correlationId: u32,
    pub address: u64,
    pub bytes: u64,
    pub timestamp: u64,
    pub PC: u64,
    pub processId: u32,
    pub deviceId: u32,
    pub contextId: u32,
    pub streamId: u32,
    pub name: *const ::core::ffi::c_char,
    pub isAsync: u32,
    pub pad1: u32,
    pub memoryPoolConfig: CUpti_ActivityMemory2__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct CUpti_ActivityMemory2__bindgen_ty_1 {
    pub memoryPoolType: CUpti_ActivityMemoryPoolType,
    pub pad2: u32,
    pub address: u64,
    pub releaseThreshold: u64,
    pub pool: CUpti_ActivityMemory2__bindgen_ty_1__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union CUpti_ActivityMemory2__bindgen_ty_1__bindgen_ty_1 {
    pub size: u64,
    pub processId: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityMemory2__bindgen_ty_1__bindgen_ty_1"]
        [::core::mem::size_of::<CUpti_ActivityMemory2__bindgen_ty_1__bindgen_ty_1>() - 8usize];
    ["Alignment of CUpti_ActivityMemory2__bindgen_ty_1__bindgen_ty_1"]
        [::core::mem::align_of::<CUpti_ActivityMemory2__bindgen_ty_1__bindgen_ty_1>() - 8usize];
    ["Offset of field: CUpti_ActivityMemory2__bindgen_ty_1__bindgen_ty_1::size"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2__bindgen_ty_1__bindgen_ty_1, size) - 0usize];
    ["Offset of field: CUpti_ActivityMemory2__bindgen_ty_1__bindgen_ty_1::processId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2__bindgen_ty_1__bindgen_ty_1, processId) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityMemory2__bindgen_ty_1"]
        [::core::mem::size_of::<CUpti_ActivityMemory2__bindgen_ty_1>() - 32usize];
    ["Alignment of CUpti_ActivityMemory2__bindgen_ty_1"]
        [::core::mem::align_of::<CUpti_ActivityMemory2__bindgen_ty_1>() - 8usize];
    ["Offset of field: CUpti_ActivityMemory2__bindgen_ty_1::memoryPoolType"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2__bindgen_ty_1, memoryPoolType) - 0usize];
    ["Offset of field: CUpti_ActivityMemory2__bindgen_ty_1::pad2"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2__bindgen_ty_1, pad2) - 4usize];
    ["Offset of field: CUpti_ActivityMemory2__bindgen_ty_1::address"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2__bindgen_ty_1, address) - 8usize];
    ["Offset of field: CUpti_ActivityMemory2__bindgen_ty_1::releaseThreshold"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2__bindgen_ty_1, releaseThreshold) - 16usize];
    ["Offset of field: CUpti_ActivityMemory2__bindgen_ty_1::pool"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2__bindgen_ty_1, pool) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityMemory2"][::core::mem::size_of::<CUpti_ActivityMemory2>() - 112usize];
    ["Alignment of CUpti_ActivityMemory2"][::core::mem::align_of::<CUpti_ActivityMemory2>() - 8usize];
    ["Offset of field: CUpti_ActivityMemory2::kind"][::core::mem::offset_of!(CUpti_ActivityMemory2, kind) - 0usize];
    ["Offset of field: CUpti_ActivityMemory2::memoryOperationType"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, memoryOperationType) - 4usize];
    ["Offset of field: CUpti_ActivityMemory2::memoryKind"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, memoryKind) - 8usize];
    ["Offset of field: CUpti_ActivityMemory2::correlationId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, correlationId) - 12usize];
    ["Offset of field: CUpti_ActivityMemory2::address"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, address) - 16usize];
    ["Offset of field: CUpti_ActivityMemory2::bytes"][::core::mem::offset_of!(CUpti_ActivityMemory2, bytes) - 24usize];
    ["Offset of field: CUpti_ActivityMemory2::timestamp"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, timestamp) - 32usize];
    ["Offset of field: CUpti_ActivityMemory2::PC"][::core::mem::offset_of!(CUpti_ActivityMemory2, PC) - 40usize];
    ["Offset of field: CUpti_ActivityMemory2::processId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, processId) - 48usize];
    ["Offset of field: CUpti_ActivityMemory2::deviceId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, deviceId) - 52usize];
    ["Offset of field: CUpti_ActivityMemory2::contextId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, contextId) - 56usize];
    ["Offset of field: CUpti_ActivityMemory2::streamId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, streamId) - 60usize];
    ["Offset of field: CUpti_ActivityMemory2::name"][::core::mem::offset_of!(CUpti_ActivityMemory2, name) - 64usize];
    ["Offset of field: CUpti_ActivityMemory2::isAsync"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, isAsync) - 72usize];
    ["Offset of field: CUpti_ActivityMemory2::pad1"][::core::mem::offset_of!(CUpti_ActivityMemory2, pad1) - 76usize];
    ["Offset of field: CUpti_ActivityMemory2::memoryPoolConfig"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, memoryPoolConfig) - 80usize];
};
#[repr(C, packed(8))]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_ActivityMemoryPool2 {
    pub kind: CUpti_ActivityKind,
    pub memoryPoolOperationType: CUpti_ActivityMemoryPoolOperationType,
    pub memoryPoolType: CUpti_ActivityMemoryPoolType,
    pub correlationId: u32,
    pub processId: u32,
    pub deviceId: u32,
    pub minBytesToKeep: usize,
    pub address: u64,
    pub size: u64,
    pub releaseThreshold: u64,
    pub timestamp: u64,
    pub utilizedSize: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityMemoryPool2"][::core::mem::size_of::<CUpti_ActivityMemoryPool2>() - 72usize];
    ["Alignment of CUpti_ActivityMemoryPool2"][::core::mem::align_of::<CUpti_ActivityMemoryPool2>() - 8usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::kind"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, kind) - 0usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::memoryPoolOperationType"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, memoryPoolOperationType) - 4usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::memoryPoolType"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, memoryPoolType) - 8usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::correlationId"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, correlationId) - 12usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::processId"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, processId) - 16usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::deviceId"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, deviceId) - 20usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::minBytesToKeep"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, minBytesToKeep) - 24usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::address"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, address) - 32usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::size"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, size) - 40usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::releaseThreshold"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, releaseThreshold) - 48usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::timestamp"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, timestamp) - 56usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::utilizedSize"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, utilizedSize) - 64usize];
};
impl CUpti_driver_api_trace_cbid_enum {
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAlloc: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(29);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAllocPitch: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(31);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemFree: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(33);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAllocHost: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(37);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemFreeHost: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(38);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemHostAlloc: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(39);
    pub const CUPTI_DRIVER_TRACE_CBID_cuArrayCreate: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(87);
    pub const CUPTI_DRIVER_TRACE_CBID_cuArrayDestroy: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(89);
    pub const CUPTI_DRIVER_TRACE_CBID_cuArray3DCreate: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(90);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(243);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAllocPitch_v2: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(244);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(245);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemHostAlloc_v2: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(271);
    pub const CUPTI_DRIVER_TRACE_CBID_cuArrayCreate_v2: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(272);
    pub const CUPTI_DRIVER_TRACE_CBID_cuArray3DCreate_v2: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(274);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAllocHost_v2: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(294);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemHostRegister: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(301);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemHostUnregister: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(302);
    pub const CUPTI_DRIVER_TRACE_CBID_cuIpcOpenMemHandle: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(329);
    pub const CUPTI_DRIVER_TRACE_CBID_cuIpcCloseMemHandle: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(330);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMipmappedArrayCreate: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(347);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMipmappedArrayDestroy: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(349);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAllocManaged: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(371);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemHostRegister_v2: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(379);
    pub const CUPTI_DRIVER_TRACE_CBID_cuImportExternalMemory: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(485);
    pub const CUPTI_DRIVER_TRACE_CBID_cuDestroyExternalMemory: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(488);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAddressReserve: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(547);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAddressFree: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(548);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemCreate: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(549);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemRelease: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(550);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemMap: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(551);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemUnmap: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(552);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemExportToShareableHandle: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(554);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemImportFromShareableHandle: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(555);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemRetainAllocationHandle: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(565);
    pub const CUPTI_DRIVER_TRACE_CBID_cuIpcOpenMemHandle_v2: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(567);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemMapArrayAsync: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(584);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemMapArrayAsync_ptsz: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(585);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAllocAsync: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(598);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAllocAsync_ptsz: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(599);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemFreeAsync: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(600);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemFreeAsync_ptsz: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(601);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolTrimTo: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(602);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolSetAttribute: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(603);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolGetAttribute: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(604);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolSetAccess: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(605);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolCreate: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(607);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolDestroy: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(608);
    pub const CUPTI_DRIVER_TRACE_CBID_cuDeviceSetMemPool: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(609);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAllocFromPoolAsync: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(611);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAllocFromPoolAsync_ptsz: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(612);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolExportToShareableHandle: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(613);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolImportFromShareableHandle: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(614);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolExportPointer: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(615);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolImportPointer: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(616);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolGetAccess: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(617);
    pub const CUPTI_DRIVER_TRACE_CBID_cuGraphAddMemAllocNode: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(638);
    pub const CUPTI_DRIVER_TRACE_CBID_cuGraphAddMemFreeNode: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(639);
    pub const CUPTI_DRIVER_TRACE_CBID_cuDeviceGraphMemTrim: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(640);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_driver_api_trace_cbid_enum(pub ::core::ffi::c_uint);
pub use self::CUpti_driver_api_trace_cbid_enum as CUpti_driver_api_trace_cbid;
unsafe extern "C" {
    pub fn cuptiGetResultString(result: CUptiResult, str_: *mut *const ::core::ffi::c_char) -> CUptiResult;
    pub fn cuptiGetVersion(version: *mut u32) -> CUptiResult;
    pub fn cuptiSubscribe(
        subscriber: *mut CUpti_SubscriberHandle,
        callback: CUpti_CallbackFunc,
        userdata: *mut ::core::ffi::c_void,
    ) -> CUptiResult;
    pub fn cuptiUnsubscribe(subscriber: CUpti_SubscriberHandle) -> CUptiResult;
    pub fn cuptiEnableCallback(
        enable: u32,
        subscriber: CUpti_SubscriberHandle,
        domain: CUpti_CallbackDomain,
        cbid: CUpti_CallbackId,
    ) -> CUptiResult;
    pub fn cuptiEnableDomain(
        enable: u32,
        subscriber: CUpti_SubscriberHandle,
        domain: CUpti_CallbackDomain,
    ) -> CUptiResult;
    pub fn cuptiActivityEnable(kind: CUpti_ActivityKind) -> CUptiResult;
    pub fn cuptiActivityDisable(kind: CUpti_ActivityKind) -> CUptiResult;
    pub fn cuptiActivityGetNumDroppedRecords(context: CUcontext, streamId: u32, dropped: *mut usize) -> CUptiResult;
    pub fn cuptiActivityGetNextRecord(
        buffer: *mut u8,
        validBufferSizeBytes: usize,
        record: *mut *mut CUpti_Activity,
    ) -> CUptiResult;
    pub fn cuptiActivityRegisterCallbacks(
        funcBufferRequested: CUpti_BuffersCallbackRequestFunc,
        funcBufferCompleted: CUpti_BuffersCallbackCompleteFunc,
    ) -> CUptiResult;
    pub fn cuptiActivityFlushAll(flag: u32) -> CUptiResult;
    pub fn cuptiFinalize() -> CUptiResult;
}
