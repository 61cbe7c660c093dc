//! Forecast for a sequence of steps of different lengths, in other orders, and with other allocator settings.

use std::thread;

use memlab_predict::allocator::{Card, Settings};
use memlab_predict::plan::{Family, Order, SETTINGS_FOR_LENGTHS, Sequence, thinned};
use serde::Serialize;

use memlab_base::error::bad_input;
use memlab_units::format::{self, size};

/// A change is recommended if it saves a hundredth of the card.
const MIN_SAVING_DIVISOR: u64 = 100;

/// Approximate number of requests replayed for a row, which takes a tenth of a second. The smallest card takes ten
/// times as long.
const REPLAYED_EVENTS: usize = 2_000_000;

/// Input of the forecast.
pub struct SequenceQuestion<'f> {
    /// The program at any length.
    pub family: &'f Family,
    /// Recorded lengths.
    pub recorded: Vec<u64>,
    /// Length of each step.
    pub lengths: &'f [u64],
    /// Batch size, if known.
    pub batch: Option<u64>,
    /// Memory of the card.
    pub card_bytes: u64,
    /// Part of it that the context takes.
    pub context_bytes: u64,
    /// Current settings of the allocator.
    pub settings: &'f str,
}

/// Forecast for an order with settings of the allocator.
#[derive(Clone, Debug, Serialize)]
pub struct SequenceRow {
    /// Order.
    pub order: String,
    /// Value of `PYTORCH_ALLOC_CONF`; empty: PyTorch's default.
    pub settings: String,
    /// True if both are current.
    pub is_current: bool,
    /// Longest step, with padding.
    pub longest: u64,
    /// Sum of all lengths, with padding.
    pub total_length: u64,
    /// `torch.cuda.max_memory_allocated()`.
    pub peak_allocated_bytes: u64,
    /// `torch.cuda.max_memory_reserved()` on a card that is never full.
    pub peak_reserved_bytes: u64,
    /// Smallest memory of a card on which all steps run, including context and libraries.
    pub needed_bytes: u64,
    /// True if the card has that much.
    pub fits: bool,
    /// Number of times that a full card forces the allocator to free unused memory, which stops the GPU.
    pub retries: u64,
    /// Step in which the card is out of memory, counted from 0.
    pub failed_in_step: Option<usize>,
}

/// Forecast for a sequence.
#[derive(Clone, Debug, Serialize)]
pub struct SequenceAnswer {
    /// Number of lengths given.
    pub steps: usize,
    /// Number of lengths replayed.
    pub replayed_steps: usize,
    /// Shortest length.
    pub shortest: u64,
    /// Longest length.
    pub longest: u64,
    /// Recorded lengths.
    pub recorded_lengths: Vec<u64>,
    /// Batch size of all steps, if known.
    pub batch: Option<u64>,
    /// Orders and settings, current ones first.
    pub rows: Vec<SequenceRow>,
    /// Recommended action.
    pub advice: String,
}

impl SequenceAnswer {
    /// Computes the forecast.
    ///
    /// # Errors
    ///
    /// If there are no lengths, steps of one length differ from each other, or the settings are not valid.
    pub fn to(question: &SequenceQuestion) -> anyhow::Result<SequenceAnswer> {
        let SequenceQuestion { family, recorded, lengths, batch, card_bytes, context_bytes, settings } = question;
        let (Some(shortest), Some(longest)) = (lengths.iter().copied().min(), lengths.iter().copied().max()) else {
            return Err(bad_input("no lengths are given"));
        };
        let Some(step) = Sequence::new(family, []).map(|empty| empty.events_in_step().max(1)) else {
            return Err(bad_input(
                "recorded steps of the same length differ from each other: no sequence of lengths can be planned. \
                 Record more steps: --steps 8",
            ));
        };
        let replayed = thinned(lengths, REPLAYED_EVENTS.div_ceil(step));
        let ordered = Order::CANDIDATES.map(|order| (order, order.of(&replayed)));
        let sequence = Sequence::new(family, ordered.iter().flat_map(|(_, lengths)| lengths.iter().copied()));
        let Some(sequence) = sequence else { return Err(bad_input("the recorded steps differ from each other")) };
        let mut all_settings = vec![*settings];
        all_settings.extend(SETTINGS_FOR_LENGTHS.into_iter().filter(|other| other != settings));
        let parsed = all_settings
            .iter()
            .map(|text| Ok((*text, Settings::parse(text)?.for_torch(family.recording.torch_version()))));
        let parsed: Vec<(&str, Settings)> = parsed.collect::<anyhow::Result<_>>()?;
        let room = CardRoom { card_bytes: *card_bytes, outside: context_bytes + family.recording.outside };
        let of_order = |(order, lengths): &(Order, Vec<u64>)| -> Vec<SequenceRow> {
            parsed.iter().map(|settings| room.row(&sequence, *order, lengths, settings)).collect()
        };
        let rows = thread::scope(|scope| {
            let threads = ordered.each_ref().map(|ordered| scope.spawn(|| of_order(ordered)));
            threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect::<Vec<_>>()
        });
        let rows: Vec<SequenceRow> = rows
            .into_iter()
            .map(|row| SequenceRow { is_current: row.order == name(Order::Given) && row.settings == *settings, ..row })
            .collect();
        Ok(SequenceAnswer {
            steps: lengths.len(),
            replayed_steps: replayed.len(),
            shortest,
            longest,
            recorded_lengths: recorded.clone(),
            batch: *batch,
            advice: advice(&rows, *card_bytes, room.outside),
            rows,
        })
    }
}

