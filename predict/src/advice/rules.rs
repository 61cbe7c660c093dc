//! Rules; each tries one change on the recording.

pub(crate) mod activations;
pub(crate) mod attention;
pub(crate) mod checkpoint;
pub(crate) mod contexts;
pub(crate) mod evaluation;
pub(crate) mod gradients;
pub(crate) mod graph_pools;
pub(crate) mod leak;
pub(crate) mod loss;
pub(crate) mod optimizer;
pub(crate) mod settings;
pub(crate) mod workspaces;
