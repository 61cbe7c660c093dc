//! Checkpoints: valid ones are read, and invalid or damaged ones are refused with a reason.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use memlab_paging::Error;
use memlab_paging::checkpoint::{FileRange, Tensor, read_parts, tensors};
use proptest::prelude::*;

/// Writes a file with this header and this many bytes of data.
fn write(path: &Path, header: &str, data: usize) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend((0..data).map(|i| i as u8));
    fs::write(path, bytes).unwrap();
}

fn entry(name: &str, dtype: &str, shape: &str, begin: usize, end: usize) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn refused(path: &Path) -> String {
    match tensors(path) {
        Err(Error::Invalid(text)) => text,
        other => panic!("{other:?}"),
    }
}

fn read(parts: &[FileRange], memory: &mut [u8]) -> Result<(), Error> {
    // SAFETY: only this test uses the memory.
    unsafe { read_parts(parts, memory.as_mut_ptr(), memory.len() as u64) }
}

#[test]
fn tensors_have_the_offsets_of_the_header() {
    // GIVEN a file with two tensors, the second first in the header, an empty one, and metadata
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let entries =
        [entry("b", "F32", "[2]", 6, 14), entry("a", "BF16", "[3,1]", 0, 6), entry("none", "I8", "[0]", 14, 14)];
    let header = format!(r#"{{"__metadata__":{{"format":"pt"}},{}}}"#, entries.join(","));
    write(&path, &header, 14);
    // WHEN it is opened by its path and by its folder
    let found = tensors(&path).unwrap();
    assert_eq!(found, tensors(folder.path()).unwrap());
    // THEN the tensors are in the file's order, with their offsets
    let data = 8 + header.len() as u64;
    let tensor = |name: &str, dtype: &str, shape: &[usize], offset, bytes| Tensor {
        name: name.to_string(),
        path: path.clone(),
        dtype: dtype.to_string(),
        shape: shape.to_vec(),
        offset: data + offset,
        bytes,
    };
    let expected =
        [tensor("a", "BF16", &[3, 1], 0, 6), tensor("b", "F32", &[2], 6, 8), tensor("none", "I8", &[0], 14, 0)];
    assert_eq!(found, expected);
}

/// Two files and their index.
fn sharded(folder: &Path) -> PathBuf {
    write(&folder.join("model-2.safetensors"), &format!("{{{}}}", entry("late", "U8", "[4]", 0, 4)), 4);
    let entries = [entry("first", "U8", "[2]", 0, 2), entry("second", "U8", "[1]", 2, 3)];
    write(&folder.join("model-1.safetensors"), &format!("{{{}}}", entries.join(",")), 3);
    let index = folder.join("model.safetensors.index.json");
    let map = r#"{"late":"model-2.safetensors","second":"model-1.safetensors","first":"model-1.safetensors"}"#;
    fs::write(&index, format!(r#"{{"metadata":{{"total_size":7}},"weight_map":{map}}}"#)).unwrap();
    index
}

#[test]
fn an_index_gathers_its_files() {
    // GIVEN a checkpoint in two files, also linked from a cache folder like that of the hub's client
    let (blobs, cache) = (folder(), folder());
    let index = sharded(blobs.path());
    for name in ["model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"] {
        symlink(blobs.path().join(name), cache.path().join(name)).unwrap();
    }
    // WHEN it is opened by its index, by its folder, and by the folder of links
    for path in [index.as_path(), blobs.path(), cache.path()] {
        // THEN all tensors are found, file by file
        let names: Vec<String> = tensors(path).unwrap().into_iter().map(|tensor| tensor.name).collect();
        assert_eq!(names, ["first", "second", "late"]);
    }
}

#[test]
fn an_index_that_does_not_match_its_files_is_refused() {
    let folder = folder();
    let index = sharded(folder.path());
    let outside = folder.path().parent().unwrap().join("model-1.safetensors");
    for (map, word) in [
        // GIVEN an index that names a missing tensor,
        (r#"{"third":"model-1.safetensors"}"#.to_string(), "says that third is in model-1.safetensors"),
        // files outside of its folder,
        (r#"{"first":"../model-1.safetensors"}"#.to_string(), "files of its own folder only"),
        (format!(r#"{{"first":{outside:?}}}"#), "files of its own folder only"),
        (r#"{"first":""}"#.to_string(), "files of its own folder only"),
        // or no files at all
        (r#"["first"]"#.to_string(), "is no index"),
        (r#"{"first":7}"#.to_string(), "is no index"),
    ] {
        fs::write(&index, format!(r#"{{"weight_map":{map}}}"#)).unwrap();
        // WHEN it is read THEN the error names the cause
        let text = refused(&index);
        assert!(text.contains(word), "{text}");
    }
    // WHEN a file is missing THEN the system's error names it
    fs::write(&index, r#"{"weight_map":{"a":"gone.safetensors"}}"#).unwrap();
    let error = tensors(&index).unwrap_err();
    assert!(matches!(&error, Error::File { path, .. } if path.ends_with("gone.safetensors")), "{error}");
}

#[test]
fn a_folder_must_hold_one_checkpoint() {
    // GIVEN a folder without a checkpoint WHEN it is opened THEN the error names the cause
    let folder = folder();
    assert!(refused(folder.path()).contains("holds no *.safetensors"));
    // GIVEN two equal candidates THEN the error names them
    for name in ["a.safetensors", "b.safetensors"] {
        write(&folder.path().join(name), "{}", 0);
    }
    assert!(refused(folder.path()).contains("a.safetensors, b.safetensors"));
    // GIVEN one with the default name THEN it is used
    write(&folder.path().join("model.safetensors"), &format!("{{{}}}", entry("x", "U8", "[1]", 0, 1)), 1);
    assert_eq!(tensors(folder.path()).unwrap().len(), 1);
}

#[test]
fn invalid_headers_are_refused_with_a_reason() {
    let folder = folder();
    let path = folder.path().join("hostile.safetensors");
    let whole = usize::MAX;
    for (header, data, word) in [
        // GIVEN headers that are not JSON, or not of the format,
        ("{".to_string(), 0, "cannot be right"),
        ("[]".to_string(), 0, "cannot be right"),
        (format!("{{{}}}", entry("a", "F7", "[1]", 0, 1)), 1, "F7"),
        (format!("{{{}}}", entry("a", "U8", "[-1]", 0, 1)), 1, "cannot be right"),
        ("[".repeat(1_000_000), 0, "cannot be right"),
        // whose shapes do not match the bytes, overflow, leave holes or overlap,
        (format!("{{{}}}", entry("a", "F32", "[2]", 0, 4)), 4, "cannot be right"),
        (format!("{{{}}}", entry("a", "F32", &format!("[{whole},{whole}]"), 0, 4)), 4, "cannot be right"),
        (format!("{{{}}}", entry("a", "U8", "[4]", 4, 8)), 8, "cannot be right"),
        (format!("{{{},{}}}", entry("a", "U8", "[4]", 0, 4), entry("b", "U8", "[4]", 2, 6)), 6, "cannot be right"),
        (format!("{{{}}}", entry("a", "U8", "[4]", 8, 4)), 8, "cannot be right"),
        // or that promise more or less than the file has
        (format!("{{{}}}", entry("a", "U8", "[4]", 0, 4)), 3, "was cut short"),
        (format!("{{{}}}", entry("a", "U8", "[4]", 0, 4)), 5, "its header says"),
        (format!("{{{}}}", entry("a", "U8", &format!("[{}]", whole / 16), 0, whole / 16)), 4, "its header says"),
    ] {
        write(&path, &header, data);
        // WHEN it is read THEN the error contains the file and the reason
        let text = refused(&path);
        assert!(text.contains(word) && text.contains("hostile.safetensors"), "{text}");
    }
    // GIVEN files that are too short for their length field, or claim a header of any size
    for (bytes, word) in [
        (vec![], "has 0 bytes"),
        (vec![1, 2, 3], "has 3 bytes"),
        (100u64.to_le_bytes().to_vec(), "was cut short"),
        (u64::MAX.to_le_bytes().to_vec(), "no safetensors file"),
        (100_000_001u64.to_le_bytes().to_vec(), "no safetensors file"),
    ] {
        fs::write(&path, bytes).unwrap();
        let text = refused(&path);
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn pipes_are_refused_without_waiting() {
    // GIVEN a pipe without a writer
    let folder = folder();
    let path = folder.path().join("pipe.safetensors");
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the name is NUL-terminated.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    // WHEN it is read THEN it is refused without blocking
    assert!(refused(&path).contains("no regular file"));
    let part = FileRange { path, file_offset: 0, offset: 0, bytes: 1 };
    assert!(read(&[part], &mut [0]).unwrap_err().to_string().contains("no regular file"));
}

proptest! {
    #[test]
    fn any_header_is_handled(bytes in prop::collection::vec(any::<u8>(), 0..200), length in 0u64..200, json in any::<bool>()) {
        // GIVEN a file of arbitrary bytes after a plausible length
        let folder = folder();
        let path = folder.path().join("any.safetensors");
        let mut file = length.to_le_bytes().to_vec();
        let body = br#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}1234"#;
        file.extend(if json { body.iter().zip(bytes.iter().chain(&[0; 200])).map(|(a, b)| if b % 16 == 1 { *b } else { *a }).collect() } else { bytes });
        fs::write(&path, file).unwrap();
        // WHEN it is read THEN the call returns, and all tensors are inside the file
        if let Ok(found) = tensors(&path) {
            let size = fs::metadata(&path).unwrap().len();
            prop_assert!(found.iter().all(|tensor| tensor.offset + tensor.bytes <= size));
        }
    }

    #[test]
    fn parts_are_read_to_their_offsets(sizes in prop::collection::vec(0usize..5000, 1..20), gap in 0usize..9, shift in 0usize..50) {
        // GIVEN parts of two files, in any order, with gaps between them
        let folder = folder();
        let paths = [folder.path().join("one"), folder.path().join("two")];
        let content: Vec<u8> = (0..60_000u32).map(|i| (i * 7 % 251) as u8).collect();
        fs::write(&paths[0], &content).unwrap();
        fs::write(&paths[1], &content[shift..]).unwrap();
        let mut expected = vec![0xee; 120_000];
        let mut parts = Vec::new();
        let mut next = 0;
        for (number, &bytes) in sizes.iter().enumerate() {
            let (file, from) = (number % 2, number * 31);
            let offset = from + file * shift;
            expected[next..next + bytes].copy_from_slice(&content[offset..offset + bytes]);
            let (path, file_offset) = (paths[file].clone(), from as u64);
            parts.push(FileRange { path, file_offset, offset: next as u64, bytes: bytes as u64 });
            next += bytes + gap;
        }
        parts.reverse();
        // WHEN they are read
        let mut memory = vec![0xee; 120_000];
        read(&parts, &mut memory).unwrap();
        // THEN each byte is in its place, and no other is changed
        prop_assert!(memory == expected);
    }
}

#[test]
fn a_large_part_is_read_in_pieces() {
    // GIVEN a part of several pieces and an odd size
    let folder = folder();
    let path = folder.path().join("large");
    let content: Vec<u8> = (0..(40u32 << 20) + 77).map(|i| (i ^ i >> 11) as u8).collect();
    fs::write(&path, &content).unwrap();
    // WHEN it is read to byte 5
    let mut memory = vec![0; content.len()];
    let bytes = content.len() as u64 - 5;
    read(&[FileRange { path, file_offset: 5, offset: 5, bytes }], &mut memory).unwrap();
    // THEN all bytes are right
    assert!(memory[5..] == content[5..]);
}

#[test]
fn parts_that_cannot_be_read_are_an_error() {
    // GIVEN a file of 100 bytes
    let folder = folder();
    let path = folder.path().join("short.safetensors");
    fs::write(&path, [1; 100]).unwrap();
    let part = |file_offset, offset, bytes| FileRange { path: path.clone(), file_offset, offset, bytes };
    let mut memory = [0; 200];
    for (parts, word) in [
        // WHEN more is requested than the file has,
        (vec![part(0, 0, 10), part(50, 10, 51)], "short.safetensors"),
        (vec![part(u64::MAX, 0, 10)], "cut short"),
        // more than the destination holds,
        (vec![part(0, 150, 51)], "do not fit"),
        (vec![part(0, u64::MAX, 2)], "do not fit"),
        // two parts have one destination,
        (vec![part(0, 0, 10), part(50, 9, 10)], "same place"),
        // or a file is missing
        (vec![FileRange { path: folder.path().join("gone"), ..part(0, 0, 1) }], "gone"),
    ] {
        // THEN the error names the cause
        let text = read(&parts, &mut memory).unwrap_err().to_string();
        assert!(text.contains(word), "{text}");
    }
    // and nothing is written
    assert_eq!(memory, [0; 200]);
}
