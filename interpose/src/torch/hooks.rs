//! All hooks on PyTorch.

use super::hook::Hook;
use super::{allocator, autograd, workspace};

pub fn hooks() -> impl Iterator<Item = Hook> {
    allocator::hooks().into_iter().chain(autograd::hooks()).chain(workspace::hooks())
}
