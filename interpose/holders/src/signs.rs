//! Signs of memory that only C++ holds: autocast's weight cache, and tensors that were sent to another process.

use std::ptr;

use interpose_python::api::Api;

use crate::objects;

/// The shortest handle of CUDA's memory that processes share.
const HANDLE_BYTES: isize = 64;

/// Name of what holds memory that no object leads to; empty: unknown.
///
/// # Safety
///
/// The GIL must be held.
pub unsafe fn of(api: &Api) -> &'static str {
    // SAFETY: as the caller promises.
    unsafe {
        if is_autocast(api) {
            "autocast"
        } else if has_sent(api) {
            "ipc"
        } else {
            ""
        }
    }
}

/// Returns true if autocast is on in this thread, and keeps copies of weights.
unsafe fn is_autocast(api: &Api) -> bool {
    // SAFETY: as for `of`. PyTorch's functions read a variable of the thread.
    unsafe {
        let native = objects::module(api, c"torch._C");
        [c"is_autocast_enabled", c"is_autocast_cache_enabled"].iter().all(|name| {
            let answer = objects::call(api, native, name, ptr::null_mut());
            !answer.is_null() && (api.PyLong_AsUnsignedLongLong)(answer) == 1
        })
    }
}

/// Returns true if this process sent tensors on a GPU to another: PyTorch remembers their handles, as bytes. What it
/// received has pairs as keys.
unsafe fn has_sent(api: &Api) -> bool {
    // SAFETY: as for `of`; the dictionary does not change, since no code runs.
    unsafe {
        let reductions = objects::module(api, c"torch.multiprocessing.reductions");
        if reductions.is_null() {
            return false;
        }
        let cache = (api.PyDict_GetItemString)((api.PyModule_GetDict)(reductions), c"shared_cache".as_ptr());
        if cache.is_null() || objects::flags(objects::class_of(cache)) & objects::DICT_SUBCLASS == 0 {
            return false;
        }
        let (mut position, mut key, mut value) = (0_isize, ptr::null_mut(), ptr::null_mut());
        while (api.PyDict_Next)(cache, &raw mut position, &raw mut key, &raw mut value) != 0 {
            if objects::full_name(objects::class_of(key)) == "bytes" && (api.PyObject_Size)(key) >= HANDLE_BYTES {
                return true;
            }
        }
        false
    }
}
