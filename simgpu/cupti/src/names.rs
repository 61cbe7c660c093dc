//! The functions of the driver and the runtime, and their callback ids.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::OnceLock;

/// `CUpti_CallbackDomain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    Driver = 1,
    Runtime = 2,
}

impl Domain {
    /// Returns the domain of a number.
    pub fn of(number: u32) -> Option<Domain> {
        [Domain::Driver, Domain::Runtime].into_iter().find(|domain| *domain as u32 == number)
    }

    /// One line per function: CUPTI's name and the callback id, from cupti_driver_cbid.h and cupti_runtime_cbid.h.
    fn list(self) -> &'static str {
        match self {
            Domain::Driver => include_str!("driver_calls.list"),
            Domain::Runtime => include_str!("runtime_calls.list"),
        }
    }
}

/// A function.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    pub callback: u32,
    /// Exported name.
    pub name: &'static CStr,
    /// Name in CUPTI: for the runtime, with the version that introduced it.
    pub full_name: &'static CStr,
}

type Table = HashMap<&'static str, Function>;

fn table(domain: Domain) -> &'static Table {
    static TABLES: [OnceLock<Table>; 2] = [const { OnceLock::new() }; 2];
    TABLES[domain as usize - 1]
        .get_or_init(|| domain.list().lines().filter_map(|line| function(domain, line)).collect())
}

fn function(domain: Domain, line: &'static str) -> Option<(&'static str, Function)> {
    let (full, callback) = line.split_once(' ')?;
    let name = match domain {
        Domain::Driver => full,
        Domain::Runtime => full.rsplit_once("_v")?.0,
    };
    let lasting = |text: &str| Some(&*Box::leak(CString::new(text).ok()?.into_boxed_c_str()));
    let function = Function { callback: callback.parse().ok()?, name: lasting(name)?, full_name: lasting(full)? };
    Some((name, function))
}

/// Returns the function exported under a name. A later version without an id in CUPTI counts as the plain one.
pub fn find(domain: Domain, name: &str) -> Option<Function> {
    let table = table(domain);
    let plain = || name.find("_v").map(|end| &name[..end]);
    table.get(name).or_else(|| table.get(plain()?)).copied()
}

/// Returns the function with a callback id.
pub fn of_callback(domain: Domain, callback: u32) -> Option<Function> {
    table(domain).values().find(|function| function.callback == callback).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_the_callback_ids_of_the_headers() {
        // GIVEN names as the libraries export them, WHEN they are looked up
        let id = |domain, name| find(domain, name).map(|function| function.callback);
        // THEN the ids are NVIDIA's, also for a later version without an id
        assert_eq!(id(Domain::Runtime, "cudaLaunchKernel"), Some(211));
        assert_eq!(id(Domain::Runtime, "cudaMemcpyAsync"), Some(41));
        assert_eq!(id(Domain::Driver, "cuLaunchKernel"), Some(307));
        assert_eq!(id(Domain::Runtime, "cudaStreamGetCaptureInfo_v3"), id(Domain::Runtime, "cudaStreamGetCaptureInfo"));
        assert_eq!(id(Domain::Runtime, "cudaMakeCoffee"), None);
        // AND the reverse lookup works
        let launch = of_callback(Domain::Runtime, 211).expect("a launch");
        assert_eq!((launch.name, launch.full_name), (c"cudaLaunchKernel", c"cudaLaunchKernel_v7000"));
    }
}
