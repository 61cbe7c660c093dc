//! Roles of Python functions in attribution, found by file and name.

mod serving;

use bitflags::bitflags;
use serving::Purpose;

bitflags! {
    /// Role of a Python frame in attribution, besides its line.
    ///
    /// No bits: no role.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct FrameRole: u32 {
        /// `nn.Module.__call__`: its first local is the module that runs.
        const MODULE_CALL = 1;
        /// `Optimizer.step`.
        const OPTIMIZER_STEP = 2;
        /// `Module.to`, `cuda` and others, which move parameters and buffers, and functions that copy parameters.
        const MODULE_APPLY = 4;
        /// Code that torch.fx generated from a graph.
        ///
        /// The agent maps each line to its module.
        const GENERATED = 8;
        /// The interpreter of `torch.fx`, which runs compiled graphs before about PyTorch 2.12.
        ///
        /// Its second local is the graph's node, which the agent maps to its module.
        const GRAPH_NODE = 16;
        /// DDP's, FSDP's and pipelines' communication of gradients, parameters and activations.
        const COMMUNICATION = 32;
        /// Other work of DDP and FSDP: they move inputs to the device.
        const INPUTS = 64;
        /// Code that Inductor generated.
        ///
        /// It allocates memory for the operations of several layers, and the agent maps each line to its layer.
        const WRAPPER = 128;
        /// Inductor's code outside of any layer.
        ///
        /// Attribution adds it; [`FrameRole::of`] never returns it.
        const OUTSIDE = 256;
        /// The forward of a compiled function that has a backward.
        const COMPILED_FORWARD = 512;
        /// Benchmarks kernels: torch.compile's autotuning, and Triton's.
        const BENCHMARK = 1024;
        /// Runs a backward that compiled autograd has captured, in place of PyTorch's engine.
        ///
        /// The modules called in it are graphs.
        const COMPILED_BACKWARD = 2048;
        /// Communication for parameters that are gathered from all ranks.
        const GATHERED = 4096;
        /// Communication for gradients that are summed over ranks and scattered to them.
        const REDUCE_SCATTER = 8192;
        /// Communication for DDP's buckets of gradients.
        const DDP_BUCKET = 16384;
        /// Keeps the keys and values of tokens: the pool of an inference server, or a `Cache` of Hugging Face.
        const KV_CACHE = 32768;
        /// Keeps a workspace: the attention backends of an inference server.
        const WORKSPACE = 65536;
        /// Memory classified by the function that allocates it.
        ///
        /// The innermost such function decides.
        const KEPT_FOR = Self::COMMUNICATION.bits() | Self::PURPOSE.bits() | Self::KV_CACHE.bits() | Self::WORKSPACE.bits();
        /// Purposes of communication.
        const PURPOSE = Self::GATHERED.bits() | Self::REDUCE_SCATTER.bits() | Self::DDP_BUCKET.bits();
        /// Frames that call a layer.
        const LAYER = Self::MODULE_CALL.bits() | Self::GENERATED.bits() | Self::GRAPH_NODE.bits();
    }
}

impl FrameRole {
    /// Adds the roles of a frame called by this stack.
    ///
    /// A layer called by an optimizer's step (which runs a closure) is forward, not optimizer. Nor is it part of the
    /// communication, cache or workspace that calls it.
    #[inline]
    pub fn with(self, inner: Self) -> Self {
        let ended = if inner.intersects(Self::LAYER) {
            Self::OPTIMIZER_STEP.union(Self::KEPT_FOR)
        } else if inner.intersects(Self::INPUTS) {
            Self::COMMUNICATION.union(Self::PURPOSE)
        } else if inner.intersects(Self::KEPT_FOR) {
            Self::KEPT_FOR
        } else {
            Self::empty()
        };
        self.difference(ended).union(inner)
    }

    /// Index of the local that holds the frame's module (or graph node).
    #[inline]
    pub fn local(self) -> Option<usize> {
        if self.intersects(Self::MODULE_CALL) || self.intersects(Self::GENERATED) {
            Some(0)
        } else if self.intersects(Self::GRAPH_NODE) {
            Some(1)
        } else {
            None
        }
    }

