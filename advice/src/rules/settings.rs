//! Other settings of PyTorch's allocator, by carrying out the recorded requests with them.

use memlab_allocator::{Card, Settings, replay};
use memlab_plan::{Recording, SETTINGS_FOR_LENGTHS};

use crate::advice::{Advice, Figure, Kind};
use crate::cost::Cost;
use crate::verdicts::Verdicts;

/// The model of the allocator is right about a run if what it reserves is this near, in hundredths.
const NEAR: u64 = 3;

pub(crate) fn advise(recording: &Recording, verdicts: &mut Verdicts) {
    let recorded = recording.model.peaks(recording.device).reserved_bytes;
    let device = recording.model.device(recording.device).unwrap_or_default();
    if device.async_allocations > 0 || recorded == 0 {
        return;
    }
    let own = if recording.model.has_expandable_segments(recording.device) { "expandable_segments:True" } else { "" };
    let requests = recording.requests();
    let reserved = |settings: &str| {
        let settings = Settings::parse(settings).ok()?.for_torch(recording.torch_version());
        Some(replay(&requests, &settings, Card::ENDLESS).counters.reserved.peak)
    };
    let Some(before) = reserved(own) else { return };
    if before.abs_diff(recorded) > recorded / 100 * NEAR {
        let [before, recorded] = [before, recorded].map(memlab_sizes::format);
        let because = format!("carried out again, the run reserves {before} rather than {recorded}: not to be told");
        verdicts.no(Kind::Settings, "PYTORCH_CUDA_ALLOC_CONF", because);
        return;
    }
    let others = SETTINGS_FOR_LENGTHS.into_iter().filter(|settings| *settings != own && !settings.is_empty());
    let mut tried: Vec<Advice> = others
        .filter_map(|settings| {
            let after = reserved(settings)?;
            Some(Advice {
                kind: Kind::Settings,
                place: settings.to_owned(),
                saved_bytes: before.saturating_sub(after),
                figure: Figure::Reserved,
                bytes_after: after,
                cost: Cost::NOTHING,
                how: format!("export PYTORCH_CUDA_ALLOC_CONF={settings}"),
                because: format!(
                    "the recorded requests, carried out with these settings, reserve {} at most",
                    memlab_sizes::format(after)
                ),
            })
        })
        .collect();
    tried.sort_by_key(|advice| advice.bytes_after);
    let mut tried = tried.into_iter();
    tried.next().into_iter().for_each(|best| verdicts.weigh(best, None));
    for advice in tried {
        let change = match advice.bytes_after > before {
            true => format!("reserves {} more", memlab_sizes::format(advice.bytes_after - before)),
            false => format!("saves {}", memlab_sizes::format(advice.saved_bytes)),
        };
        let after = memlab_sizes::format(advice.bytes_after);
        verdicts.no(Kind::Settings, advice.place, format!("{change}: the peak would be {after} reserved"));
    }
}
