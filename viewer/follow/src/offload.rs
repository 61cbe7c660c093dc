//! Moves the GPU memory of running programs to host memory and back: the control socket of traced processes, the CUDA
//! driver's checkpoint, and the selection of pages.

pub mod checkpoint;
pub mod control;
pub mod cuda_driver;
pub mod mover;
pub mod operation;
pub mod selection;
