//! Rules that map allocations to operations, on small wrappers.

use std::fmt::Write as _;

use memlab_inductor::{Graph, Origins, Wrapper, origins};
use proptest::prelude::*;

const FORWARD: &str = "# AOT ID: ['0_forward']\n";
const BACKWARD: &str = "# AOT ID: ['0_backward']\n";

/// Builds a chain of operations, each in a module of its name and on a separate line; `x` is its input.
fn graph(names: &[&str]) -> Graph {
    let nodes: Vec<_> = std::iter::once(serde_json::json!({
        "name": "x", "placeholder": true, "trace": null, "modules": null, "inputs": []
    }))
    .chain(names.iter().enumerate().map(|(index, name)| {
        serde_json::json!({"name": name, "placeholder": false, "trace": index, "modules": index, "inputs": [index]})
    }))
    .collect();
    let traces: Vec<_> = names.iter().enumerate().map(|(index, name)| trace(name, index + 1)).collect();
    let modules: Vec<_> = names
        .iter()
        .map(|name| serde_json::json!([{"path": "net", "class": "Net"}, {"path": format!("net.{name}"), "class": "M"}]))
        .collect();
    let json = serde_json::json!({"traces": traces, "modules": modules, "nodes": nodes});
    Graph::parse(json.to_string().as_bytes()).expect("the graph is read")
}

fn trace(name: &str, line: usize) -> String {
    format!("  File \"net.py\", line {line}, in forward\n    {name}(x)\n")
}

/// Returns the innermost module of the allocation in the line that makes `buffer`.
fn module(origins: &Origins, source: &str, buffer: &str) -> Option<String> {
    let start = format!("{buffer} = ");
    let line = (1..).zip(source.lines()).find(|(_, text)| text.trim_start().starts_with(&start)).map(|(line, _)| line);
    let module = origins.at(line.expect("the buffer is made"))?.modules.last()?;
    Some(module.path.clone())
}

fn forward_module(names: &[&str], source: &str, buffer: &str) -> Option<String> {
    module(&origins(&graph(names), None, &Wrapper::parse(source), &[]), source, buffer)
}

#[test]
fn given_a_kernel_of_several_nodes_when_nothing_else_is_said_then_the_buffer_belongs_to_the_last() {
    let source = format!(
        "{FORWARD}def call(args):\n    x, = args\n    buf0 = empty_strided_cuda((8, ), (1, ), torch.float32)\n    \
         # Topologically Sorted Source Nodes: [linear, gelu], Original ATen: []\n    k.run(x, buf0, 8)\n"
    );
    assert_eq!(forward_module(&["linear", "gelu"], &source, "buf0").as_deref(), Some("net.gelu"));
}

const TWO_OUTPUTS: &str = "
# Topologically Sorted Source Nodes: [linear, gelu, norm], Original ATen: []
# Source node to ATen node mapping:
#   gelu => mul_1, mul_2
#   linear => view_1
#   norm => rsqrt
# Graph fragment:
#   return %view_1,%buf7,%mul_2
k = async_compile.triton('k', '''
def k(in_out_ptr0, in_ptr0, out_ptr1, xnumel):
''', device_str='cuda')
def call(args):
    x, = args
    buf0 = empty_strided_cuda((8, ), (1, ), torch.float32)
    # Topologically Sorted Source Nodes: [first], Original ATen: []
    extern_kernels.mm(x, x, out=buf0)
    buf5 = buf0; del buf0  # reuse
    buf9 = empty_strided_cuda((8, ), (1, ), torch.float32)
    # Topologically Sorted Source Nodes: [linear, gelu, norm], Original ATen: []
    k.run(buf5, x, buf9, 8)
    buf10 = empty_strided_cuda((8, ), (1, ), torch.float32)
    buf11 = empty_strided_cuda((8, ), (1, ), torch.float32)
    # Topologically Sorted Source Nodes: [linear_1, gelu_1, norm_1], Original ATen: []
    k.run(buf10, x, buf11, 8)
";

