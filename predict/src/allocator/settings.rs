//! Settings in `PYTORCH_ALLOC_CONF` (formerly `PYTORCH_CUDA_ALLOC_CONF`).

use std::fmt;

use crate::allocator::sizes::{
    LARGE_SEGMENT, MIN_BLOCK, MIN_LARGE_ALLOCATION, ROUND_LARGE, SMALL_ALLOCATION, SMALL_SEGMENT, round_up,
    round_up_to_division,
};

const MIB: u64 = 1 << 20;

/// Number of power-of-two intervals, from 1 MiB to 64 GiB, each with a separate number of divisions.
const INTERVALS: usize = 16;

/// First version of PyTorch that numbers segments and takes equal blocks in the order of these numbers.
const OLDEST_FIRST_SINCE: (u32, u32) = (2, 13);

/// Settings without effect on the model: they concern host memory, threads and locks.
const WITHOUT_EFFECT: &[&str] = &[
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_max_register_threads",
    "release_lock_on_cudamalloc",
    "throw_on_cudamalloc_oom",
];

/// Settings of the allocator. [`Settings::default()`] are PyTorch's.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// Blocks of at least this many bytes are not split (`max_split_size_mb`).
    pub max_split_size: u64,
    /// Largest excess of an unsplittable block over the request (`max_non_split_rounding_mb`).
    pub max_non_split_rounding: u64,
    /// Share of the allowed memory above which unused segments are given back (`garbage_collection_threshold`); 0:
    /// never.
    ///
    /// PyTorch applies it only if a memory fraction is set.
    pub garbage_collection_threshold: f64,
    /// Segments that grow, instead of one for each large request (`expandable_segments`).
    pub expandable_segments: bool,
    /// Size of the large pool's segments and pages (`large_segment_size_mb`).
    pub large_segment: u64,
    /// Share of the card that the process may take (`per_process_memory_fraction`, or
    /// `torch.cuda.set_per_process_memory_fraction`).
    pub memory_fraction: Option<f64>,
    /// True if, of free blocks of equal size, the one in the oldest segment is taken, rather than the one with the
    /// lowest address.
    ///
    /// Not the user's choice: see [`Settings::for_torch`].
    pub oldest_first: bool,
    /// Number of divisions between two powers of two, by interval (`roundup_power2_divisions`); 0 and 1: none.
    divisions: [u64; INTERVALS],
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_split_size: u64::MAX,
            max_non_split_rounding: LARGE_SEGMENT,
            garbage_collection_threshold: 0.0,
            expandable_segments: false,
            large_segment: LARGE_SEGMENT,
            memory_fraction: None,
            oldest_first: true,
            divisions: [0; INTERVALS],
        }
    }
}

/// Reason that a text is not valid as settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettingsError(String);

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SettingsError {}

impl Settings {
    /// Parses `key:value,key:value`, as PyTorch does.
    ///
    /// # Errors
    ///
    /// If PyTorch refuses the text; the error names the key and its valid values. Also refuses the backend
    /// `cudaMallocAsync`, which is another allocator.
    /// ```
    /// use memlab_predict::allocator::Settings;
    /// let settings = Settings::parse("expandable_segments:True,roundup_power2_divisions:[256:1,512:2,>:8]").unwrap();
    /// assert!(settings.expandable_segments);
    /// assert_eq!(settings.round(300 << 20), 300 << 20);
    /// assert_eq!(settings.round(1100 << 20), 1152 << 20);
    /// assert!(Settings::parse("max_split_size_mb:5").unwrap_err().to_string().contains("at least 20"));
    /// ```
    pub fn parse(text: &str) -> Result<Settings, SettingsError> {
        let mut settings = Settings::default();
        for (key, value) in pairs(text)? {
            settings.set(key, &value)?;
        }
        Ok(settings)
    }

    /// Returns the same settings for another version of PyTorch than the newest: (2, 11) for 2.11.
    #[must_use]
    pub fn for_torch(self, version: (u32, u32)) -> Settings {
        Settings { oldest_first: version >= OLDEST_FIRST_SINCE, ..self }
    }

