//! A plan of one rank of several.

use memlab_predict::plan::Recording;

/// Which rank the program was told to be, and of how many; 0 of 1 if it was told nothing.
pub fn rank_of(recording: &Recording) -> (u32, u32) {
    let header = recording.model.header();
    let rank = header.and_then(|header| header.rank).unwrap_or(0);
    (rank, header.and_then(|header| header.world_size).unwrap_or(1).max(1))
}

/// What the figures of one rank do not say.
pub fn warning(recording: &Recording) -> Option<String> {
    let (rank, ranks) = rank_of(recording);
    (ranks > 1).then(|| {
        format!("the other ranks are taken to do what rank {rank} does. NCCL's own memory depends on how the cards are connected: 32 MiB for \
         each communicator are counted, and it may be some hundred")
    })
}
