//! Maps lines that allocate memory in the C++ of an AOTInductor package to the nodes that it names.
//!
//! ```text
//! void AOTInductorModel::run_impl(
//!     AtenTensorHandle* input_handles
//! ) {
//!     AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_0, …, &buf4_handle));
//!     RAIIAtenTensorHandle buf4(buf4_handle);
//!     // Topologically Sorted Source Nodes: [layer_norm, linear], Original ATen: [aten.addmm]
//!     AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_mm_out(buf4, buf3, …));
//!     auto buf5 = std::move(buf4);  // reuse
//! } // AOTInductorModel::run_impl
//! ```
//!
//! As in a wrapper, memory belongs to the first launch that uses it, and to the last source node of that launch.

use rustc_hash::FxHashMap;

use crate::kernel::source_nodes;
use crate::scan::names;

/// C++ source of a package.
#[derive(Debug, Default)]
pub struct Package {
    nodes: FxHashMap<u32, String>,
}

/// Position of the parser.
#[derive(Default)]
struct Position<'a> {
    /// Lines that allocated values which no launch has used yet, by the names of the values.
    unused: FxHashMap<&'a str, u32>,
    /// Last source node of the next launch.
    source: Option<String>,
}

impl Package {
    /// Parses the source of a package's model.
    pub fn parse(source: &str) -> Self {
        let mut package = Self::default();
        let mut position = Position::default();
        let lines = (1..).zip(source.lines()).skip_while(|(_, text)| !text.contains("::run_impl("));
        for (line, text) in lines.take_while(|(_, text)| !text.starts_with('}')) {
            package.statement(line, text.trim_start(), &mut position);
        }
        package
    }

    /// Returns the node whose memory a line allocates.
    pub fn node(&self, line: u32) -> Option<&str> {
        self.nodes.get(&line).map(String::as_str)
    }

    fn statement<'a>(&mut self, line: u32, text: &'a str, position: &mut Position<'a>) {
        const LAUNCHES: [&str; 4] = ["AOTI_TORCH_ERROR_CODE_CHECK(", "aoti_torch_", "call_", "launchKernel("];
        if let Some(comment) = text.strip_prefix("//") {
            if let Some(sources) = source_nodes(comment) {
                position.source = sources.into_iter().next_back();
            }
            return;
        }
        let values = || names(text).map(|name| name.strip_suffix("_handle").unwrap_or(name));
        if text.contains("aoti_torch_empty_strided(") {
            if let Some(value) = values().last() {
                position.unused.insert(value, line);
            }
            return;
        }
        if text.starts_with("AtenTensorHandle ")
            || text.starts_with("RAIIAtenTensorHandle ")
            || text.contains(".reset()")
        {
            return;
        }
        if let Some(renamed) = text.strip_prefix("auto ") {
            if let Some(allocated) = values().find_map(|value| position.unused.remove(value))
                && let Some(name) = names(renamed).next()
            {
                position.unused.insert(name, allocated);
            }
            return;
        }
        let is_launch = LAUNCHES.iter().any(|launch| text.starts_with(launch));
        let filled = values().filter_map(|value| position.unused.remove(value)).chain(is_launch.then_some(line));
        if let Some(source) = &position.source {
            self.nodes.extend(filled.map(|line| (line, source.clone())));
        } else {
            filled.for_each(drop);
        }
        if is_launch {
            position.source = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "
void helper() {
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, sizes, strides, 6, 1, device, &buf0_handle));
}
void AOTInductorModel::run_impl(
    AtenTensorHandle* input_handles // array of handles
) {
    AtenTensorHandle buf0_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, sizes, strides, 6, 1, this->device_idx_, &buf0_handle));
    RAIIAtenTensorHandle buf0(buf0_handle);
    // Topologically Sorted Source Nodes: [layer_norm, linear], Original ATen: [aten.addmm]
    static constexpr int64_t int_array_4[] = {256L, 1024L};
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_mm_out(buf0, arg0_1, weight));
    auto buf1 = std::move(buf0);  // reuse
    // Topologically Sorted Source Nodes: [gelu], Original ATen: [aten.gelu]
    call_triton_poi_fused_gelu_1(buf1, 524288L, this->device_idx_, stream, kernels, this->cubin_dir_);
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, sizes, strides, 6, 1, this->device_idx_, &buf2_handle));
    call_triton_poi_fused_2(buf1, buf2, 524288L, this->device_idx_, stream, kernels, this->cubin_dir_);
    // Topologically Sorted Source Nodes: [conv2d], Original ATen: [aten.convolution]
    AtenTensorHandle buf3_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_convolution(buf2, weight, &buf3_handle));
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, sizes, strides, 6, 1, this->device_idx_, &buf4_handle));
    RAIIAtenTensorHandle buf4(buf4_handle);
    auto buf5 = reinterpret_tensor_wrapper(buf4, 1, sizes, strides, 0L);
    // Topologically Sorted Source Nodes: [add], Original ATen: [aten.add]
    CUdeviceptr var_0 = reinterpret_cast<CUdeviceptr>(buf5.data_ptr());
    launchKernel(kernels.triton_poi_fused_add_3, 1, 1, 1, 4, 0, kernel_args_var_0, stream);
} // AOTInductorModel::run_impl
";

    #[test]
    fn memory_belongs_to_the_last_node_of_the_first_launch_that_uses_it() {
        let package = Package::parse(SOURCE);
        let node_of = |text: &str| {
            let line = SOURCE.lines().skip(4).position(|line| line.contains(text)).unwrap() + 5;
            package.node(line as u32)
        };
        assert_eq!(node_of("&buf0_handle"), Some("linear"));
        assert_eq!(node_of("&buf2_handle"), None, "its launch has no comment");
        assert_eq!(node_of("&buf3_handle"), Some("conv2d"), "allocated by the operation itself");
        assert_eq!(node_of("&buf4_handle"), Some("add"), "launched as before PyTorch 2.8");
        assert_eq!(node_of("call_triton_poi_fused_gelu_1"), Some("gelu"));
        assert_eq!(package.node(3), None, "not of the model");
    }
}
