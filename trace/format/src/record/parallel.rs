//! Position of a rank in a parallel training, read from the objects of the program.

use serde::{Deserialize, Serialize};

/// Dimensions of the device meshes of the process.
///
/// Written each time they change.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let Record::Mesh(mesh) = decode_line(br#"{"mesh":[["dp",1,4],["tp",0,2]]}"#)? else { panic!() };
/// let dp = &mesh.mesh[0];
/// assert_eq!((dp.name.as_str(), dp.coordinate, dp.size), ("dp", 1, 4));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mesh {
    /// Dimensions, those of the largest mesh first.
    pub mesh: Vec<MeshDimension>,
}

/// One dimension of a device mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "(String, u32, u32)", into = "(String, u32, u32)")]
pub struct MeshDimension {
    /// Name; `dim0` and so on if the program gave it none.
    pub name: String,
    /// Coordinate of the process in this dimension, from 0.
    pub coordinate: u32,
    /// Number of processes along this dimension.
    pub size: u32,
}

impl From<(String, u32, u32)> for MeshDimension {
    fn from((name, coordinate, size): (String, u32, u32)) -> Self {
        Self { name, coordinate, size }
    }
}

impl From<MeshDimension> for (String, u32, u32) {
    fn from(MeshDimension { name, coordinate, size }: MeshDimension) -> Self {
        (name, coordinate, size)
    }
}

/// Pipeline stages of the process.
///
/// Written each time they change.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let Record::Stages(stages) = decode_line(br#"{"stages":[1,3],"of":4}"#)? else { panic!() };
/// assert_eq!((stages.stages, stages.of), (vec![1, 3], 4));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stages {
    /// Their numbers, from 0.
    pub stages: Vec<u32>,
    /// Number of stages of the pipeline.
    #[serde(default)]
    pub of: u32,
}
