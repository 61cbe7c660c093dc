//! A plan of one rank of several.

use memlab_predict::plan::Recording;

/// Rank that the program was given, and number of ranks; 0 of 1 if it was given none.
pub fn rank_of(recording: &Recording) -> (u32, u32) {
    let header = recording.model.header();
    let rank = header.and_then(|header| header.rank).unwrap_or(0);
    (rank, header.and_then(|header| header.world_size).unwrap_or(1).max(1))
}

/// Warning about the limits of a plan of one rank.
pub fn warning(recording: &Recording) -> Option<String> {
    let (rank, ranks) = rank_of(recording);
    (ranks > 1).then(|| {
        format!(
            "the other ranks are assumed to behave as rank {rank}. NCCL's own memory depends on how the cards are \
                 connected: 32 MiB are counted for each communicator, but it may be some hundred"
        )
    })
}
