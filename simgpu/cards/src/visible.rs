//! Selects the cards that a process sees: `CUDA_VISIBLE_DEVICES`.

/// Returns the UUID of a card in the format of `nvidia-smi -L`.
pub fn uuid_text(card: usize) -> String {
    let hex: String = uuid(card).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Returns the UUID of a card.
pub fn uuid(card: usize) -> [u8; 16] {
    let mut uuid = *b"memlab simgpu \0\0";
    uuid[15] = card as u8;
    uuid
}

/// Returns the cards that a list names by number or by (a prefix of) UUID, in its order.
///
/// As documented, the first element that names no card, or repeats one, ends the list.
pub fn select(list: Option<&str>, cards: usize) -> Vec<usize> {
    let Some(list) = list else { return (0..cards).collect() };
    let mut selected = Vec::new();
    for element in list.split(',').map(str::trim) {
        let named = if element.starts_with("GPU-") {
            (0..cards).find(|card| uuid_text(*card).starts_with(element))
        } else {
            element.parse().ok().filter(|card| *card < cards)
        };
        match named {
            Some(card) if !selected.contains(&card) => selected.push(card),
            _ => break,
        }
    }
    selected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_selects_cards_and_their_order() {
        // GIVEN four cards, WHEN no list is given, THEN all are visible.
        assert_eq!(select(None, 4), [0, 1, 2, 3]);
        // WHEN some are named, THEN those are visible, in that order.
        assert_eq!(select(Some("2,0"), 4), [2, 0]);
        assert_eq!(select(Some(&format!("{}, 1", uuid_text(3))), 4), [3, 1]);
        // WHEN a name is invalid or repeated, THEN the list ends before it.
        assert_eq!(select(Some("1,9,0"), 4), [1]);
        assert_eq!(select(Some("1,1,0"), 4), [1]);
        assert_eq!(select(Some(""), 4), []);
        assert_eq!(select(Some("-1"), 4), []);
    }

    #[test]
    fn uuids_have_the_format_of_nvidia_smi() {
        assert_eq!(uuid_text(1), "GPU-6d656d6c-6162-2073-696d-677075200001");
    }
}
