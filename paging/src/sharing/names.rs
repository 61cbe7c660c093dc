//! Names under which processes find each other.

use std::fmt;

use rustix::net::SocketAddrUnix;
use rustix::process::geteuid;

use crate::error::{Error, Result};

/// Last part of the gate's name.
pub(super) const GATE: &str = "gate";

/// Largest number of processes on a host that send the same memory.
///
/// More processes can share it.
pub(super) const MAX_SHARING_PROCESSES: u32 = 256;

const MAX_NAME_BYTES: usize = 64;

/// Common prefix of the names of one memory.
#[derive(Clone, Debug)]
pub(super) struct Name(String);

impl Name {
    pub(super) fn checked(name: &str) -> Result<Self> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(fits) {
            return Err(Error::Invalid(format!(
                "{name:?} is no name of 1 to {MAX_NAME_BYTES} letters, digits and dashes"
            )));
        }
        // The user's number is part of the name: users do not share memory, and all names of a host are in one namespace.
        Ok(Self(format!("memlab/{}/{name}", geteuid().as_raw())))
    }

    pub(super) fn gate(&self) -> SocketAddrUnix {
        self.address(GATE)
    }

    pub(super) fn seat(&self, number: u32) -> SocketAddrUnix {
        self.address(&number.to_string())
    }

    fn address(&self, last: &str) -> SocketAddrUnix {
        let name = format!("{}/{last}", self.0);
        SocketAddrUnix::new_abstract_name(name.as_bytes())
            .expect("a name of at most 64 bytes fits with what is around it")
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}
