//! Exchanges the parts of a split communicator among its ranks: each rank appends its choice to a file, and waits for
//! the others.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time to wait for the other ranks: PyTorch's timeout of a collective.
const RANKS_TIMEOUT: Duration = Duration::from_secs(600);

/// Choice of a rank when a communicator is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Rank in the communicator.
    pub rank: i32,
    /// Part that it joins; negative: none.
    pub color: i32,
    /// Sort key within that part.
    pub key: i32,
}

/// Length of an entry of the file: a flag that a rank has read all entries, and a [`Member`].
const ENTRY: usize = 16;

/// Publishes the choice of this rank, and returns the members of its part, in order.
///
/// # Errors
///
/// If not all `ranks` respond in time, or the file cannot be written.
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
    // The last rank finds that all have read it; several may find so at once.
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

/// Appends an entry in one write, because others append at the same time.
fn add(file: &mut File, has_read: i32, Member { rank, color, key }: Member) -> io::Result<()> {
    let numbers = [has_read, rank, color, key].map(i32::to_le_bytes);
    file.write_all(numbers.as_flattened())
}

/// Returns the choices of the ranks, and the number of ranks that have read all.
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
        // GIVEN six ranks that split a communicator in two, in reverse order of their ranks, one of which stays out
        let id = u64::from(std::process::id()) << 32 | 1;
        let says = |rank: i32| Member { rank, color: if rank == 5 { -1 } else { rank % 2 }, key: -rank };
        let of = |rank: i32| std::thread::spawn(move || meet(id, 6, says(rank)).unwrap());
        let threads: Vec<_> = (0..6).map(of).collect();
        // THEN each knows its part, and the file is gone
        let parts: Vec<Vec<i32>> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap().iter().map(|member| member.rank).collect())
            .collect();
        assert_eq!(parts, [vec![4, 2, 0], vec![3, 1], vec![4, 2, 0], vec![3, 1], vec![4, 2, 0], vec![5]]);
        assert!(!folder().join(format!("simgpu-split-{id:016x}")).exists());
    }
}
