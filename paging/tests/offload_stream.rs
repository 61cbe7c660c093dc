//! Copies of activations to the host and back, on the host backend and on the simulated GPU.
//!
//! The scenarios marked as ignored run in separate processes with the simulated driver.

use memlab_paging::backend::{Backend, Cuda, Host, Stream, Transfer};
use memlab_paging::offload_stream::{HostCopy, OffloadStream};
use memlab_paging::{DeviceMemory, Error};

const MIB: u64 = 1 << 20;

/// Runs one of the scenarios below on a simulated card, with these environment variables.
fn run_scenario(scenario: &str, variables: &[(&str, &str)]) {
    simgpu_tests::run_scenario(&format!("offload_stream::{scenario}"), variables);
}

#[test]
fn bytes_come_back_on_the_simulated_gpu() {
    run_scenario("scenario_bytes_come_back", &[]);
}

#[test]
fn a_copy_to_the_host_that_fails() {
    run_scenario("scenario_a_copy_that_fails", &[("SIMGPU_FAIL", "cuMemcpyDtoHAsync:719@2")]);
}

#[test]
fn pinning_refused() {
    run_scenario("scenario_pinning_refused", &[("SIMGPU_FAIL", "cuMemHostRegister_v2:2@1+")]);
}

/// Activations of a program: bytes on the host or the device.
struct Program {
    stream: OffloadStream,
    device: Option<i32>,
}

impl Program {
    fn new(device: Option<i32>) -> Self {
        Self { stream: OffloadStream::new(device, None).unwrap(), device }
    }

    /// Allocates memory with these contents.
    fn memory(&self, contents: &[u8]) -> DeviceMemory {
        let bytes = contents.len() as u64;
        let memory = DeviceMemory::new(self.device, bytes).unwrap();
        let write: Box<dyn Backend> = match self.device {
            Some(ordinal) => Box::new(Cuda::open(ordinal).unwrap()),
            None => Box::new(Host::new(None).unwrap()),
        };
        let is_pushed = write.activate().unwrap();
        let stream = write.create_stream().unwrap();
        // SAFETY: both ranges outlive the copy, which is waited for.
        unsafe { write.copy(&Transfer { from: contents.as_ptr() as u64, to: memory.address(), bytes }, stream) }
            .unwrap();
        write.synchronize(stream).unwrap();
        write.destroy_stream(stream);
        if is_pushed {
            write.deactivate();
        }
        memory
    }

    /// Copies to the host, growing as needed.
    fn save(&self, memory: &DeviceMemory) -> Result<HostCopy, Error> {
        let growth = self.stream.growth(memory.bytes());
        if growth > 0 {
            self.stream.grow(growth)?;
        }
        // SAFETY: the tests drop memory after `wait_saved`.
        Ok(unsafe { self.stream.save(memory.address(), memory.bytes(), Stream(0)) }?.expect("there is a place"))
    }

    /// Loads a copy into new memory, and returns its bytes.
    fn loaded(&self, copy: &HostCopy) -> Vec<u8> {
        let mut bytes = vec![0; copy.bytes() as usize];
        let memory = self.memory(&bytes);
        // SAFETY: the memory is dropped after the wait.
        unsafe { copy.load(memory.address(), Stream(0)) }.unwrap();
        copy.wait_loaded(Stream(0)).unwrap();
        self.stream.synchronize().unwrap();
        memory.read(0, &mut bytes).unwrap();
        bytes
    }
}

/// Returns bytes that differ from each other and from those of another seed.
fn numbers(bytes: u64, seed: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(seed * 2 + 3) >> 3) as u8 ^ seed as u8).collect()
}

