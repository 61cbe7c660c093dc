//! All hooks on PyTorch.

use super::hook::TorchHook;
use super::{allocator, autograd, package, workspace};

pub fn hooks() -> impl Iterator<Item = TorchHook> {
    (allocator::hooks().into_iter()).chain(autograd::hooks()).chain(workspace::hooks()).chain(package::hooks())
}
