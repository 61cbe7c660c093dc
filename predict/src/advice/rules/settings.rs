//! Tries other settings of PyTorch's allocator by replaying the recorded requests.

use std::cmp::Ordering;

use crate::plan::SETTINGS_FOR_LENGTHS;
use memlab_units::format::size;

use crate::advice::allocator_replay::AllocatorReplay;
use crate::advice::candidates::Candidates;
use crate::advice::cost::Cost;
use crate::advice::report::{Advice, Figure, Kind};

pub(crate) fn advise(replayed: Option<&Result<AllocatorReplay, String>>, candidates: &mut Candidates) {
    let replayed = match replayed {
        None => return,
        Some(Ok(replayed)) => replayed,
        Some(Err(because)) => {
            candidates.reject(Kind::Settings, "PYTORCH_CUDA_ALLOC_CONF", because);
            return;
        }
    };
    let before = replayed.reserved;
    let others =
        SETTINGS_FOR_LENGTHS.into_iter().filter(|settings| *settings != replayed.settings && !settings.is_empty());
    let mut tried: Vec<Advice> = others
        .filter_map(|settings| {
            let after = replayed.reserved_with(settings, &replayed.requests)?;
            Some(Advice {
                kind: Kind::Settings,
                place: settings.to_owned(),
                saved_bytes: before.saturating_sub(after),
                figure: Figure::Reserved,
                bytes_after: after,
                cost: Cost::ZERO,
                how: format!("export PYTORCH_CUDA_ALLOC_CONF={settings}"),
                because: format!(
                    "Replayed with these settings, the recorded requests reserve at most {}.",
                    size(after)
                ),
            })
        })
        .collect();
    tried.sort_by_key(|advice| advice.bytes_after);
    let mut tried = tried.into_iter();
    tried.next().into_iter().for_each(|best| candidates.add(best, None));
    for advice in tried {
        let change = match advice.bytes_after.cmp(&before) {
            Ordering::Greater => {
                format!("reserves {} more: the maximum reserved would be", size(advice.bytes_after - before))
            }
            Ordering::Equal => "saves 0 B: the maximum reserved stays at".to_owned(),
            Ordering::Less => format!("saves {}: the maximum reserved would be", size(advice.saved_bytes)),
        };
        let after = size(advice.bytes_after);
        candidates.reject(Kind::Settings, advice.place, format!("{change} {after}"));
    }
}
