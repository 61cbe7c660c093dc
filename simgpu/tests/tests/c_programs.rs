//! C programs on the simulated GPU. Comments in each program describe its scenario.

use std::os::unix::process::ExitStatusExt;

use simgpu_tests::{compile, compile_preload, run, run_program, simgpu, succeed, text};

#[test]
fn memory_through_the_runtime() {
    run_program("runtime_memory");
}

#[test]
fn stream_ordered_pools() {
    run_program("pools");
}

#[test]
fn virtual_memory_management() {
    run_program("vmm");
}

#[test]
fn captures_and_graphs() {
    run_program("graphs");
}

#[test]
fn a_statically_linked_runtime_finds_the_driver() {
    run_program("static_runtime");
}

#[test]
fn processes_share_a_card() {
    run_program("processes");
}

#[test]
fn cudnn_has_the_version_that_the_program_loaded() {
    let program = compile("cudnn_version", &[]);
    let empty = program.with_file_name("libcudnn.so.8");
    let link = ["-shared", "-x", "c", "/dev/null", "-Wl,-soname,libcudnn.so.8", "-o"];
    succeed(std::process::Command::new("cc").args(link).arg(&empty));
    assert_eq!(succeed(simgpu().arg(&program)), "92600 9\n");
    assert_eq!(succeed(simgpu().arg(&program).arg(&empty)), "8907 8\n");
}

/// Returns the return codes of the four allocations of `failures.c`.
fn allocations(variable: &str, value: &str) -> Vec<String> {
    let out = succeed(simgpu().arg(compile("failures", &[])).env(variable, value));
    out.lines().filter_map(|line| line.strip_prefix("malloc ")).map(str::to_owned).collect()
}

#[test]
fn failures_are_injected_on_request() {
    // GIVEN a program that allocates four times, WHEN one allocation is to fail, THEN that one fails.
    assert_eq!(allocations("SIMGPU_OOM_AT", "2"), ["0", "2", "0", "0"]);
    // WHEN all from the third on are to fail, THEN they fail.
    assert_eq!(allocations("SIMGPU_OOM_AT", "3+"), ["0", "0", "2", "2"]);
    // WHEN a driver function is to fail, by either of its names, THEN it returns that code.
    assert_eq!(allocations("SIMGPU_FAIL", "cuMemAlloc:719@3"), ["0", "0", "719", "0"]);
    assert_eq!(allocations("SIMGPU_FAIL", "cuInit:2@9,cuMemAlloc_v2:2"), ["2", "2", "2", "2"]);
    // WHEN the context is larger than the card, THEN the program gets no context and no memory.
    assert_eq!(allocations("SIMGPU_CONTEXT", "9GiB"), ["2", "2", "2", "2"]);
}

#[test]
fn a_process_sees_only_its_visible_devices() {
    // GIVEN a program that requires exactly one device, on a machine with three
    let program = compile("runtime_memory", &[]);
    let on = |visible: &str| run(simgpu().args(["--devices", "3"]).arg(&program).env("CUDA_VISIBLE_DEVICES", visible));
    // WHEN one is visible, THEN the program succeeds; WHEN two or none are, THEN it fails.
    assert!(on("2").status.success());
    assert!(!on("0,1").status.success());
    assert!(!on("").status.success());
}

#[test]
fn a_synchronisation_can_hang() {
    // GIVEN a program that synchronises, and a clock on which sleeps end at once
    let (program, clock) = (compile("failures", &[]), compile_preload("clock"));
    let hang = |time: &str| run(simgpu().arg(&program).env("SIMGPU_HANG_SYNC", time).env("LD_PRELOAD", &clock));
    // WHEN a synchronisation takes half a second, or three, THEN the program waits for it and continues.
    for (time, slept) in [("500ms", "clock: 500 ms\n"), ("3s", "clock: 3000 ms\n")] {
        let output = hang(time);
        assert_eq!(text(&output.stderr), slept);
        assert_eq!(text(&output.stdout).lines().last(), Some("synchronize 0"));
    }
    // WHEN a synchronisation never returns, THEN the program waits until the clock ends it.
    let output = hang("1");
    assert_eq!(output.status.signal(), Some(9));
    assert_eq!(text(&output.stderr), "clock: 3600000 ms\n".repeat(3));
}

#[test]
fn a_preloaded_interposer_stays_first() {
    // GIVEN a library that hooks dlsym and cuGetProcAddress, preloaded before simgpu's libraries
    let interposer = compile_preload("interposer");
    let program = compile("failures", &[]);
    // WHEN a program allocates through the runtime, THEN the library sees every allocation.
    for order in ["before", "inside"] {
        let preload = format!("LD_PRELOAD={}", interposer.display());
        let mut command = if order == "before" {
            let mut command = simgpu();
            command.arg(&program).env("LD_PRELOAD", &interposer);
            command
        } else {
            // As `simgpu memlab run -- CMD`: the inner command prepends its library to LD_PRELOAD.
            let script = format!("{preload}:$LD_PRELOAD exec {}", program.display());
            let mut command = simgpu();
            command.args(["sh", "-c", &script]);
            command
        };
        let output = run(&mut command);
        let err = text(&output.stderr);
        assert!(err.contains("interposer: 4 allocations, 4194304 bytes"), "{order}: {err}");
    }
}
