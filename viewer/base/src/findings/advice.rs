//! Advice after an out-of-memory error, by its cause and by the largest holders.

use memlab_trace::{Category, Model, OomView};
use memlab_units::format::size;

use super::causes;
use super::finding::processes;

/// Maximum number of pieces of advice: nobody follows a list of ten.
const MAX_PIECES: usize = 4;

/// A line that holds more after every step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrowingLine {
    /// Name of the line.
    pub line: String,
    /// Growth in bytes from the end of warm-up to the last step.
    pub bytes: u64,
    /// Growth in bytes per step.
    pub bytes_per_step: u64,
}

/// Advice, most promising first. `grows` is the line that holds more after every step, if any.
pub fn advice(model: &Model, oom: &OomView, grows: Option<&GrowingLine>) -> Vec<String> {
    let (mut advice, failed) = causes::of_error(model, oom);
    let held =
        |category: Category| oom.categories.iter().find(|(held, _)| *held == category).map_or(0, |(_, bytes)| *bytes);
    // Bytes available to the process.
    let whole = oom.limit_bytes.unwrap_or(oom.total_bytes);
    let is_fragmented = oom.free_bytes >= oom.requested_bytes && oom.largest_free_block_bytes < oom.requested_bytes;
    if let Some(limit) = oom.limit_bytes
        && (oom.total_bytes == 0 || limit < oom.total_bytes)
    {
        advice.push(format!(
            "A limit of {} was set: raise it (memlab run --limit, memlab limit PID SIZE), or use --on-limit spill, which \
             is slower.",
            size(limit)
        ));
    }
    if oom.total_bytes > 0 && oom.requested_bytes > oom.total_bytes {
        advice.push(format!(
            "The request exceeds the device ({}): check the size of that tensor, or split the work.",
            size(oom.total_bytes)
        ));
    }
    let holes = is_fragmented.then(|| {
        format!(
            "{} were free in PyTorch's segments, but in pieces of at most {}: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \
             joins them.",
            size(oom.free_bytes),
            size(oom.largest_free_block_bytes)
        )
    });
    let grows = grows.filter(|_| !failed.is_growth_explained());
    let grown = grows.filter(|grows| grows.bytes > oom.allocated_bytes / 20).map(|grows| {
        format!(
            "{} holds {} more after every step: keep numbers (.item()) or detached tensors (.detach()), and drop unneeded \
             references.",
            grows.line,
            size(grows.bytes_per_step)
        )
    });
    // Where a line grows by more than the free bytes, joining holes helps for a few steps only.
    let grown_is_more = grows.is_some_and(|grows| grows.bytes > oom.free_bytes);
    advice.extend(if grown_is_more { [grown, holes] } else { [holes, grown] }.into_iter().flatten());
    let others = held(Category::OtherProcesses);
    if others >= oom.requested_bytes.min(oom.total_bytes / 10).max(oom.total_bytes / 100).max(1) {
        let who = if oom.others.is_empty() { "nvidia-smi names them".to_owned() } else { processes(&oom.others) };
        advice.push(format!("Other processes hold {}: {who}; end them, or use another device.", size(others)));
    }
    let mut largest: Vec<(Category, u64)> = oom.categories.clone();
    // Holes and private pools have their own advice.
    largest.retain(|(category, _)| !(is_fragmented && *category == Category::Cached));
    if let Some((_, bytes)) = largest.iter_mut().find(|(category, _)| *category == Category::Cached) {
        *bytes = bytes.saturating_sub(oom.private_free_bytes);
    }
    largest.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    // Less than a tenth of allocated, or a hundredth of the whole, does not help.
    let least = (oom.allocated_bytes / 10).max(whole / 100).max(1);
    largest.retain(|(category, _)| !(failed.is_growth_explained() && *category == Category::Input));
    let worth = largest.into_iter().filter(|(_, bytes)| *bytes >= least);
    if oom.private_free_bytes >= least {
        advice.push(format!(
            "Private pools of CUDA graphs hold {} without tensors: share one pool among graphs replayed one at a time \
             (torch.cuda.graph with pool=), or capture fewer shapes.",
            size(oom.private_free_bytes)
        ));
    }
    advice.extend(worth.filter_map(|(category, bytes)| {
        let own = failed.by_category(category, bytes);
        own.or_else(|| by_category(category).map(|text| text.replace("{}", &size(bytes))))
    }));
    advice.truncate(MAX_PIECES);
    advice
}

