//! Checkpoints in the safetensors format: locates tensors in their files, and reads many of them at once.
//!
//! Files are untrusted. The header is checked against the file size, and an index may name files only in its own folder.

mod file;
mod read;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use safetensors::tensor::Metadata;
use serde::Deserialize;

use crate::error::Result;
use file::{exactly, malformed, open, unreadable};

pub use read::{FileRange, read_parts};

/// A tensor of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tensor {
    /// Name of the tensor.
    pub name: String,
    /// File that contains the tensor.
    pub path: PathBuf,
    /// Data type as written in the format: "BF16".
    pub dtype: String,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// Limit set by the format.
const MAX_HEADER_BYTES: u64 = 100_000_000;
const SUFFIX: &str = ".safetensors";
const INDEX_SUFFIX: &str = ".safetensors.index.json";

/// Returns all tensors of a checkpoint, sorted by file and offset.
///
/// `path` is a `.safetensors` file, an index of several files (`.safetensors.index.json`), or a folder with either.
///
/// # Errors
///
/// If a file cannot be read, is truncated, or is not a safetensors checkpoint.
pub fn tensors(path: &Path) -> Result<Vec<Tensor>> {
    let status = fs::metadata(path).map_err(|error| unreadable(path, error))?;
    if status.is_dir() {
        let inside = in_folder(path)?;
        return if names_index(&inside) { of_index(&inside) } else { of_file(&inside) };
    }
    if names_index(path) { of_index(path) } else { of_file(path) }
}

fn names_index(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

/// Finds the checkpoint of a folder: the index, else the only file, else the file with the default name.
fn in_folder(folder: &Path) -> Result<PathBuf> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| unreadable(folder, error))? {
        let entry = entry.map_err(|error| unreadable(folder, error))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort_unstable();
    for suffix in [INDEX_SUFFIX, SUFFIX] {
        let fitting: Vec<&String> = names.iter().filter(|name| name.ends_with(suffix)).collect();
        let default = fitting.iter().find(|name| name.strip_suffix(suffix) == Some("model"));
        match (default, fitting.as_slice()) {
            (Some(name), _) | (None, [name]) => return Ok(folder.join(name)),
            (None, []) => {}
            (None, [first, second, ..]) => {
                return Err(malformed(
                    folder,
                    format!("holds several checkpoints ({first}, {second} …): name one of them"),
                ));
            }
        }
    }
    Err(malformed(
        folder,
        format!("holds no *{SUFFIX} and no *{INDEX_SUFFIX}: name the folder of a safetensors checkpoint"),
    ))
}

#[derive(Deserialize)]
struct Index {
    /// Tensor → file.
    weight_map: BTreeMap<String, String>,
}

fn of_index(path: &Path) -> Result<Vec<Tensor>> {
    let (mut file, bytes) = open(path)?;
    if bytes > MAX_HEADER_BYTES {
        return Err(malformed(path, format!("has {bytes} bytes: an index has {MAX_HEADER_BYTES} at most")));
    }
    let index: Index = serde_json::from_slice(&exactly(&mut file, path, bytes)?)
        .map_err(|error| malformed(path, format!("is no index of a safetensors checkpoint: {error}")))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut wanted: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, name) in &index.weight_map {
        wanted.entry(name).or_default().push(tensor);
    }
    let mut all = Vec::with_capacity(index.weight_map.len());
    for (name, wanted) in wanted {
        let inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        if !inside || name.is_empty() {
            return Err(malformed(path, format!("names {name:?}: an index names files of its own folder only")));
        }
        let mut there: HashMap<String, Tensor> =
            of_file(&folder.join(name))?.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
        let first = all.len();
        for tensor in wanted {
            let Some(found) = there.remove(tensor) else {
                return Err(malformed(
                    path,
                    format!("says that {tensor} is in {name}, and it is not: fetch the checkpoint again"),
                ));
            };
            all.push(found);
        }
        all[first..].sort_by(in_file);
    }
    Ok(all)
}

fn of_file(path: &Path) -> Result<Vec<Tensor>> {
    let (mut file, bytes) = open(path)?;
    let mut length = [0; 8];
    if bytes < 8 {
        return Err(malformed(path, format!("has {bytes} bytes: it is no safetensors file, or was cut short")));
    }
    file.read_exact(&mut length).map_err(|error| unreadable(path, error))?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        let what =
            format!("begins with a header of {length} bytes ({MAX_HEADER_BYTES} at most): it is no safetensors file");
        return Err(malformed(path, what));
    }
    if length > bytes - 8 {
        return Err(malformed(
            path,
            format!("has {bytes} bytes, and a header of {length}: it was cut short, fetch it again"),
        ));
    }
    let header: Metadata = serde_json::from_slice(&exactly(&mut file, path, length)?)
        .map_err(|error| malformed(path, format!("has a header that cannot be right: {error}")))?;
    let data = 8 + length;
    let end = data.checked_add(header.data_len() as u64);
    if end != Some(bytes) {
        let promised = end.map_or("more than there can be".to_string(), |end| end.to_string());
        let what =
            format!("has {bytes} bytes, and its header says {promised}: it was cut short or damaged, fetch it again");
        return Err(malformed(path, what));
    }
    let mut all: Vec<Tensor> = header
        .tensors()
        .into_iter()
        .map(|(name, info)| Tensor {
            name,
            path: path.to_owned(),
            dtype: format!("{:?}", info.dtype),
            shape: info.shape.clone(),
            // `Metadata` checked that the tensors are contiguous up to the end of the file.
            offset: data + info.data_offsets.0 as u64,
            bytes: (info.data_offsets.1 - info.data_offsets.0) as u64,
        })
        .collect();
    all.sort_by(in_file);
    Ok(all)
}

fn in_file(one: &Tensor, other: &Tensor) -> std::cmp::Ordering {
    (one.offset, one.bytes, &one.name).cmp(&(other.offset, other.bytes, &other.name))
}
