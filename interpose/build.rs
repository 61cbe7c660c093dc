//! Linker settings of libmemlab.so.

fn main() {
    // Once loaded it stays: threads, exit handlers and patched tables point into it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmemlab.so");
    // Our hooks mean ourselves by their names, also when loaded after a library that exports the same ones.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
