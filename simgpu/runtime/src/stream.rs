//! Streams, events and captures: each function is one call of the driver.

use crate::api::{api, api_without_context};
use crate::driver_calls::{IpcHandle, is_12};

api! {
    fn cudaStreamCreate(cu; stream: *mut usize) {
        cu.cuStreamCreate(stream, 0)?;
    }

    fn cudaStreamCreateWithFlags(cu; stream: *mut usize, flags: u32) {
        cu.cuStreamCreate(stream, flags)?;
    }

    fn cudaStreamCreateWithPriority(cu; stream: *mut usize, flags: u32, priority: i32) {
        cu.cuStreamCreateWithPriority(stream, flags, priority)?;
    }

    fn cudaStreamDestroy(cu; stream: usize) {
        cu.cuStreamDestroy(stream)?;
    }

    fn cudaStreamGetPriority | cudaStreamGetPriority_ptsz (cu; stream: usize, priority: *mut i32) {
        cu.cuStreamGetPriority(stream, priority)?;
    }

    fn cudaStreamGetFlags | cudaStreamGetFlags_ptsz (cu; stream: usize, flags: *mut u32) {
        cu.cuStreamGetFlags(stream, flags)?;
    }

    fn cudaStreamGetId | cudaStreamGetId_ptsz (cu; stream: usize, id: *mut u64) {
        cu.cuStreamGetId(stream, id)?;
    }

    fn cudaStreamGetDevice | cudaStreamGetDevice_ptsz (cu; stream: usize, device: *mut i32) {
        cu.cuStreamGetDevice(stream, device)?;
    }

    fn cudaStreamQuery | cudaStreamQuery_ptsz (cu; stream: usize) {
        cu.cuStreamQuery(stream)?;
    }

    fn cudaStreamSynchronize | cudaStreamSynchronize_ptsz (cu; stream: usize) {
        cu.cuStreamSynchronize(stream)?;
    }

    fn cudaStreamWaitEvent | cudaStreamWaitEvent_ptsz (cu; stream: usize, event: usize, flags: u32) {
        cu.cuStreamWaitEvent(stream, event, flags)?;
    }

    fn cudaStreamAddCallback | cudaStreamAddCallback_ptsz (
        cu; stream: usize, callback: usize, data: usize, flags: u32,
    ) {
        // CUstreamCallback and cudaStreamCallback_t have the same arguments and error numbers.
        cu.cuStreamAddCallback(stream, callback, data, flags)?;
    }

    fn cudaLaunchHostFunc | cudaLaunchHostFunc_ptsz (cu; stream: usize, function: usize, data: usize) {
        cu.cuLaunchHostFunc(stream, function, data)?;
    }

    fn cudaStreamAttachMemAsync | cudaStreamAttachMemAsync_ptsz (
        cu; stream: usize, address: u64, bytes: usize, flags: u32,
    ) {
        cu.cuStreamAttachMemAsync(stream, address, bytes, flags)?;
    }

    fn cudaStreamCopyAttributes | cudaStreamCopyAttributes_ptsz (cu; to: usize, from: usize) {
        cu.cuStreamCopyAttributes(to, from)?;
    }

    fn cudaStreamGetAttribute | cudaStreamGetAttribute_ptsz (cu; stream: usize, attribute: i32, value: *mut u8) {
        cu.cuStreamGetAttribute(stream, attribute, value)?;
    }

    fn cudaStreamSetAttribute | cudaStreamSetAttribute_ptsz (cu; stream: usize, attribute: i32, value: *const u8) {
        cu.cuStreamSetAttribute(stream, attribute, value)?;
    }

    fn cudaStreamBeginCapture | cudaStreamBeginCapture_ptsz (cu; stream: usize, mode: i32) {
        cu.cuStreamBeginCapture(stream, mode)?;
    }

    fn cudaStreamBeginCaptureToGraph | cudaStreamBeginCaptureToGraph_ptsz (
        cu; stream: usize, graph: usize, on: *const usize, edges: *const u8, count: usize, mode: i32,
    ) {
        cu.cuStreamBeginCaptureToGraph(stream, graph, on, edges, count, mode)?;
    }

    fn cudaStreamEndCapture | cudaStreamEndCapture_ptsz (cu; stream: usize, graph: *mut usize) {
        cu.cuStreamEndCapture(stream, graph)?;
    }

    fn cudaStreamIsCapturing | cudaStreamIsCapturing_ptsz (cu; stream: usize, status: *mut i32) {
        cu.cuStreamIsCapturing(stream, status)?;
    }

    fn cudaStreamGetCaptureInfo | cudaStreamGetCaptureInfo_ptsz (
        cu; stream: usize, status: *mut i32, id: *mut u64, graph: *mut usize, on: *mut usize, edges: *mut usize,
        count: *mut usize,
    ) {
        let null = std::ptr::null_mut;
        if is_12() {
            // CUDA 11's function, under the same name in CUDA 12: returns only the status and the id.
            cu.cuStreamGetCaptureInfo(stream, status, id, null(), null(), null(), null())?;
        } else {
            cu.cuStreamGetCaptureInfo(stream, status, id, graph, on, edges, count)?;
        }
    }

    fn cudaStreamGetCaptureInfo_v2 | cudaStreamGetCaptureInfo_v2_ptsz (
        cu; stream: usize, status: *mut i32, id: *mut u64, graph: *mut usize, on: *mut usize, count: *mut usize,
    ) {
        cu.cuStreamGetCaptureInfo(stream, status, id, graph, on, std::ptr::null_mut(), count)?;
    }

    fn cudaStreamGetCaptureInfo_v3 | cudaStreamGetCaptureInfo_v3_ptsz (
        cu; stream: usize, status: *mut i32, id: *mut u64, graph: *mut usize, on: *mut usize, edges: *mut usize,
        count: *mut usize,
    ) {
        cu.cuStreamGetCaptureInfo(stream, status, id, graph, on, edges, count)?;
    }

    fn cudaStreamUpdateCaptureDependencies | cudaStreamUpdateCaptureDependencies_ptsz (
        cu; stream: usize, on: *const usize, edges_or_count: usize, count_or_flags: usize, flags: u32,
    ) {
        if is_12() {
            let null = std::ptr::null();
            cu.cuStreamUpdateCaptureDependencies(stream, on, null, edges_or_count, count_or_flags as u32)?;
        } else {
            cu.cuStreamUpdateCaptureDependencies(stream, on, edges_or_count as *const u8, count_or_flags, flags)?;
        }
    }

    fn cudaStreamUpdateCaptureDependencies_v2 | cudaStreamUpdateCaptureDependencies_v2_ptsz (
        cu; stream: usize, on: *const usize, edges: *const u8, count: usize, flags: u32,
    ) {
        cu.cuStreamUpdateCaptureDependencies(stream, on, edges, count, flags)?;
    }

    fn cudaEventCreate(cu; event: *mut usize) {
        cu.cuEventCreate(event, 0)?;
    }

    fn cudaEventCreateWithFlags(cu; event: *mut usize, flags: u32) {
        cu.cuEventCreate(event, flags)?;
    }

    fn cudaEventDestroy(cu; event: usize) {
        cu.cuEventDestroy(event)?;
    }

    fn cudaEventRecord | cudaEventRecord_ptsz (cu; event: usize, stream: usize) {
        cu.cuEventRecord(event, stream)?;
    }

    fn cudaEventRecordWithFlags | cudaEventRecordWithFlags_ptsz (cu; event: usize, stream: usize, flags: u32) {
        cu.cuEventRecordWithFlags(event, stream, flags)?;
    }

    fn cudaEventQuery(cu; event: usize) {
        cu.cuEventQuery(event)?;
    }

    fn cudaEventSynchronize(cu; event: usize) {
        cu.cuEventSynchronize(event)?;
    }

    fn cudaEventElapsedTime(cu; milliseconds: *mut f32, start: usize, end: usize) {
        cu.cuEventElapsedTime(milliseconds, start, end)?;
    }

    fn cudaEventElapsedTime_v2(cu; milliseconds: *mut f32, start: usize, end: usize) {
        cu.cuEventElapsedTime(milliseconds, start, end)?;
    }

    fn cudaIpcGetEventHandle(cu; handle: *mut IpcHandle, event: usize) {
        cu.cuIpcGetEventHandle(handle, event)?;
    }

    fn cudaIpcOpenEventHandle(cu; event: *mut usize, handle: IpcHandle) {
        cu.cuIpcOpenEventHandle(event, handle)?;
    }
}

api_without_context! {
    fn cudaThreadExchangeStreamCaptureMode(cu; mode: *mut i32) {
        cu.cuThreadExchangeStreamCaptureMode(mode)?;
    }
}
