//! Functions of inference servers and of Hugging Face that allocate key-value caches and workspaces.
//!
//! The files and names are those of vLLM 0.9, 0.13, 0.24 and 0.33 (and its first engine, in 0.6), SGLang 0.3.6, 0.4.10,
//! 0.5.5, 0.5.15 and 0.5.23, and transformers 5.24.

/// Purpose for which a function allocates memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    KvCache,
    Workspace,
    Communication,
}

/// Returns the purpose by file, name and qualified name (`KVCache.update`).
pub(super) fn purpose(file: &str, name: &str, qualified: &str) -> Option<Purpose> {
    let (package, rest) = package(file);
    let is_cache = match package {
        Package::Vllm => allocates_cache_of_vllm(rest, name),
        Package::Sglang => rest.strip_prefix("srt/mem_cache/").is_some_and(|file| allocates_pool_of_sglang(file, name)),
        Package::Transformers => keeps_states_of_transformers(rest, name, qualified),
        Package::Flashinfer | Package::Other => false,
    };
    if is_cache || is_of_cache_class(qualified) {
        return Some(Purpose::KvCache);
    }
    let is_setup = name == "__init__" || name.contains("buffer");
    match package {
        Package::Vllm | Package::Sglang if rest.contains("distributed/device_communicators/") => {
            is_setup.then_some(Purpose::Communication)
        }
        Package::Vllm if rest == "v1/worker/workspace.py" => Some(Purpose::Workspace),
        Package::Vllm | Package::Sglang | Package::Flashinfer => {
            let sets_up = is_setup || name == "init_cuda_graph_state";
            (name.contains("workspace") || is_backend(package, rest) && sets_up).then_some(Purpose::Workspace)
        }
        Package::Transformers | Package::Other => None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Package {
    Vllm,
    Sglang,
    Transformers,
    Flashinfer,
    Other,
}

/// Splits a file name into its package and the path inside the package.
fn package(file: &str) -> (Package, &str) {
    let installed = ["/site-packages/", "/dist-packages/"].into_iter().find_map(|folder| file.rsplit_once(folder));
    // Folders further out may have any name: some environments are also called `vllm`.
    let found = match installed {
        Some((_, path)) => path.split_once('/'),
        None => innermost_package(file),
    };
    match found {
        Some(("vllm", rest)) => (Package::Vllm, rest),
        Some(("sglang", rest)) => (Package::Sglang, rest),
        Some(("transformers", rest)) => (Package::Transformers, rest),
        Some(("flashinfer", rest)) => (Package::Flashinfer, rest),
        _ => (Package::Other, file),
    }
}

/// Finds the innermost folder named like a package.
///
/// A checkout repeats the name: `vllm/vllm/v1/…`.
fn innermost_package(file: &str) -> Option<(&str, &str)> {
    let split = |name: &'static str| {
        let (before, rest) = file.rsplit_once(name)?;
        (before.ends_with('/') && rest.starts_with('/')).then(|| (name, &rest[1..]))
    };
    ["vllm", "sglang", "transformers", "flashinfer"].into_iter().filter_map(split).min_by_key(|(_, rest)| rest.len())
}

/// Functions of vLLM's engines, versions 0 and 1, including both model runners of version 1.
fn allocates_cache_of_vllm(file: &str, name: &str) -> bool {
    (file.starts_with("worker/") || file.starts_with("v1/worker/"))
        && matches!(
            name,
            "_allocate_kv_cache"
                | "_allocate_kv_cache_tensors"
                | "allocate_kv_cache"
                | "allocate_uniform_kv_caches"
                | "initialize_kv_cache_tensors"
                | "init_kv_cache"
        )
}

/// SGLang's pools, and the tables that locate a request's tokens.
///
/// Memory allocated while requests come and go is not a cache.
fn allocates_pool_of_sglang(file: &str, name: &str) -> bool {
    let is_pool = file.contains("pool") && !file.contains("host")
        || matches!(
            file,
            "kv_vmm_backing.py" | "index_key_cache.py" | "dsa_cache_layer_split.py" | "deepseek_v4_compress_state.py"
        );
    let name = name.trim_start_matches('_');
    let makes = ["init", "create_buffer", "alloc_", "allocate_"].into_iter().any(|prefix| name.starts_with(prefix));
    is_pool && makes
}

/// Returns true if the function creates or replaces the keys and values of a `Cache`, or the pool of continuous batching.
///
/// Functions that derive something from a cache, such as a mask, do not count.
fn keeps_states_of_transformers(file: &str, name: &str, qualified: &str) -> bool {
    match file {
        "cache_utils.py" => !name.starts_with("get_"),
        _ if file.starts_with("generation/continuous_batching") => qualified == "PagedAttentionCache.__init__",
        _ => false,
    }
}

/// Returns true for a method of a KV cache class: `KVCache.update`.
///
/// Memory that `forward` allocates belongs to its layer.
fn is_of_cache_class(qualified: &str) -> bool {
    qualified
        .rsplit_once('.')
        .is_some_and(|(class, name)| class.to_ascii_lowercase().ends_with("kvcache") && name != "forward")
}

/// Returns true if the file is an attention backend, which keeps a workspace and metadata buffers.
fn is_backend(package: Package, file: &str) -> bool {
    match package {
        Package::Vllm => file.starts_with("v1/attention/backends/") || file.starts_with("attention/backends/"),
        Package::Sglang => file.starts_with("srt/layers/attention/") && file.ends_with("_backend.py"),
        Package::Flashinfer => true,
        Package::Transformers | Package::Other => false,
    }
}

#[cfg(test)]
mod tests {
    use super::Purpose;

    fn of(file: &str, qualified: &str) -> Option<Purpose> {
        let name = qualified.rsplit('.').next().unwrap_or(qualified);
        super::purpose(&format!("/venv/lib/python3.12/site-packages/{file}"), name, qualified)
    }

    #[test]
    fn key_value_caches_are_known_by_who_allocates_them() {
        for (file, function) in [
            ("vllm/v1/worker/utils.py", "allocate_kv_cache"),
            ("vllm/v1/worker/gpu_model_runner.py", "GPUModelRunner._allocate_kv_cache_tensors"),
            ("vllm/v1/worker/gpu/attn_utils.py", "_allocate_kv_cache"),
            ("vllm/worker/cache_engine.py", "CacheEngine._allocate_kv_cache"),
            ("sglang/srt/mem_cache/memory_pool.py", "MHATokenToKVPool._create_buffers_normal"),
            ("sglang/srt/mem_cache/memory_pool.py", "ReqToTokenPool.__init__"),
            ("sglang/srt/mem_cache/unified_memory_pool.py", "UnifiedKVPool.__init__"),
            ("transformers/cache_utils.py", "DynamicLayer.update"),
            ("transformers/cache_utils.py", "StaticLayer.lazy_initialization"),
            ("transformers/generation/continuous_batching/cache.py", "PagedAttentionCache.__init__"),
            ("torchtune/modules/kv_cache.py", "KVCache.__init__"),
            ("gptfast/model.py", "KVCache.update"),
        ] {
            assert_eq!(of(file, function), Some(Purpose::KvCache), "{file} {function}");
        }
        for (file, function) in [
            ("vllm/v1/worker/gpu_model_runner.py", "GPUModelRunner._dummy_run"),
            ("vllm/v1/core/kv_cache_utils.py", "allocate_kv_cache"),
            ("sglang/srt/mem_cache/memory_pool.py", "HybridReqToTokenPool.alloc"),
            ("sglang/srt/mem_cache/memory_pool_host.py", "MHATokenToKVPoolHost.init_kv_buffer"),
            ("sglang/srt/mem_cache/allocator.py", "TokenToKVPoolAllocator.__init__"),
            ("transformers/cache_utils.py", "DynamicLayer.get_mask_sizes"),
            ("transformers/generation/continuous_batching/cache.py", "PagedAttentionCache.update"),
            ("transformers/generation/continuous_batching/input_outputs.py", "ContinuousBatchingIOs.__init__"),
            ("transformers/modeling_utils.py", "PreTrainedModel.update"),
            ("mine/cache.py", "Cache.update"),
            ("mine/cache.py", "KVCache.forward"),
        ] {
            assert_eq!(of(file, function), None, "{file} {function}");
        }
    }

    #[test]
    fn folders_further_out_do_not_matter() {
        let installed = "lib/python3.12/site-packages";
        for (file, name, qualified, purpose) in [
            (
                format!("/opt/torch/.venv/{installed}/transformers/cache_utils.py"),
                "update",
                "DynamicLayer.update",
                true,
            ),
            (format!("/envs/vllm/{installed}/transformers/cache_utils.py"), "update", "DynamicLayer.update", true),
            ("/src/vllm/vllm/v1/worker/utils.py".to_owned(), "allocate_kv_cache", "allocate_kv_cache", true),
            ("/src/sglang/python/sglang/srt/mem_cache/memory_pool.py".to_owned(), "__init__", "KVPool.__init__", true),
            (format!("/envs/flashinfer/{installed}/mine/model.py"), "__init__", "Model.__init__", false),
            ("/src/myvllm/v1/worker/utils.py".to_owned(), "allocate_kv_cache", "allocate_kv_cache", false),
        ] {
            let expected = purpose.then_some(Purpose::KvCache);
            assert_eq!(super::purpose(&file, name, qualified), expected, "{file}");
        }
    }

    #[test]
    fn workspaces_of_servers_are_known_by_who_allocates_them() {
        for (file, function) in [
            ("vllm/v1/worker/workspace.py", "WorkspaceManager._ensure_workspace_size"),
            ("vllm/v1/attention/backends/flashinfer.py", "FlashInferMetadataBuilder._get_workspace_buffer"),
            ("vllm/v1/attention/backends/flash_attn.py", "FlashAttentionMetadataBuilder.__init__"),
            ("sglang/srt/layers/attention/flashinfer_backend.py", "FlashInferAttnBackend.__init__"),
            ("sglang/srt/layers/attention/triton_backend.py", "TritonAttnBackend.init_cuda_graph_state"),
            ("flashinfer/prefill.py", "BatchPrefillWithPagedKVCacheWrapper.__init__"),
        ] {
            assert_eq!(of(file, function), Some(Purpose::Workspace), "{file} {function}");
        }
        for (file, function) in [
            ("vllm/v1/attention/backends/flash_attn.py", "FlashAttentionImpl.forward"),
            ("sglang/srt/layers/attention/mamba/mamba.py", "MambaMixer2.__init__"),
        ] {
            assert_eq!(of(file, function), None, "{file} {function}");
        }
        let reduce = "distributed/device_communicators/custom_all_reduce.py";
        for file in [format!("vllm/{reduce}"), format!("sglang/srt/{reduce}")] {
            assert_eq!(of(&file, "CustomAllreduce.__init__"), Some(Purpose::Communication));
            assert_eq!(of(&file, "CustomAllreduce.all_reduce"), None, "its result");
        }
    }
}