#[test]
fn given_a_definition_that_lists_outputs_when_launched_again_for_other_nodes_then_each_output_has_its_own_operation() {
    let names = ["first", "linear", "gelu", "norm", "linear_1", "gelu_1", "norm_1"];
    let source = format!("{FORWARD}{TWO_OUTPUTS}");
    let found = |buffer| forward_module(&names, &source, buffer);
    assert_eq!(found("buf0").as_deref(), Some("net.first"), "memory belongs to the first value in it");
    assert_eq!(found("buf9").as_deref(), Some("net.gelu"));
    assert_eq!(found("buf10").as_deref(), Some("net.linear_1"));
    assert_eq!(found("buf11").as_deref(), Some("net.gelu_1"));
}

#[test]
fn given_outputs_of_a_kernel_when_the_graph_lacks_the_name_of_one_then_that_counts_for_no_other() {
    let names = ["first", "linear", "one", "other", "norm"];
    let source = format!("{FORWARD}{TWO_OUTPUTS}");
    assert_eq!(forward_module(&names, &source, "buf9"), None);
    assert_eq!(forward_module(&["first", "linear", "one", "norm"], &source, "buf9").as_deref(), Some("net.one"));
}

#[test]
fn given_calls_without_out_and_tuples_in_a_partition_when_read_then_the_calls_line_has_the_origin() {
    let source = format!(
        "{FORWARD}def partition_0(args):\n    x, = args\n    # Topologically Sorted Source Nodes: [attend], Original ATen: []\n    \
         buf7 = torch.ops.aten.attention.default(x)\n    buf8 = buf7[0]\n    \
         buf9 = empty_strided_cuda((8, ), (1, ), torch.float32)\n    \
         # Topologically Sorted Source Nodes: [linear], Original ATen: []\n    \
         extern_kernels.mm(reinterpret_tensor(buf8, (8, ), (1, ), 0), x, out=buf9)\n"
    );
    assert_eq!(forward_module(&["attend", "linear"], &source, "buf7").as_deref(), Some("net.attend"));
    assert_eq!(forward_module(&["attend", "linear"], &source, "buf9").as_deref(), Some("net.linear"));
}

/// Source of three consecutive products.
fn chain(names: [&str; 3]) -> String {
    let mut source = format!("{FORWARD}def call(args):\n    x, = args\n");
    let mut input = "x".to_owned();
    for (number, name) in names.into_iter().enumerate() {
        write!(
            source,
            "    buf{number} = empty_strided_cuda((8, ), (1, ), torch.float32)\n    \
             # Topologically Sorted Source Nodes: [{name}], Original ATen: []\n    \
             extern_kernels.mm({input}, x, out=buf{number})\n"
        )
        .expect("a string takes any text");
        input = format!("buf{number}");
    }
    source
}

#[test]
fn given_a_name_that_the_graph_no_longer_has_when_one_operation_is_between_then_it_stands_for_that() {
    let source = chain(["first", "old", "last"]);
    assert_eq!(forward_module(&["first", "renamed", "last"], &source, "buf1").as_deref(), Some("net.renamed"));
    assert_eq!(forward_module(&["first", "renamed", "other", "last"], &source, "buf1"), None, "it may be either");
    let both = chain(["old", "older", "last"]);
    assert_eq!(forward_module(&["first", "renamed", "last"], &both, "buf0"), None, "nothing is known before it");
}

#[test]
fn given_backward_without_names_when_lines_have_traces_then_the_trace_says_the_operation_even_if_lines_moved() {
    let source = format!(
        "{BACKWARD}def call(args):\n    tangents_1, = args\n    buf0 = empty_strided_cuda((8, ), (1, ), torch.float32)\n    \
         # Unsorted Source Nodes: [], Original ATen: []\n    extern_kernels.mm(tangents_1, tangents_1, out=buf0)\n"
    );
    let wrapper = Wrapper::parse(&source);
    for line in [2, 70] {
        let written = trace("gelu", line);
        let found = origins(&graph(&["linear", "gelu"]), None, &wrapper, &[(6, Some(&written))]);
        assert_eq!(module(&found, &source, "buf0").as_deref(), Some("net.gelu"));
    }
    let found = origins(&graph(&["linear", "gelu"]), None, &wrapper, &[]);
    assert_eq!(module(&found, &source, "buf0"), None);
}

