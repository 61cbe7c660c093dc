//! Regenerates `src/bindings.rs` from NVIDIA's headers. Run by `make bindings`, which downloads them:
//!
//!     generate-bindings HEADERS OUT.rs
//!
//! HEADERS is the folder with `cupti.h`, the CUDA runtime's headers and `crt/`. Only the declarations listed here are
//! kept, without comments: the license of NVIDIA's headers does not allow copying them.

use std::error::Error;
use std::process::Command;

use bindgen::callbacks::{EnumVariantCustomBehavior, EnumVariantValue, ParseCallbacks};

/// Functions and types, as regular expressions on their C names; the types that they need are included.
const FUNCTIONS: &str = "cupti(GetVersion|GetResultString|GetCallbackName|Subscribe|Unsubscribe|EnableCallback)\
    |cupti(EnableDomain|Finalize|GetGraphNodeId)\
    |cuptiActivity(RegisterCallbacks|RegisterTimestampCallback|Enable|Disable|FlushAll|GetNextRecord|GetNumDroppedRecords)";
const TYPES: &str = "CUpti_ActivityMemory[24]|CUpti_ActivityMemoryPool[23]|CUpti_ActivityFlag\
    |CUpti_ActivityKernel9|CUpti_ActivityMemcpy5|CUpti_ActivityMemcpyPtoP4|CUpti_ActivityMemset4|CUpti_ActivityMemcpyKind\
    |CUpti_CallbackData|CUpti_ResourceData|CUpti_GraphData|CUpti_CallbackIdResource|CUpti_driver_api_trace_cbid";

/// Prefixes of the values to keep in enumerations with hundreds of values: those about memory, copies and kernels.
const VALUES: [(&str, &[&str]); 4] = [
    (
        "CUPTI_ACTIVITY_KIND_",
        &[
            "CUPTI_ACTIVITY_KIND_INVALID",
            "CUPTI_ACTIVITY_KIND_MEM",
            "CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY",
            "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL",
        ],
    ),
    ("CUPTI_CBID_RESOURCE_", &["CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED", "CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED"]),
    ("CUPTI_ACTIVITY_FLAG_", &["CUPTI_ACTIVITY_FLAG_NONE", "CUPTI_ACTIVITY_FLAG_FLUSH_FORCED"]),
    (
        "CUPTI_DRIVER_TRACE_CBID_",
        &[
            "CUPTI_DRIVER_TRACE_CBID_cuMemAlloc",
            "CUPTI_DRIVER_TRACE_CBID_cuMemFree",
            "CUPTI_DRIVER_TRACE_CBID_cuMemHostAlloc",
            "CUPTI_DRIVER_TRACE_CBID_cuMemHostRegister",
            "CUPTI_DRIVER_TRACE_CBID_cuMemHostUnregister",
            "CUPTI_DRIVER_TRACE_CBID_cuMemAddress",
            "CUPTI_DRIVER_TRACE_CBID_cuMemCreate",
            "CUPTI_DRIVER_TRACE_CBID_cuMemRelease",
            "CUPTI_DRIVER_TRACE_CBID_cuMemMap",
            "CUPTI_DRIVER_TRACE_CBID_cuMemUnmap",
            "CUPTI_DRIVER_TRACE_CBID_cuMemPool",
            "CUPTI_DRIVER_TRACE_CBID_cuMemImport",
            "CUPTI_DRIVER_TRACE_CBID_cuMemExport",
            "CUPTI_DRIVER_TRACE_CBID_cuMemRetain",
            "CUPTI_DRIVER_TRACE_CBID_cuArrayCreate",
            "CUPTI_DRIVER_TRACE_CBID_cuArrayDestroy",
            "CUPTI_DRIVER_TRACE_CBID_cuArray3DCreate",
            "CUPTI_DRIVER_TRACE_CBID_cuMipmappedArrayCreate",
            "CUPTI_DRIVER_TRACE_CBID_cuMipmappedArrayDestroy",
            "CUPTI_DRIVER_TRACE_CBID_cuIpcOpenMemHandle",
            "CUPTI_DRIVER_TRACE_CBID_cuIpcCloseMemHandle",
            "CUPTI_DRIVER_TRACE_CBID_cuImportExternalMemory",
            "CUPTI_DRIVER_TRACE_CBID_cuDestroyExternalMemory",
            "CUPTI_DRIVER_TRACE_CBID_cuGraphAddMemAllocNode",
            "CUPTI_DRIVER_TRACE_CBID_cuGraphAddMemFreeNode",
            "CUPTI_DRIVER_TRACE_CBID_cuDeviceGraphMemTrim",
            "CUPTI_DRIVER_TRACE_CBID_cuDeviceSetMemPool",
        ],
    ),
];

#[derive(Debug)]
struct OnlyWanted;

impl ParseCallbacks for OnlyWanted {
    fn enum_variant_behavior(
        &self,
        _enum_name: Option<&str>,
        value: &str,
        _number: EnumVariantValue,
    ) -> Option<EnumVariantCustomBehavior> {
        let wanted = match VALUES.iter().find(|(family, _)| value.starts_with(family)) {
            Some((_, wanted)) => wanted.iter().any(|beginning| value.starts_with(beginning)),
            None => !value.ends_with("_FORCE_INT"),
        };
        (!wanted).then_some(EnumVariantCustomBehavior::Hide)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [headers, out] = arguments.as_slice() else {
        return Err("usage: generate-bindings HEADERS OUT.rs".into());
    };
    // The first Rust with edition 2024.
    let rust = bindgen::RustTarget::stable(85, 0).map_err(|_| "this bindgen does not know Rust 1.85")?;
    bindgen::Builder::default()
        .header_contents("memlab_cupti.h", "#include <cupti.h>\n")
        .clang_args([format!("-I{headers}"), format!("-isystem{}", compiler_headers()?)])
        .allowlist_function(FUNCTIONS)
        .allowlist_type(TYPES)
        .allowlist_var("CUPTI_API_VERSION")
        .parse_callbacks(Box::new(OnlyWanted))
        // Not Rust enums: a newer CUPTI can return a value that these headers do not have.
        .default_enum_style(bindgen::EnumVariation::NewType { is_bitfield: false, is_global: false })
        .generate_comments(false)
        .layout_tests(true)
        .merge_extern_blocks(true)
        .use_core()
        .rust_target(rust)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .disable_header_comment()
        .raw_line("// Made by `make bindings` from NVIDIA's headers: declarations only. Not to be edited.")
        .generate()?
        .write_to_file(out)?;
    Ok(())
}

/// Returns the folder of `stddef.h` and similar headers: the libclang wheel has none, so gcc's are used.
fn compiler_headers() -> Result<String, Box<dyn Error>> {
    let said = Command::new("gcc").arg("-print-file-name=include").output()?;
    Ok(String::from_utf8(said.stdout)?.trim().to_owned())
}