/// A card, part of which is unavailable to the allocator.
struct CardRoom {
    card_bytes: u64,
    outside: u64,
}

impl CardRoom {
    fn row(&self, sequence: &Sequence, order: Order, lengths: &[u64], settings: &(&str, Settings)) -> SequenceRow {
        let (text, settings) = settings;
        let needs = sequence.needs(lengths, settings, self.outside);
        let available = self.card_bytes.saturating_sub(self.outside);
        let here = sequence.run(lengths, settings, Card::with_available(self.card_bytes, available));
        SequenceRow {
            order: name(order),
            settings: (*text).to_owned(),
            is_current: false,
            longest: lengths.iter().copied().max().unwrap_or(0),
            total_length: lengths.iter().sum(),
            peak_allocated_bytes: needs.endless.counters.allocated.peak,
            peak_reserved_bytes: needs.endless.counters.reserved.peak,
            needed_bytes: needs.least,
            fits: here.failed_in.is_none(),
            retries: here.counters.retries,
            failed_in_step: here.failed_in,
        }
    }
}

fn name(order: Order) -> String {
    match order {
        Order::Given => "as given".to_owned(),
        Order::Shuffled(_) => "shuffled".to_owned(),
        Order::LongestFirst => "longest first".to_owned(),
        Order::Ascending => "ascending".to_owned(),
        Order::Buckets(width) => format!("padded to {width}"),
    }
}

/// One sentence on the change that saves most, among changes that keep the order of the training's samples.
fn advice(rows: &[SequenceRow], card_bytes: u64, outside: u64) -> String {
    let Some(today) = rows.iter().find(|row| row.is_current) else { return String::new() };
    let keeps_order = |row: &&SequenceRow| row.order != name(Order::Shuffled(0)) && row.order != name(Order::Ascending);
    // No row reserves more than the card has.
    let held = |row: &SequenceRow| row.peak_reserved_bytes.min(card_bytes.saturating_sub(outside));
    let worth = (card_bytes / MIN_SAVING_DIVISOR).max(1);
    let changes = |row: &SequenceRow| {
        let order = if row.order == today.order { 0 } else { 1 + u8::from(row.total_length > today.total_length) };
        order + u8::from(row.settings != today.settings)
    };
    // Of about equally good rows, the one with the fewest changes.
    let rank = |row: &SequenceRow| (!row.fits, row.retries > 0, held(row) / worth, changes(row), held(row));
    let Some(best) = rows.iter().filter(keeps_order).min_by_key(|row| rank(row)) else { return String::new() };
    let saved = held(today).saturating_sub(held(best));
    let helps = (best.fits && !today.fits) || (best.retries == 0 && today.retries > 0) || saved >= worth;
    if !helps {
        return match today.failed_in_step {
            Some(step) => format!(
                "no order or setting makes it fit: it runs out of memory in step {step}; {} would be enough",
                size(rows.iter().map(|row| row.needed_bytes).min().unwrap_or(0))
            ),
            None => "no order or setting saves 1 % of this card: keep both".to_owned(),
        };
    }
    let settings = match &best.settings[..] {
        same if same == today.settings => None,
        "" => Some("without PYTORCH_ALLOC_CONF".to_owned()),
        other => Some(format!("with PYTORCH_ALLOC_CONF={other}")),
    };
    let order = (best.order != today.order).then(|| match best.total_length.saturating_sub(today.total_length) {
        0 => format!("with the {}", best.order),
        padding => {
            format!("with lengths {} ({} more to compute)", best.order, format::percent(padding, today.total_length))
        }
    });
    let change: Vec<String> = settings.into_iter().chain(order).collect();
    let effect = match (today.failed_in_step, today.retries) {
        (Some(step), _) => format!("it fits, and runs out of memory in step {step} without"),
        (None, retries) if retries > 0 && best.retries == 0 => {
            let stops = format::counted(retries, "stop");
            format!(
                "it reserves {} instead of {}, and avoids {stops} to release unused memory",
                size(held(best)),
                size(held(today))
            )
        }
        _ => format!(
            "it reserves {} less of this card: {} instead of {} ({})",
            size(saved),
            size(held(best)),
            size(held(today)),
            format::percent(saved, held(today)).trim()
        ),
    };
    format!("{} {effect}", change.join(" and "))
}