#[test]
fn given_backward_with_a_name_of_aten_when_the_graph_has_it_by_chance_then_it_says_nothing() {
    let source = format!(
        "{BACKWARD}def call(args):\n    tangents_1, = args\n    buf0 = empty_strided_cuda((8, ), (1, ), torch.float32)\n    \
         # Topologically Sorted Source Nodes: [mul_1], Original ATen: []\n    extern_kernels.mm(tangents_1, out=buf0)\n"
    );
    assert_eq!(forward_module(&["mul", "mul_1"], &source, "buf0"), None);
}

/// The same line for two layers, each with a separate weight under the same name, as in the bodies of checkpointed
/// calls.
fn repeated(name: impl Fn(usize) -> String) -> Graph {
    let node = |name: String, placeholder: bool, modules: Option<usize>, inputs: &[usize]| serde_json::json!({"name": name, "placeholder": placeholder, "trace": modules.map(|_| 0), "modules": modules, "inputs": inputs});
    let nodes = [
        node("x".to_owned(), true, None, &[]),
        node("weight".to_owned(), true, None, &[]),
        node("weight_1".to_owned(), true, None, &[]),
        node(name(0), false, Some(0), &[0, 1]),
        node(name(1), false, Some(1), &[3, 2]),
    ];
    let modules = ["net.first", "net.second"].map(|path| serde_json::json!([{"path": path, "class": "Linear"}]));
    let json = serde_json::json!({"traces": [trace("layer", 1)], "modules": modules, "nodes": nodes});
    Graph::parse(json.to_string().as_bytes()).expect("the graph is read")
}

/// Returns the layer of memory that a backward computes from `permute_2`, the argument in whose place forward kept
/// `kept`.
///
/// Both layers have one line.
fn layer_of_what_is_computed_from(kept: &str, backward: &str) -> Option<String> {
    let forward = format!(
        "{FORWARD}def call(args):\n    primals_1, primals_2, primals_3 = args\n    \
         return (primals_1, {kept}, reinterpret_tensor(primals_3, (8, 8), (1, 8), 0), reinterpret_tensor(primals_2, (8, 8), (1, 8), 0), )\n"
    );
    let (graph, written) = (repeated(|layer| format!("linear_{layer}")), trace("layer", 1));
    let (forward, backward_read) = (Wrapper::parse(&forward), Wrapper::parse(backward));
    let origins = origins(&graph, Some(&forward), &backward_read, &[(1, Some(&written))]);
    module(&origins, backward, "buf0")
}

/// Names nothing, and reads a value called a permutation.
const COMPUTES: &str = "    buf0 = empty_strided_cuda((8, ), (1, ), torch.float32)
    # Topologically Sorted Source Nodes: [], Original ATen: [aten.mm]
    extern_kernels.mm(tangents_1, permute_2, out=buf0)
";

#[test]
fn given_a_line_of_two_layers_when_backward_reads_a_weight_that_forward_kept_transposed_then_it_is_that_weights_layer()
{
    let backward =
        format!("{BACKWARD}def call(args):\n    primals_1, permute_2, permute_1, tangents_1 = args\n{COMPUTES}");
    // WHEN forward returns the second layer's weight in its place, THEN the memory is the second layer's
    assert_eq!(layer_of_what_is_computed_from("primals_1", &backward).as_deref(), Some("net.second"));
    // AND the layer is unknown if arguments are not in their expected places
    assert_eq!(layer_of_what_is_computed_from("primals_2", &backward), None);
}

