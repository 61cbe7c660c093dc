//! How the ranks of a communicator that is split learn who is in their part: each adds what it said to a file, and waits until all
//! have.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time to wait for the other ranks: as long as PyTorch waits for a collective.
const RANKS_TIMEOUT: Duration = Duration::from_secs(600);

/// What a rank says when a communicator is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its rank in the communicator.
    pub rank: i32,
    /// The part that it will be in; negative: none.
    pub color: i32,
    /// Its place in that part.
    pub key: i32,
}

/// Length of an entry of the file: whether it says that a rank has read all, and a [`Member`].
const ENTRY: usize = 16;

/// Tells the `ranks` that split the communicator what this one said. The members of its part, in their order.
///
/// # Errors
///
/// If the others do not come, or the file that they meet in cannot be written.
pub fn meet(id: u64, ranks: i32, own: Member) -> io::Result<Vec<Member>> {
    let path = folder().join(format!("simgpu-split-{id:016x}"));
    let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
    add(&mut file, 0, own)?;
    let given_up = Instant::now() + RANKS_TIMEOUT;
    let mut members = loop {
        let (said, _) = entries(&fs::read(&path)?);
        if said.len() >= ranks as usize {
            break said;
        }
        if Instant::now() > given_up {
            return Err(io::ErrorKind::TimedOut.into());
        }
        sleep(Duration::from_millis(1));
    };
    add(&mut file, 1, own)?;
    // Whoever is last finds that all have read it; so may another.
    let have_read = fs::read(&path).map_or(0, |bytes| entries(&bytes).1);
    if have_read >= ranks as usize {
        let _ = fs::remove_file(&path);
    }
    members.retain(|member| member.color == own.color);
    members.sort_by_key(|member| (member.key, member.rank));
    Ok(members)
}

fn folder() -> PathBuf {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() }
}

/// Adds an entry, in one write: others append at the same time.
fn add(file: &mut File, has_read: i32, Member { rank, color, key }: Member) -> io::Result<()> {
    let numbers = [has_read, rank, color, key].map(i32::to_le_bytes);
    file.write_all(numbers.as_flattened())
}

/// What ranks said, and how many have read it.
fn entries(bytes: &[u8]) -> (Vec<Member>, usize) {
    let mut said = Vec::new();
    let mut have_read = 0;
    for entry in bytes.chunks_exact(ENTRY) {
        let number = |at: usize| entry[at..at + 4].try_into().map_or(0, i32::from_le_bytes);
        match number(0) {
            0 => said.push(Member { rank: number(4), color: number(8), key: number(12) }),
            _ => have_read += 1,
        }
    }
    (said, have_read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_learn_who_is_in_their_part() {
        // GIVEN six ranks that split a communicator in two, in the opposite order of their ranks, and one that stays out
        let id = u64::from(std::process::id()) << 32 | 1;
        let says = |rank: i32| Member { rank, color: if rank == 5 { -1 } else { rank % 2 }, key: -rank };
        let of = |rank: i32| std::thread::spawn(move || meet(id, 6, says(rank)).unwrap());
        let threads: Vec<_> = (0..6).map(of).collect();
        // THEN each knows its part, and the file that they met in is gone
        let parts: Vec<Vec<i32>> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap().iter().map(|member| member.rank).collect())
            .collect();
        assert_eq!(parts, [vec![4, 2, 0], vec![3, 1], vec![4, 2, 0], vec![3, 1], vec![4, 2, 0], vec![5]]);
        assert!(!folder().join(format!("simgpu-split-{id:016x}")).exists());
    }
}
