//! Sets the soname by which programs for CUDA 13 look for CUPTI: preloaded, it takes its place.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcupti.so.13");
    println!("cargo:rerun-if-changed=build.rs");
}
