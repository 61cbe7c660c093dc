//! How a hook learns who called it.

/// Defines an exported entry that adds its caller's return address as one more argument and jumps to the body; the
/// body returns straight to the caller. The number is that of the integer arguments before it, which decides the
/// register (System V calling convention, x86-64).
macro_rules! entry_point {
    (1, $name:ident, $body:path) => { $crate::cuda::entry::entry_point!(@ "rsi", $name, $body); };
    (2, $name:ident, $body:path) => { $crate::cuda::entry::entry_point!(@ "rdx", $name, $body); };
    (3, $name:ident, $body:path) => { $crate::cuda::entry::entry_point!(@ "rcx", $name, $body); };
    (4, $name:ident, $body:path) => { $crate::cuda::entry::entry_point!(@ "r8", $name, $body); };
    (5, $name:ident, $body:path) => { $crate::cuda::entry::entry_point!(@ "r9", $name, $body); };
    (@ $register:literal, $name:ident, $body:path) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                concat!("mov ", $register, ", [rsp]"),
                "jmp {body}",
                body = sym $body,
            )
        }
    };
}
pub(crate) use entry_point;

/// A `CStr` from an identifier, at compile time.
macro_rules! c_name {
    ($name:ident) => {
        match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => unreachable!(),
        }
    };
}
pub(crate) use c_name;