fn bytes_come_back(program: &Program) {
    // GIVEN activations of many sizes, WHEN they are on the host and other data uses their memory
    let sizes = [1, 100, MIB, 3 * MIB + 17, 70 * MIB];
    let copies: Vec<HostCopy> = sizes
        .iter()
        .zip(0..)
        .map(|(&bytes, seed)| {
            let memory = program.memory(&numbers(bytes, seed));
            let copy = program.save(&memory).unwrap();
            assert!(copy.wait_loaded(Stream(0)).unwrap_err().to_string().contains("not being loaded"));
            copy.wait_saved(Stream(0)).unwrap();
            program.stream.synchronize().unwrap();
            copy
        })
        .collect();
    // THEN they can be loaded in any order, any number of times.
    for seed in [4, 0, 2, 3, 1, 1, 4] {
        assert!(program.loaded(&copies[seed]) == numbers(sizes[seed], seed as u64), "{seed}");
    }
    // AND WHEN they are dropped, THEN their places are reused, and no memory is added.
    let host_bytes = program.stream.host_bytes();
    assert!(host_bytes >= sizes.iter().sum());
    drop(copies);
    for seed in 0..20 {
        let memory = program.memory(&numbers(3 * MIB, seed));
        let copy = program.save(&memory).unwrap();
        copy.wait_saved(Stream(0)).unwrap();
        assert!(program.loaded(&copy) == numbers(3 * MIB, seed));
    }
    assert_eq!(program.stream.host_bytes(), host_bytes);
    // AND WHEN copies are timed, THEN their speed can be read once.
    assert_eq!(program.stream.bytes_per_second().unwrap(), None);
    program.stream.set_timed(true);
    let memory = program.memory(&numbers(MIB, 1));
    program.save(&memory).unwrap().wait_saved(Stream(0)).unwrap();
    assert!(program.stream.bytes_per_second().unwrap().unwrap() > 0.0);
    assert_eq!(program.stream.bytes_per_second().unwrap(), None);
    program.stream.set_timed(false);
    program.stream.synchronize().unwrap();
}

#[test]
fn bytes_come_back_on_the_host() {
    bytes_come_back(&Program::new(None));
}

#[test]
fn without_room_there_is_no_copy() {
    // GIVEN a stream without memory, THEN it copies nothing, and reports the missing bytes: more than requested at first
    let program = Program::new(None);
    let memory = program.memory(&numbers(MIB, 0));
    // SAFETY: nothing is copied.
    assert!(unsafe { program.stream.save(memory.address(), MIB, Stream(0)) }.unwrap().is_none());
    let growth = program.stream.growth(MIB);
    assert!(growth >= MIB && program.stream.host_bytes() == 0);
    // AND WHEN it has grown by that size, THEN a place is free.
    program.stream.grow(growth).unwrap();
    assert_eq!((program.stream.growth(MIB), program.stream.host_bytes()), (0, growth));
    assert!(program.stream.growth(growth + 1) > growth);
    // AND a request beyond the memory of any machine is refused.
    assert!(program.stream.grow(1 << 60).is_err() && program.stream.host_bytes() == growth);
}

#[test]
#[ignore = "run by `bytes_come_back_on_the_simulated_gpu`"]
fn scenario_bytes_come_back() {
    bytes_come_back(&Program::new(Some(0)));
}

#[test]
#[ignore = "run by `a_copy_to_the_host_that_fails`"]
fn scenario_a_copy_that_fails() {
    // GIVEN a driver whose second copy to the host fails
    let program = Program::new(Some(0));
    let memory = program.memory(&numbers(MIB, 1));
    let first = program.save(&memory).unwrap();
    // WHEN the copy is requested, THEN the error names the call and its purpose
    let error = program.save(&memory).err().unwrap().to_string();
    assert!(error.starts_with("cuMemcpyDtoHAsync_v2 failed with") && error.contains("saving activations"), "{error}");
    // AND its place is free again, and other copies are right.
    let third = program.save(&memory).unwrap();
    assert!(program.loaded(&first) == numbers(MIB, 1) && program.loaded(&third) == numbers(MIB, 1));
    let whole = program.stream.host_bytes() - 2 * MIB;
    assert_eq!(program.stream.growth(whole), 0);
}

#[test]
#[ignore = "run by `pinning_refused`"]
fn scenario_pinning_refused() {
    // GIVEN a system that pins nothing, THEN the result is a memory error, and nothing is added
    let program = Program::new(Some(0));
    let refused = program.stream.grow(MIB).unwrap_err();
    assert!(matches!(refused, Error::Memory(_)), "{refused}");
    assert_eq!(program.stream.host_bytes(), 0);
}
