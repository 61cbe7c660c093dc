//! Linker settings of libmemlab.so.

fn main() {
    // The loaded library stays: threads, exit handlers and patched tables point into it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmemlab.so");
    // References between memlab's hooks resolve to memlab, even when it is loaded after a library that exports the same
    // names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