    /// Returns the role by file, name and qualified name.
    ///
    /// These identify functions of PyTorch and of inference servers.
    pub fn of(file: &str, name: &str, qualified: &str) -> Self {
        if file.ends_with("torch/nn/modules/module.py") {
            match name {
                "_wrapped_call_impl" | "_call_impl" => Self::MODULE_CALL,
                "_apply" => Self::MODULE_APPLY,
                _ => Self::empty(),
            }
        } else if file.ends_with("torch/nn/parameter.py") && name == "__deepcopy__" {
            Self::MODULE_APPLY
        } else if file.ends_with("torch/optim/optimizer.py") && name == "wrapper" {
            Self::OPTIMIZER_STEP
        } else if file.ends_with("torch/fx/interpreter.py") && name == "run_node" {
            Self::GRAPH_NODE
        } else if file.starts_with("<eval_with_key>") {
            Self::GENERATED
        } else if is_wrapper(file) && name != "<module>" {
            Self::WRAPPER
        } else if file.ends_with("torch/_functorch/_aot_autograd/runtime_wrappers.py") && name == "forward" {
            Self::COMPILED_FORWARD
        } else if file.ends_with("torch/_dynamo/compiled_autograd.py") && name == "runtime_wrapper" {
            Self::COMPILED_BACKWARD
        } else if is_benchmark(file, name) {
            Self::BENCHMARK
        } else if let Some(role) = file.rsplit_once("/torch/").and_then(|(_, rest)| Self::of_distributed(rest, name)) {
            role
        } else {
            match serving::purpose(file, name, qualified) {
                Some(Purpose::KvCache) => Self::KV_CACHE,
                Some(Purpose::Workspace) => Self::WORKSPACE,
                Some(Purpose::Communication) => Self::COMMUNICATION,
                None => Self::empty(),
            }
        }
    }

    /// Returns the role within a file that may be part of DDP, FSDP or a pipeline.
    ///
    /// The table lists the functions that allocate. It omits functions that call the user's modules or create the parameters
    /// that a rank keeps.
    fn of_distributed(file: &str, name: &str) -> Option<Self> {
        let purpose = match file {
            "nn/parallel/distributed.py" => match name {
                "_ddp_init_helper" | "_pre_forward" => Some(Self::DDP_BUCKET),
                "_sync_module_buffers"
                | "_distributed_broadcast_coalesced"
                | "_default_broadcast_coalesced"
                | "_check_global_requires_backward_grad_sync"
                | "_match_all_reduce_for_bwd_pass"
                | "_register_delay_all_reduce_hook" => Some(Self::empty()),
                _ => None,
            },
            "distributed/utils.py" => match name {
                "_to_kwargs" | "_recursive_to" | "_cast_forward_inputs" => return Some(Self::INPUTS),
                "_sync_params_and_buffers" => Some(Self::empty()),
                _ => None,
            },
            "distributed/fsdp/_flat_param.py" | "distributed/fsdp/flat_param.py" => match name {
                "_alloc_padded_unsharded_flat_param" | "_use_low_precision_shard" | "_all_gather_flat_param" => {
                    Some(Self::GATHERED)
                }
                _ => None,
            },
            "distributed/fsdp/_runtime_utils.py" => match name {
                "_get_reduce_scatter_tensors" | "_reduce_grad" => Some(Self::REDUCE_SCATTER),
                _ => None,
            },
            // FSDP2, and its path up to PyTorch 2.5. These functions call everything else there that allocates.
            "distributed/fsdp/_fully_shard/_fsdp_collectives.py"
            | "distributed/_composable/fsdp/_fsdp_collectives.py" => match name {
                _ if name.contains("all_gather") => Some(Self::GATHERED),
                _ if name.contains("reduce") => Some(Self::REDUCE_SCATTER),
                _ => None,
            },
            "distributed/fsdp/_fully_shard/_fsdp_param.py" | "distributed/_composable/fsdp/_fsdp_param.py" => {
                match name {
                    "init_all_gather_outputs"
                    | "alloc_all_gather_outputs"
                    | "alloc_storage"
                    | "all_gather_inputs"
                    | "to_sharded_post_forward" => Some(Self::GATHERED),
                    _ => None,
                }
            }
            // Buffers that stages receive into; the function's file in older versions and in newer ones.
            "distributed/pipelining/stage.py" | "distributed/pipelining/_utils.py"
                if name == "_make_tensor_from_meta" =>
            {
                Some(Self::empty())
            }
            _ => file.starts_with("distributed/algorithms/ddp_comm_hooks/").then_some(Self::empty()),
        };
        purpose.map(|purpose| Self::COMMUNICATION | purpose)
    }
}