    /// Returns true if the addresses of segments decide between free blocks of equal size.
    ///
    /// An expandable segment has a single range of addresses.
    pub fn depends_on_addresses(&self) -> bool {
        !self.oldest_first && !self.expandable_segments
    }

    fn set(&mut self, key: &str, value: &Value) -> Result<(), SettingsError> {
        let wrong = |wanted: &str| SettingsError(format!("{key} takes {wanted}, not '{value}'"));
        let number = || value.text().and_then(|text| text.parse::<u64>().ok());
        let mebibytes = |least: u64| match number() {
            Some(count) if count >= least => Ok(count.saturating_mul(MIB)),
            _ => Err(wrong(&format!("a number of MiB, at least {least}"))),
        };
        let share =
            || value.text().and_then(|text| text.parse::<f64>().ok()).filter(|share| (0.0..=1.0).contains(share));
        match key {
            "max_split_size_mb" => self.max_split_size = mebibytes(LARGE_SEGMENT / MIB)?,
            "max_non_split_rounding_mb" => self.max_non_split_rounding = mebibytes(LARGE_SEGMENT / MIB)?,
            "large_segment_size_mb" => self.large_segment = mebibytes(SMALL_SEGMENT / MIB)?,
            "garbage_collection_threshold" => {
                let share = share().filter(|share| *share > 0.0 && *share < 1.0);
                self.garbage_collection_threshold = share.ok_or_else(|| wrong("a number between 0 and 1"))?;
            }
            "per_process_memory_fraction" => {
                self.memory_fraction = Some(share().ok_or_else(|| wrong("a number from 0 to 1"))?);
            }
            "expandable_segments" => {
                self.expandable_segments = match value.text() {
                    Some("True") => true,
                    Some("False") => false,
                    _ => return Err(wrong("True or False")),
                };
            }
            "roundup_power2_divisions" => {
                self.divisions = divisions(value).ok_or_else(|| {
                    wrong("a power of two, or a list such as [256:1,512:2,1024:4,>:8] of powers of two")
                })?
            }
            "backend" if value.text() == Some("native") => {}
            "backend" => return Err(SettingsError("only PyTorch's own allocator, backend:native, is modelled".into())),
            _ if WITHOUT_EFFECT.contains(&key) => {}
            _ => return Err(SettingsError(format!("'{key}' is not an allocator setting that changes device memory"))),
        }
        Ok(())
    }

    /// Returns the block size for a request of `size` bytes (`round_size`).
    pub fn round(&self, size: u64) -> u64 {
        if size < MIN_BLOCK {
            return MIN_BLOCK;
        }
        let interval = (size.ilog2() as usize).saturating_sub(MIB.ilog2() as usize).min(INTERVALS - 1);
        let divisions = self.divisions[interval];
        if divisions > 1 && size > MIN_BLOCK * divisions {
            round_up_to_division(size, divisions)
        } else {
            round_up(size, MIN_BLOCK)
        }
    }

    /// Returns the size of a new segment for a block of `size` bytes (`get_allocation_size`).
    pub fn segment_size(&self, size: u64) -> u64 {
        if size <= SMALL_ALLOCATION {
            SMALL_SEGMENT
        } else if size < MIN_LARGE_ALLOCATION {
            self.large_segment
        } else {
            round_up(size, ROUND_LARGE)
        }
    }

    /// Returns the page size of an expandable segment.
    pub(crate) fn page_size(&self, is_small: bool) -> u64 {
        if is_small { SMALL_SEGMENT } else { self.large_segment }
    }

    /// Returns true if the rest of a block beyond the request becomes a separate block (`should_split`).
    pub(crate) fn splits(&self, is_small: bool, requested: u64, remaining: u64) -> bool {
        if is_small || self.expandable_segments {
            remaining >= MIN_BLOCK
        } else {
            requested < self.max_split_size && remaining > SMALL_ALLOCATION
        }
    }
}

/// Value of a key: one word, or a list of pairs in brackets.
enum Value {
    Text(String),
    List(Vec<(String, String)>),
}

