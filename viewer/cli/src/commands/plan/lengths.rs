//! `memlab plan --lengths`: a program whose steps have different lengths.

use std::path::PathBuf;
use std::str::FromStr;

use memlab_predict::plan::{Family, Recording};

use crate::recording::{BATCH, LENGTH, Recorder};
use memlab_base::error::bad_input;

/// Recorded lengths are multiples of this.
///
/// Kernels round up to it, so sizes between recorded lengths can be interpolated.
const LENGTH_UNIT: u64 = 64;

/// The lengths of steps: numbers, or a file of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lengths {
    /// Numbers from the command line.
    Typed(Vec<u64>),
    /// A file with one number per line.
    File(PathBuf),
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<u64>> = text.split(',').map(length).collect();
        match numbers {
            Some(numbers) => Ok(Self::Typed(numbers)),
            None if text.trim_start().starts_with(|first: char| first.is_ascii_digit()) && text.contains(',') => {
                Err("write lengths as 512,300,1024, or name a file with one in each line".to_owned())
            }
            None => Ok(Self::File(text.into())),
        }
    }
}

fn length(text: &str) -> Option<u64> {
    const MAX_LENGTH: u64 = 1 << 32;
    text.trim().parse().ok().filter(|length| (1..=MAX_LENGTH).contains(length))
}

impl Lengths {
    /// Returns the numbers.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or a line is not a length.
    pub fn read(&self) -> anyhow::Result<Vec<u64>> {
        let path = match self {
            Self::Typed(numbers) => return Ok(numbers.clone()),
            Self::File(path) => path,
        };
        let text = std::fs::read_to_string(path).map_err(|error| bad_input(format!("{}: {error}", path.display())))?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let numbers = lines.map(|(index, line)| {
            let wrong = || {
                bad_input(format!(
                    "{}:{}: {line:?} is not a length; write one number per line",
                    path.display(),
                    index + 1
                ))
            };
            length(line).ok_or_else(wrong)
        });
        numbers.collect()
    }
}

/// A program at any length.
pub struct LengthProgram {
    /// The program's requests.
    pub family: Family,
    /// The lengths that were recorded.
    pub recorded: Vec<u64>,
    /// The batch size of all recordings, if the command takes one.
    pub batch: Option<u64>,
}

/// Records a program at its longest length, and at half and a quarter of it.
pub fn recorded(recorder: &mut Recorder, batches: &[u64], lengths: &[u64]) -> anyhow::Result<LengthProgram> {
    if !recorder.takes(LENGTH) {
        return Err(bad_input("--lengths: write {length} where the command takes the length of its samples"));
    }
    let batch = match (recorder.takes(BATCH), batches) {
        (false, _) => None,
        (true, [batch]) => Some(*batch),
        (true, _) => return Err(bad_input("with --lengths, all steps have one batch size: --batch 8")),
    };
    let recorded = to_record(lengths)?;
    let mut recording = |length: u64| -> anyhow::Result<(u64, Recording)> {
        recorder.length = Some(length);
        Ok((length, recorder.record(batch)?))
    };
    let recordings = [recording(recorded[0])?, recording(recorded[1])?, recording(recorded[2])?];
    let family = Family::of_three(recordings).map_err(|error| bad_input(error.to_string()))?;
    Ok(LengthProgram { family, recorded: recorded.to_vec(), batch })
}

fn to_record(lengths: &[u64]) -> anyhow::Result<[u64; 3]> {
    const MIN_LENGTH: u64 = 4;
    let longest = lengths.iter().copied().max().unwrap_or(0);
    if longest < MIN_LENGTH {
        return Err(bad_input(format!("the longest of the lengths must be {MIN_LENGTH} or more")));
    }
    let rounded = |length: u64| if length < LENGTH_UNIT { length } else { length / LENGTH_UNIT * LENGTH_UNIT };
    Ok([rounded(longest / 4), rounded(longest / 2), longest])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_numbers_or_a_file() {
        assert_eq!("512".parse(), Ok(Lengths::Typed(vec![512])));
        assert_eq!(" 8, 16 ".parse(), Ok(Lengths::Typed(vec![8, 16])));
        assert_eq!("lengths.txt".parse(), Ok(Lengths::File("lengths.txt".into())));
        for wrong in ["8,", "8,0", "8,x"] {
            assert!(wrong.parse::<Lengths>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn three_different_lengths_are_recorded() {
        for longest in (4..300).chain([1000, 1024, 4096]) {
            let [low, middle, high] = to_record(&[1, longest, 2]).unwrap();
            assert!(0 < low && low < middle && middle < high && high == longest, "{longest}");
        }
        assert_eq!(to_record(&[1000]).unwrap(), [192, 448, 1000]);
        assert!(to_record(&[3, 2]).is_err() && to_record(&[]).is_err());
    }
}