#[test]
fn given_a_partition_with_its_own_order_of_arguments_when_it_reads_what_forward_kept_then_it_is_found_by_the_order_of_the_call()
 {
    let backward = format!(
        "{BACKWARD}def partition_0(args):\n    permute_2, tangents_1, permute_1, primals_1 = args\n{COMPUTES}    \
         return (buf0, )\n\nclass Runner:\n    def call(self, args):\n        \
         primals_1, permute_2, permute_1, tangents_1 = args\n        \
         (buf0,) = self.partitions[0]([permute_2, tangents_1, permute_1, primals_1])\n        return (buf0, )\n"
    );
    assert_eq!(layer_of_what_is_computed_from("primals_1", &backward).as_deref(), Some("net.second"));
}

#[test]
fn given_a_backward_without_traces_when_nothing_is_known_of_a_launch_then_it_is_of_what_lies_between_its_neighbours() {
    // GIVEN a backward of three consecutive launches; the first and the last name an operation of forward
    let backward = |last: &str| {
        format!(
            "{BACKWARD}def call(args):\n    tangents_1, = args\n    \
             buf0 = empty_strided_cuda((8, ), (1, ), torch.float32)\n    \
             # Topologically Sorted Source Nodes: [third, mm_1], Original ATen: []\n    k0.run(tangents_1, buf0, 8)\n    \
             buf1 = empty_strided_cuda((8, ), (1, ), torch.float32)\n    \
             # Topologically Sorted Source Nodes: [mm_2], Original ATen: []\n    k1.run(buf0, buf1, 8)\n    \
             buf2 = empty_strided_cuda((8, ), (1, ), torch.float32)\n    \
             # Topologically Sorted Source Nodes: [{last}], Original ATen: []\n    k2.run(buf1, buf2, 8)\n"
        )
    };
    let found = |source: &str, buffer: &str| {
        let read = Wrapper::parse(source);
        module(&origins(&graph(&["first", "second", "third"]), None, &read, &[]), source, buffer)
    };
    // THEN the middle one belongs to their common part
    let both = backward("second, mm_3");
    assert_eq!(found(&both, "buf0").as_deref(), Some("net.third"));
    assert_eq!(found(&both, "buf1").as_deref(), Some("net"));
    assert_eq!(found(&both, "buf2").as_deref(), Some("net.second"));
    // AND to nothing if one of them is unknown
    assert_eq!(found(&backward("mm_3"), "buf1"), None);
}

#[test]
fn given_bodies_with_the_same_names_when_a_kernel_reads_an_input_then_its_operation_is_the_one_that_uses_the_input() {
    let source = format!(
        "{FORWARD}# Topologically Sorted Source Nodes: [norm], Original ATen: [aten.norm]\n# Source node to ATen node mapping:\n#   norm => rsqrt, mul_1\nk = async_compile.triton('k', '''\n\
         def k(in_ptr0, out_ptr0, xnumel):\n''', device_str='cuda')\ndef call(args):\n    primals_1, primals_2, primals_3 = args\n    \
         buf0 = empty_strided_cuda((8, ), (1, ), torch.float32)\n    \
         # Topologically Sorted Source Nodes: [norm], Original ATen: [aten.norm]\n    k.run(primals_3, buf0, 8)\n"
    );
    let origins = origins(&repeated(|_| "norm".to_owned()), None, &Wrapper::parse(&source), &[]);
    assert_eq!(module(&origins, &source, "buf0").as_deref(), Some("net.second"));
}