/// Returns true if the function benchmarks kernels in separate memory.
///
/// Files without a listed name run only during benchmarks.
fn is_benchmark(file: &str, name: &str) -> bool {
    if let Some((_, inductor)) = file.rsplit_once("/torch/_inductor/") {
        match inductor {
            "runtime/triton_heuristics.py" => {
                matches!(
                    name,
                    "autotune_to_one_config" | "benchmark_all_configs" | "bench" | "coordinate_descent_tuning"
                )
            }
            "utils.py" => name.contains("do_bench"),
            "select_algorithm.py" | "autotune_process.py" | "runtime/benchmarking.py" | "fx_passes/pad_mm.py" => true,
            _ => false,
        }
    } else if let Some((_, triton)) = file.rsplit_once("/triton/") {
        matches!((triton, name), ("testing.py", "do_bench" | "do_bench_cudagraph") | ("runtime/autotuner.py", "_bench"))
    } else {
        false
    }
}

/// Returns true for a file of Inductor's cache: its name is a hash, `…/fi/cfijm6….py`.
fn is_wrapper(file: &str) -> bool {
    let Some((folders, name)) = file.rsplit_once('/') else { return false };
    let Some(hash) = name.strip_suffix(".py").and_then(|stem| stem.strip_prefix('c')) else { return false };
    let is_letter = |letter: u8| letter.is_ascii_lowercase() || (b'2'..=b'7').contains(&letter);
    hash.len() == 51
        && hash.bytes().all(is_letter)
        && folders.rsplit('/').next().is_some_and(|folder| hash.starts_with(folder) && folder.len() == 2)
}

#[cfg(test)]
mod tests {
    use super::FrameRole;

    #[test]
    fn the_innermost_layer_or_optimizer_decides_the_role() {
        let stack = |roles: &[FrameRole]| roles.iter().fold(FrameRole::empty(), |outer, inner| outer.with(*inner));
        let (layer, step, other) = (FrameRole::MODULE_CALL, FrameRole::OPTIMIZER_STEP, FrameRole::empty());
        assert!(stack(&[other, step, other]).intersects(step));
        assert!(stack(&[layer, step, other]).intersects(step), "a training step inside a module");
        assert!(!stack(&[step, other, layer, other]).intersects(step), "a closure that calls a model");
        assert!(stack(&[step, layer, step]).intersects(step), "a model that steps an optimizer of its own");
        assert!(
            !stack(&[step, FrameRole::GENERATED]).intersects(step)
                && !stack(&[step, FrameRole::GRAPH_NODE]).intersects(step)
        );
    }

    #[test]
    fn files_of_inductor_are_known_by_their_names() {
        let hash = "y6cxv52evlhklg5ji5hxqyxgbfwq2uebjuzibunqrh6oe4qmtqn";
        let of = |folder: &str, hash: &str| FrameRole::of(&format!("/tmp/cache/{folder}/c{hash}.py"), "call", "call");
        assert!(of("y6", hash) == FrameRole::WRAPPER);
        assert!(of("zz", hash) == FrameRole::empty(), "another folder");
        assert!(of("y6", &hash[1..]) == FrameRole::empty(), "too short");
        assert!(of("y6", &hash.replace('x', "8")) == FrameRole::empty(), "not base 32");
        assert!(FrameRole::of(&format!("/tmp/cache/y6/c{hash}.py"), "<module>", "<module>") == FrameRole::empty());
    }

