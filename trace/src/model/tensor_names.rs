//! Names of tensors, by number.

use std::sync::Arc;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

/// Maximum number of names kept. A large model with its optimizer has tens of thousands.
const MAX_TENSOR_NAMES: usize = 1 << 20;

/// Name and sharding of a tensor, from its tag.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct TensorName {
    /// Name, as in [`memlab_format::record::Tag::name`].
    pub(crate) name: Arc<str>,
    /// Sharding, as in [`memlab_format::record::Tag::shard`].
    #[serde(default)]
    pub(crate) shard: Arc<str>,
}

/// All names, numbered from 1.
#[derive(Clone, Default)]
pub(crate) struct TensorNames {
    names: Vec<TensorName>,
    ids: HashMap<TensorName, u32>,
}

impl TensorNames {
    /// Returns the number of a name; 0 if the limit is reached.
    pub(crate) fn intern(&mut self, name: TensorName) -> u32 {
        if let Some(id) = self.ids.get(&name) {
            return *id;
        }
        if self.names.len() >= MAX_TENSOR_NAMES {
            return 0;
        }
        self.names.push(name.clone());
        let id = self.names.len() as u32;
        self.ids.insert(name, id);
        id
    }

    pub(crate) fn get(&self, id: u32) -> Option<&TensorName> {
        self.names.get((id as usize).checked_sub(1)?)
    }

    /// Returns all names, in the order of their numbers.
    pub(crate) fn all(&self) -> &[TensorName] {
        &self.names
    }
}