proptest! {
    #[test]
    fn given_any_wrapper_when_origins_are_determined_then_they_are_of_lines_that_exist(
        lines in prop::collection::vec((prop::sample::select(vec![
            "def call(args):", "    x, primals_1 = args", "    buf0 = empty_strided_cuda((8, ), (1, ), torch.float32)",
            "    buf1 = buf0; del buf0  # reuse", "    buf0 = reinterpret_tensor(buf1, (8, ), 0); del buf1  # reuse",
            "    # Topologically Sorted Source Nodes: [a, mul_1], Original ATen: []", "    # Unsorted Source Nodes: []",
            "# Topologically Sorted Source Nodes: [a, old], Original ATen: []", "#   a => view_1, b", "#   return %view_1,%buf1",
            "k = async_compile.triton('k', '''", "def k(in_out_ptr0, out_ptr0, xnumel):", "''', device_str='cuda')",
            "    k.run(buf0, buf1, 8)", "    extern_kernels.mm(x, buf0, out=buf1)", "    buf2 = aten.f(buf0, primals_1)",
            "    return (buf0, buf1, None, )", "    buf0 = buf2[0]", "# AOT ID: ['0_backward']", "'''\u{e9}(", "    [",
        ]), any::<bool>()), 0..80)
    ) {
        let source: String = lines.iter().map(|(line, _)| format!("{line}\n")).collect();
        let wrapper = Wrapper::parse(&source);
        let written = trace("a", 9);
        let traces: Vec<_> =
            (1..).zip(&lines).filter(|(_, line)| line.1).map(|(line, _)| (line, Some(written.as_str()))).collect();
        let found = origins(&graph(&["a", "b", "mul_1"]), Some(&wrapper), &wrapper, &traces);
        for (line, _) in found.lines() {
            prop_assert!(line >= 1 && line as usize <= lines.len());
        }
    }

    #[test]
    fn given_any_text_when_parsed_then_nothing_breaks(source in ".*(\n.*){0,8}", json in ".*") {
        drop(Graph::parse(json.as_bytes()));
        origins(&graph(&["a"]), None, &Wrapper::parse(&source), &[]);
    }
}

/// Two layers, each with a separate weight, whose backward wrapper names nothing.
fn captured() -> Graph {
    let node = |name: &str, place: Option<usize>, inputs: &[usize]| {
        let is_input = name.starts_with("in");
        serde_json::json!({"name": name, "placeholder": is_input, "trace": place, "modules": place, "inputs": inputs})
    };
    let nodes = [
        node("in_gradient", None, &[]),
        node("in_weight", None, &[]),
        node("in_kept", None, &[]),
        node("in_first", None, &[]),
        node("mm", Some(0), &[0, 1]),
        node("gelu_backward", Some(1), &[4, 2]),
        node("mm_1", Some(2), &[5, 3]),
        node("sum_1", Some(2), &[5]),
    ];
    let traces: Vec<_> = ["down", "gelu", "up"].iter().zip(1..).map(|(name, line)| trace(name, line)).collect();
    let modules = ["net.down", "net", "net.up"].map(|path| serde_json::json!([{"path": path, "class": "M"}]));
    let json = serde_json::json!({"traces": traces, "modules": modules, "nodes": nodes, "results": [6, 7]});
    Graph::parse(json.to_string().as_bytes()).expect("the graph is read")
}

const CAPTURED: &str = "# AOT ID: ['1_inference']
k = async_compile.triton('k', '''
def k(in_out_ptr0, in_ptr0, out_ptr0, xnumel):
''', device_str='cuda')
def call(args):
    arg0_1, arg1_1, arg2_1, arg3_1 = args
    buf0 = empty_strided_cuda((8, ), (1, ), torch.float32)
    # Topologically Sorted Source Nodes: [], Original ATen: []
    extern_kernels.mm(arg0_1, arg1_1, out=buf0)
    buf1 = buf0; del buf0  # reuse
    buf2 = empty_strided_cuda((8, ), (1, ), torch.float32)
    # Topologically Sorted Source Nodes: [], Original ATen: []
    k.run(buf1, arg2_1, buf2, 8)
    buf3 = empty_strided_cuda((8, ), (1, ), torch.float32)
    # Topologically Sorted Source Nodes: [], Original ATen: []
    extern_kernels.mm(buf1, arg3_1, out=buf3)
    buf4 = empty_strided_cuda((8, ), (1, ), torch.float32)
    # Topologically Sorted Source Nodes: [], Original ATen: []
    k.run(buf4, buf1, buf4, 8)
    return (buf3, buf2, )
";