    #[test]
    fn communication_is_distinguished_from_computation() {
        let stack = |frames: &[(&str, &str)]| {
            let of = |(file, name): &(&str, &str)| FrameRole::of(&format!("/x/site-packages/torch/{file}"), name, name);
            frames.iter().map(of).fold(FrameRole::empty(), FrameRole::with).intersects(FrameRole::COMMUNICATION)
        };
        let (ddp, call) = ("nn/parallel/distributed.py", ("nn/modules/module.py", "_call_impl"));
        assert!(stack(&[call, (ddp, "forward"), (ddp, "_pre_forward")]));
        assert!(!stack(&[call, (ddp, "forward"), (ddp, "_pre_forward"), ("distributed/utils.py", "_to_kwargs")]));
        assert!(!stack(&[call, (ddp, "forward"), (ddp, "_run_ddp_forward"), call]));
        let unshard = ("distributed/fsdp/_flat_param.py", "_alloc_padded_unsharded_flat_param");
        assert!(stack(&[call, unshard, ("distributed/utils.py", "_alloc_storage"), ("storage.py", "_resize_")]));
        assert!(!stack(&[unshard, call]), "a module called meanwhile");
    }

    #[test]
    fn the_innermost_communication_determines_the_purpose() {
        let stack = |frames: &[(&str, &str)]| {
            let of = |(file, name): &(&str, &str)| FrameRole::of(&format!("/x/site-packages/torch/{file}"), name, name);
            let all = frames.iter().map(of).fold(FrameRole::empty(), FrameRole::with);
            all.intersection(FrameRole::COMMUNICATION | FrameRole::PURPOSE)
        };
        let (ddp, fsdp) = ("nn/parallel/distributed.py", "distributed/fsdp/_fully_shard/_fsdp_collectives.py");
        let (plain, call) = (FrameRole::COMMUNICATION, ("nn/modules/module.py", "_call_impl"));
        assert!(stack(&[call, (ddp, "_pre_forward")]) == plain | FrameRole::DDP_BUCKET);
        assert!(stack(&[call, (ddp, "_pre_forward"), (ddp, "_sync_module_buffers")]) == plain);
        assert!(stack(&[call, (fsdp, "foreach_all_gather"), (fsdp, "allocate")]) == plain | FrameRole::GATHERED);
        assert!(stack(&[(fsdp, "foreach_reduce"), (fsdp, "allocate")]) == plain | FrameRole::REDUCE_SCATTER);
        assert!(stack(&[(fsdp, "foreach_reduce"), call]) == FrameRole::empty(), "a module called meanwhile");
        assert!(stack(&[("distributed/pipelining/stage.py", "_make_tensor_from_meta")]) == plain);
    }

    #[test]
    fn a_folder_further_out_may_be_called_torch() {
        let file = "/opt/torch/.venv/lib/python3.12/site-packages/transformers/cache_utils.py";
        assert!(FrameRole::of(file, "update", "DynamicLayer.update") == FrameRole::KV_CACHE);
    }

    #[test]
    fn the_innermost_of_cache_workspace_and_layer_decides() {
        let stack = |roles: &[FrameRole]| roles.iter().fold(FrameRole::empty(), |outer, inner| outer.with(*inner));
        let (cache, workspace, layer) = (FrameRole::KV_CACHE, FrameRole::WORKSPACE, FrameRole::MODULE_CALL);
        assert!(stack(&[layer, cache, FrameRole::empty()]) == layer | cache);
        assert!(stack(&[cache, layer]) == layer, "a layer that a cache calls");
        assert!(stack(&[cache, workspace]) == workspace);
        assert!(stack(&[workspace, cache]) == cache);
        assert!(stack(&[cache, FrameRole::COMMUNICATION]) == FrameRole::COMMUNICATION);
    }
}
