//! Gives the library the name that programs linked against it will look for.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsimgpu_cudart.so");
    println!("cargo:rerun-if-changed=build.rs");
}