#[test]
fn given_a_wrapper_that_names_nothing_when_origins_are_determined_then_what_values_depend_on_says_it() {
    let of = |source: &str| origins(&captured(), None, &Wrapper::parse(source), &[]);
    let found = of(CAPTURED);
    assert_eq!(module(&found, CAPTURED, "buf0").as_deref(), Some("net.down"), "of the gradient and the weight");
    assert_eq!(module(&found, CAPTURED, "buf3").as_deref(), Some("net.up"), "the first result");
    assert_eq!(module(&found, CAPTURED, "buf2").as_deref(), Some("net.up"), "the second result");
    assert_eq!(module(&found, CAPTURED, "buf4"), None, "the operations with these inputs have no module in common");
    let other = CAPTURED.replace("arg3_1 = args", "arg3_1, arg4_1 = args");
    assert_eq!(of(&other).lines().count(), 0, "with other arguments nothing is known");
}

const KERNEL_OF_PROGRAM: &str = "
scale_0 = async_compile.triton('scale', '''
@triton_heuristics.user_autotune(
    triton_meta={'signature': {'source': '*fp32', 'BLOCK': 'constexpr', 'count': 'i32', 'target': '*fp32'}, 'device': {}},
    custom_kernel=True,
)
def scale(source, BLOCK: tl.constexpr, count, target):
''', device_str='cuda')
def call(args):
    x, = args
    buf0 = empty_strided_cuda((8, ), (1, ), torch.float32)
    # Topologically Sorted Source Nodes: [linear], Original ATen: []
    extern_kernels.mm(x, x, out=buf0)
    buf1 = empty_strided_cuda((8, ), (1, ), torch.float32)
    # Topologically Sorted Source Nodes: [linear, triton_kernel_wrapper_mutation], Original ATen: []
    scale_0.run(buf0, 8, buf1, 1, 1, 1, stream=raw_stream0)
    buf2 = empty_strided_cuda((8, ), (1, ), torch.float32)
    # Topologically Sorted Source Nodes: [sine, triton_kernel_wrapper_mutation], Original ATen: []
    k.run(buf1, buf2, 8)
";

/// A graph of a product, memory for a user-defined kernel, its call, and the reader of its result.
fn graph_with_kernel(parameters: &serde_json::Value) -> Graph {
    let names = ["x", "linear", "result", "triton_kernel_wrapper_mutation", "sine"];
    let nodes: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(index, name)| {
            let parameters = if index == 3 { parameters.clone() } else { serde_json::json!({}) };
            let inputs: &[usize] = if index == 3 { &[1, 2] } else { &[] };
            serde_json::json!({"name": name, "placeholder": index == 0, "trace": index, "modules": index, "inputs": inputs,
                "parameters": parameters})
        })
        .collect();
    let traces: Vec<_> = names.iter().enumerate().map(|(index, name)| trace(name, index + 1)).collect();
    let modules: Vec<_> =
        names.iter().map(|name| serde_json::json!([{"path": format!("net.{name}"), "class": "M"}])).collect();
    let json = serde_json::json!({"traces": traces, "modules": modules, "nodes": nodes});
    Graph::parse(json.to_string().as_bytes()).expect("the graph is read")
}

#[test]
fn given_a_kernel_of_the_program_when_it_fills_memory_then_that_belongs_to_the_operation_that_made_it() {
    let source = format!("{FORWARD}{KERNEL_OF_PROGRAM}");
    let found = |parameters: &serde_json::Value, buffer| {
        module(&origins(&graph_with_kernel(parameters), None, &Wrapper::parse(&source), &[]), &source, buffer)
    };
    let known = serde_json::json!({"target": 2, "source": 1});
    assert_eq!(found(&known, "buf1").as_deref(), Some("net.result"));
    assert_eq!(found(&known, "buf2").as_deref(), Some("net.sine"), "what reads it names the call too");
    let unknown = serde_json::json!({});
    assert_eq!(
        found(&unknown, "buf1").as_deref(),
        Some("net.triton_kernel_wrapper_mutation"),
        "the call is the next best"
    );
}