impl Value {
    fn text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            Value::List(_) => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Value::Text(text) => f.write_str(text),
            Value::List(pairs) => {
                let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}:{value}")).collect();
                write!(f, "[{}]", pairs.join(","))
            }
        }
    }
}

/// Splits the text into keys and values. Ignores blanks, as PyTorch does.
fn pairs(text: &str) -> Result<Vec<(&str, Value)>, SettingsError> {
    let mut found = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let wrong = || SettingsError(format!("allocator settings have the form key:value,key:value; not '{rest}'"));
        let (key, after) = rest.split_once(':').ok_or_else(wrong)?;
        let after = after.trim_start();
        let (value, after) = match after.strip_prefix('[') {
            Some(list) => {
                let (list, after) = list.split_once(']').ok_or_else(wrong)?;
                let pairs = list.split(',').map(|pair| pair.split_once(':').ok_or_else(wrong));
                let pairs = pairs.map(|pair| pair.map(|(name, value)| (name.trim().into(), value.trim().into())));
                (Value::List(pairs.collect::<Result<_, _>>()?), after.trim_start())
            }
            None => {
                let end = after.find(',').unwrap_or(after.len());
                (Value::Text(after[..end].trim().into()), &after[end..])
            }
        };
        found.push((key.trim(), value));
        rest = match after.strip_prefix(',') {
            Some(next) => next.trim_start(),
            None if after.is_empty() => after,
            None => return Err(wrong()),
        };
    }
    Ok(found)
}

/// Returns the divisions of each interval.
///
/// A list names intervals by their lower bound in MiB. The first entry also applies to all intervals below, and `>` to
/// the last named one and all above. Unnamed intervals in between have no divisions, as in PyTorch.
fn divisions(value: &Value) -> Option<[u64; INTERVALS]> {
    let power = |text: &str| text.parse::<u64>().ok().filter(|number| number.is_power_of_two());
    let list = match value {
        Value::Text(text) => return Some([power(text)?; INTERVALS]),
        Value::List(list) => list,
    };
    let mut divisions = [0; INTERVALS];
    let mut last = None;
    for (bound, count) in list {
        let count = if count == "0" { 0 } else { power(count)? };
        if bound == ">" {
            divisions[last.unwrap_or(0)..].fill(count);
            continue;
        }
        let interval = (power(bound)?.ilog2() as usize).min(INTERVALS - 1);
        if last.is_none() {
            divisions[..interval].fill(count);
        }
        divisions[interval] = count;
        last = Some(interval);
    }
    Some(divisions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        Settings::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn nothing_is_the_default() {
        assert_eq!(Settings::parse("").unwrap(), Settings::default());
        assert_eq!(
            Settings::parse(" backend:native , pinned_use_background_threads:True").unwrap(),
            Settings::default()
        );
    }

    #[test]
    fn lists_of_divisions_are_read_as_pytorch_does() {
        let all = |text: &str| Settings::parse(&format!("roundup_power2_divisions:{text}")).unwrap().divisions;
        assert_eq!(all("4"), [4; 16]);
        let mut expected = [0; 16];
        expected[..=8].fill(1); // Below 256 MiB and 256 MiB itself.
        expected[10..].fill(4); // From 1 GiB; 512 MiB is not named.
        assert_eq!(all("[256:1, 1024:2, >:4]"), expected);
    }

    #[test]
    fn errors_show_valid_settings() {
        assert_eq!(message("max_split_size_mb:7"), "max_split_size_mb takes a number of MiB, at least 20, not '7'");
        assert_eq!(message("expandable_segments:yes"), "expandable_segments takes True or False, not 'yes'");
        assert_eq!(
            message("garbage_collection_threshold:1"),
            "garbage_collection_threshold takes a number between 0 and 1, not '1'"
        );
        assert!(message("roundup_power2_divisions:[3:1]").contains("powers of two, not '[3:1]'"));
        assert!(message("backend:cudaMallocAsync").contains("backend:native"));
        assert!(message("max_split:3").contains("'max_split' is not an allocator setting"));
        assert!(message("expandable_segments").contains("key:value"));
    }
}
