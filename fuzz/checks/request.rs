//! Checks that arbitrary bytes as a request on the control socket never panic, and that errors are short.

use memlab_protocol::request::ControlRequest;

pub fn check(bytes: &[u8]) {
    match ControlRequest::parse(bytes) {
        Ok(ControlRequest::Move { ranges, .. }) => assert!(!ranges.is_empty()),
        Ok(_) => {}
        Err(why) => assert!(!why.is_empty() && why.len() < 1000),
    }
}
