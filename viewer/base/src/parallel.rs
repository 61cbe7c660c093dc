//! Positions of ranks in a parallel training, in words and as JSON.

use memlab_trace::Model;
use memlab_trace::record::{MeshDimension, Stages};
use serde::Serialize;

use crate::text::clean;

/// Position of a process in meshes and a pipeline.
#[derive(Serialize)]
pub struct Parallel {
    /// Dimensions of its device meshes; empty: none.
    mesh: Vec<DimensionRow>,
    /// Pipeline stages that it holds; empty: none.
    stages: Vec<u32>,
    /// Number of stages in the pipeline; null: no pipeline.
    stage_count: Option<u32>,
}

#[derive(Serialize)]
struct DimensionRow {
    name: String,
    coordinate: u32,
    size: u32,
}

impl Parallel {
    /// Converts the trace's records.
    pub fn of(mesh: &[MeshDimension], stages: &Stages) -> Self {
        let row = |of: &MeshDimension| DimensionRow { name: of.name.clone(), coordinate: of.coordinate, size: of.size };
        let stage_count = (!stages.stages.is_empty()).then_some(stages.of);
        Self { mesh: mesh.iter().map(row).collect(), stages: stages.stages.clone(), stage_count }
    }
}

/// `mesh dp=1 of 4, tp=0 of 2` and `stages 1, 3 of 4`, as far as they apply.
pub fn facts(model: &Model) -> Vec<String> {
    [place(model.mesh()), held(model.stages())].into_iter().flatten().collect()
}

/// `mesh dp=1 of 4, tp=0 of 2`.
fn place(mesh: &[MeshDimension]) -> Option<String> {
    let dimension = |of: &MeshDimension| format!("{}={} of {}", clean(&of.name), of.coordinate, of.size);
    let all: Vec<String> = mesh.iter().map(dimension).collect();
    (!all.is_empty()).then(|| format!("mesh {}", all.join(", ")))
}

/// `stage 1 of 4`, `stages 1, 3 of 4`.
pub fn held(stages: &Stages) -> Option<String> {
    let numbers: Vec<String> = stages.stages.iter().map(u32::to_string).collect();
    match numbers.len() {
        0 => None,
        1 => Some(format!("stage {} of {}", numbers[0], stages.of)),
        _ => Some(format!("stages {} of {}", numbers.join(", "), stages.of)),
    }
}

/// `dp=1 tp=0 stage 1`, short enough for a column; empty outside meshes and pipelines.
pub fn short(mesh: &[MeshDimension], stages: &Stages) -> String {
    let mut words: Vec<String> = mesh.iter().map(|of| format!("{}={}", of.name, of.coordinate)).collect();
    if !stages.stages.is_empty() {
        let numbers: Vec<String> = stages.stages.iter().map(u32::to_string).collect();
        words.push(format!("stage {}", numbers.join(",")));
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_described_by_mesh_and_stage() {
        let mesh = [("dp", 1, 4), ("tp", 0, 2)]
            .map(|(name, coordinate, size)| MeshDimension::from((name.to_owned(), coordinate, size)));
        assert_eq!(place(&mesh).as_deref(), Some("mesh dp=1 of 4, tp=0 of 2"));
        assert_eq!((place(&[]), held(&Stages::default())), (None, None));
        let stages = |stages: &[u32]| Stages { stages: stages.to_vec(), of: 4 };
        assert_eq!(held(&stages(&[1])).as_deref(), Some("stage 1 of 4"));
        assert_eq!(held(&stages(&[1, 3])).as_deref(), Some("stages 1, 3 of 4"));
        assert_eq!(short(&mesh, &stages(&[1, 3])), "dp=1 tp=0 stage 1,3");
    }
}
