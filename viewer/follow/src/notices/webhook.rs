//! Sends a notice to a web address.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use ureq::Agent;
use ureq::http::Uri;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Timeout of one attempt, from name resolution to the end of the answer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Pauses before each attempt but the first.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];

/// A web address.
///
/// It may contain a secret, so only its host is ever shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Address(Uri);

impl Address {
    fn host(&self) -> &str {
        self.0.host().unwrap_or_default()
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Address({})", self.host())
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let how = "write it as https://host/path";
        let uri: Uri = text.parse().map_err(|error| format!("not a web address ({error}): {how}"))?;
        match (uri.scheme_str(), uri.host()) {
            (Some("http" | "https"), Some(_)) => Ok(Self(uri)),
            _ => Err(format!("not a web address: {how}")),
        }
    }
}

/// Sends JSON to addresses.
pub struct Webhook {
    agent: Agent,
    address: Address,
}

impl Webhook {
    /// Creates a client that uses this machine's trusted certificates.
    pub fn new(address: &Address) -> Self {
        // Fails if another part of the process has installed a provider already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let trusted = rustls_native_certs::load_native_certs().certs;
        let trusted: Vec<_> = trusted.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect();
        let tls = TlsConfig::builder().root_certs(RootCerts::Specific(Arc::new(trusted))).build();
        let config = Agent::config_builder()
            .timeout_global(Some(ATTEMPT_TIMEOUT))
            .user_agent(concat!("memlab/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls)
            .build();
        Self { agent: Agent::new_with_config(config), address: address.clone() }
    }

    /// POSTs `body`.
    ///
    /// Retries after a pause if the server is unavailable and `may_run` returns true. Returns the error, if any.
    pub fn send(&self, body: &Value, may_run: impl Fn() -> bool) -> Result<(), String> {
        let mut pauses = PAUSES.iter();
        loop {
            let failed = match self.post(body) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            match pauses.next().filter(|_| is_retryable(&failed) && may_run()) {
                Some(pause) => std::thread::sleep(*pause),
                None => return Err(format!("--webhook: {}: {}", self.address.host(), in_words(&failed))),
            }
        }
    }

    fn post(&self, body: &Value) -> Result<(), ureq::Error> {
        let request = self.agent.post(&self.address.0).content_type("application/json");
        request.send(body.to_string()).map(drop)
    }
}

fn is_retryable(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::StatusCode(code) => *code >= 500 || matches!(code, 408 | 425 | 429),
        ureq::Error::Timeout(_) | ureq::Error::Io(_) | ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => {
            true
        }
        _ => false,
    }
}

/// Describes the error without the address, which some messages contain.
fn in_words(error: &ureq::Error) -> String {
    match error {
        ureq::Error::StatusCode(code) => format!("it answered with status {code}"),
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::BadUri(_) => "it is not a web address".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_of_the_web_and_its_secret_is_not_shown() {
        let address: Address = "https://hooks.example.com/services/T0/SECRET".parse().unwrap();
        assert_eq!(format!("{address:?}"), "Address(hooks.example.com)");
        for bad in ["hooks.example.com/x", "ftp://example.com", "https://", "/tmp/x", ""] {
            let error = bad.parse::<Address>().unwrap_err();
            assert!(error.contains("write it as https://host/path"), "{error}");
        }
    }
}