/// Advice to shrink a category; `{}` stands for the bytes that it holds.
fn by_category(category: Category) -> Option<&'static str> {
    Some(match category {
        Category::Activation => {
            "Activations hold {}: try a smaller batch or sequence, torch.utils.checkpoint on the layers above, or autocast \
             to bfloat16."
        }
        Category::OptimizerState => {
            "Optimizer state holds {}: try an 8-bit or factored optimizer, or shard it among ranks (ZeRO, FSDP)."
        }
        Category::Gradient => {
            "Gradients hold {}: let zero_grad free them before the forward (set_to_none=True), or shard them among ranks (ZeRO, FSDP)."
        }
        Category::Parameter => {
            "Parameters hold {}: load them in bfloat16, or shard or offload them (FSDP, device_map)."
        }
        Category::KvCache => {
            "The KV cache holds {}: try fewer or shorter sequences at once (max_model_len, max_num_seqs, max_new_tokens), \
             keys and values in 8 bits (kv_cache_dtype=\"fp8\"), or a smaller share of the card (gpu_memory_utilization, \
             mem_fraction_static)."
        }
        Category::Input => "Inputs hold {}: move one batch at a time to the device, and delete it when done.",
        Category::Temporary => "Temporaries hold {}: work in place or in smaller pieces on the lines above.",
        Category::Gathered => {
            "Gathered parameters hold {}: shard smaller parts (fully_shard on each block), and set \
             reshard_after_forward=True."
        }
        Category::ReduceScatter => {
            "Gradients awaiting reduce-scatter hold {}: shard smaller parts (fully_shard on each block), or set \
             the reduce_dtype of MixedPrecisionPolicy to torch.bfloat16."
        }
        Category::DdpBucket => "DDP's buckets hold {}: gradient_as_bucket_view=True makes the gradients views of them.",
        Category::Communication => {
            "Communication buffers hold {}: a pipeline schedule such as 1F1B needs fewer than GPipe."
        }
        Category::Nccl => {
            "NCCL's communicators hold {}: try fewer process groups, or fewer and smaller channels (NCCL_MAX_CTAS, \
             NCCL_BUFFSIZE)."
        }
        Category::OtherArrays => {
            "Arrays outside PyTorch hold {}: JAX reserves three quarters of the card unless \
             XLA_PYTHON_CLIENT_PREALLOCATE=false is set, and CuPy keeps freed memory until \
             its pool releases it (free_all_blocks)."
        }
        Category::Benchmark => {
            "torch.compile's benchmarks of kernels hold {}: compile with a small batch first, or without max-autotune."
        }
        Category::Cached => {
            "PyTorch caches {} that no tensor uses: use fewer different shapes, or set \
             PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_comes_before_smaller_holes() {
        // GIVEN an out-of-memory error with 80 MiB free in pieces
        let mib = |count: u64| count << 20;
        let oom = OomView {
            requested_bytes: mib(64),
            allocated_bytes: mib(1024),
            total_bytes: mib(2048),
            free_bytes: mib(80),
            largest_free_block_bytes: mib(8),
            ..OomView::default()
        };
        let first = |bytes| {
            let grows = GrowingLine { line: "train.py:9 main".to_owned(), bytes, bytes_per_step: mib(10) };
            advice(&Model::default(), &oom, Some(&grows)).into_iter().next().unwrap_or_default()
        };
        // THEN a line that grew by more comes first, and one that grew by less does not
        assert!(first(mib(600)).starts_with("train.py:9 main holds 10.0 MiB more"));
        assert!(first(mib(60)).starts_with("80.0 MiB were free"));
    }
}
