//! Sets the soname that programs linked against the runtime look for.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsimgpu_cudart.so");
    println!("cargo:rerun-if-changed=build.rs");
}
