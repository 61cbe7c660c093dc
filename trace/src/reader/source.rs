//! Source of a trace's bytes, plain or compressed, from any offset.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use super::file::{is_zstd, open_file};

/// The bytes of a trace.
pub(super) struct Source {
    bytes: Bytes,
    /// The offset of the next byte, in the decompressed trace.
    position: u64,
    /// Offset at which reading ends.
    end: u64,
}

enum Bytes {
    Plain(File),
    Compressed(Box<Decoder>),
}

/// A compressed file, readable only from its start.
type Decoder = zstd::Decoder<'static, BufReader<CountingReader>>;

impl Source {
    /// Opens a trace at its start. Returns the source and the identity of the file.
    pub(super) fn open(path: &Path) -> io::Result<(Self, (u64, u64))> {
        let mut file = open_file(path)?;
        let metadata = file.metadata()?;
        let mut start = Vec::with_capacity(4);
        file.by_ref().take(4).read_to_end(&mut start)?;
        let bytes = if is_zstd(&start) { Bytes::Compressed(Box::new(decoder_of(file)?)) } else { Bytes::Plain(file) };
        Ok((Self { bytes, position: 0, end: u64::MAX }, (metadata.dev(), metadata.ino())))
    }

    /// Returns a source of a plain file, from an offset.
    pub(super) fn plain(file: File, position: u64) -> Self {
        Self { bytes: Bytes::Plain(file), position, end: u64::MAX }
    }

    pub(super) fn is_compressed(&self) -> bool {
        matches!(self.bytes, Bytes::Compressed(_))
    }

    /// Returns the file on disk.
    pub(super) fn file(&self) -> &File {
        match &self.bytes {
            Bytes::Plain(file) => file,
            Bytes::Compressed(decoder) => &decoder.get_ref().get_ref().file,
        }
    }

    /// Returns the size of the file on disk; 0 if not known.
    pub(super) fn file_bytes(&self) -> u64 {
        self.file().metadata().map_or(0, |metadata| metadata.len())
    }

    /// Returns the bytes read from the file on disk.
    pub(super) fn file_bytes_read(&self) -> u64 {
        match &self.bytes {
            Bytes::Plain(_) => self.position,
            Bytes::Compressed(decoder) => decoder.get_ref().get_ref().read,
        }
    }

    /// Ends reading at an offset.
    pub(super) fn end_at(&mut self, end: u64) {
        self.end = end;
    }

    /// Continues at an offset.
    pub(super) fn seek(&mut self, offset: u64) -> io::Result<()> {
        if let Bytes::Compressed(decoder) = &mut self.bytes {
            if offset < self.position {
                **decoder = decoder_of(decoder.get_ref().get_ref().file.try_clone()?)?;
                self.position = 0;
            }
            self.position += io::copy(&mut decoder.by_ref().take(offset - self.position), &mut io::sink())?;
        } else {
            self.position = offset;
        }
        Ok(())
    }
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.end.saturating_sub(self.position)).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = &mut buffer[..wanted];
        let read = match &mut self.bytes {
            Bytes::Plain(file) => file.read_at(buffer, self.position)?,
            Bytes::Compressed(decoder) => decoder.read(buffer)?,
        };
        self.position += read as u64;
        Ok(read)
    }
}

fn decoder_of(mut file: File) -> io::Result<Decoder> {
    file.rewind()?;
    zstd::Decoder::new(CountingReader { file, read: 0 })
}

/// Counts bytes read.
struct CountingReader {
    file: File,
    read: u64,
}

impl Read for CountingReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.read += read as u64;
        Ok(read)
    }
}
