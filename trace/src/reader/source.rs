//! The bytes of a trace file, plain or compressed, read at any offset.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::file::{is_zstd, open_file};

/// The bytes of a trace.
pub(super) enum Source {
    Plain(File),
    Compressed(Box<Decompressed>),
}

/// A compressed file, which can only be read from its beginning.
pub(super) struct Decompressed {
    decoder: zstd::Decoder<'static, BufReader<File>>,
    position: u64,
}

impl Source {
    pub(super) fn open(path: &Path) -> io::Result<(Self, (u64, u64))> {
        let mut file = open_file(path)?;
        let metadata = file.metadata()?;
        let mut start = Vec::with_capacity(4);
        file.by_ref().take(4).read_to_end(&mut start)?;
        file.rewind()?;
        let source = if is_zstd(&start) {
            Self::Compressed(Box::new(Decompressed { decoder: zstd::Decoder::new(file)?, position: 0 }))
        } else {
            Self::Plain(file)
        };
        Ok((source, (metadata.dev(), metadata.ino())))
    }

    /// The size of the file; 0 for a compressed one: not known.
    pub(super) fn bytes_total(&self) -> u64 {
        match self {
            Self::Plain(file) => file.metadata().map_or(0, |metadata| metadata.len()),
            Self::Compressed(_) => 0,
        }
    }

    /// Reads some bytes from an offset; 0 at the end.
    pub(super) fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match self {
            Self::Plain(file) => {
                file.seek(SeekFrom::Start(offset))?;
                read_again(file, buffer)?
            }
            Self::Compressed(stream) => {
                if offset < stream.position {
                    let mut file = stream.decoder.get_ref().get_ref().try_clone()?;
                    file.rewind()?;
                    **stream = Decompressed { decoder: zstd::Decoder::new(file)?, position: 0 };
                }
                let ahead = offset - stream.position;
                stream.position += io::copy(&mut stream.decoder.by_ref().take(ahead), &mut io::sink())?;
                let read = read_again(&mut stream.decoder, buffer)?;
                stream.position += read as u64;
                read
            }
        };
        Ok(read)
    }
}

fn read_again(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match source.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
