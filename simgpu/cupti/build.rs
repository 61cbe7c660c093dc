//! Sets the soname under which programs for CUDA 13 look for CUPTI. When preloaded, this library replaces it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcupti.so.13");
    println!("cargo:rerun-if-changed=build.rs");
}
