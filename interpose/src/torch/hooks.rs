//! All hooks on PyTorch.

use super::hook::TorchHook;
use super::{allocator, autograd, graphs, package, workspace};

pub fn hooks() -> impl Iterator<Item = TorchHook> {
    let of_memory = (allocator::hooks().into_iter()).chain(workspace::hooks()).chain(graphs::hooks());
    of_memory.chain(autograd::hooks()).chain(package::hooks())
}
