//! Access control for requests.
//!
//! On a loopback address, every user of this machine may read, and moving memory needs the token. On another address,
//! everything but the empty page needs the token. The token goes into the header `Authorization`, and no cookies are used:
//! another site's page cannot make a browser send the header.

use std::fs;
use std::hint::black_box;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use axum::http::{HeaderMap, StatusCode, header};

use memlab_base::error::bad_input;

/// Length of the shortest accepted token.
const MIN_TOKEN_CHARS: usize = 16;

/// The secret of the server's owner.
#[derive(Clone)]
pub struct Token {
    word: String,
    /// True if it was generated here and must be shown to the user.
    is_new: bool,
}

impl Token {
    /// Generates a random token.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers.
    pub fn random() -> anyhow::Result<Self> {
        let mut bytes = [0_u8; 16];
        fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).context("/dev/urandom")?;
        Ok(Self { word: bytes.iter().map(|byte| format!("{byte:02x}")).collect(), is_new: true })
    }

    /// Reads the token from a file, without surrounding white space.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, others can read it, or its token is too short.
    pub fn of_file(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let word = fs::read_to_string(path).map_err(|error| bad_input(format!("--token-file {shown}: {error}")))?;
        let mode = fs::metadata(path).map_or(0, |found| found.permissions().mode());
        if mode & 0o077 != 0 {
            return Err(bad_input(format!("--token-file {shown}: others can read it: `chmod 600 {shown}` first")));
        }
        Self::given(&word, &format!("--token-file {shown}"))
    }

    /// Checks a token that the user set; `by`: its source.
    ///
    /// # Errors
    ///
    /// If it is too short or cannot be sent.
    pub fn given(word: &str, by: &str) -> anyhow::Result<Self> {
        let word = word.trim();
        if word.len() < MIN_TOKEN_CHARS || !word.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(bad_input(format!(
                "{by}: a token has at least {MIN_TOKEN_CHARS} visible ASCII characters: `openssl rand -hex 16` makes one"
            )));
        }
        Ok(Self { word: word.to_owned(), is_new: false })
    }

    /// Compares in constant time.
    fn is(&self, word: &str) -> bool {
        let differing = std::iter::zip(self.word.bytes(), word.bytes()).fold(0, |sum, (a, b)| black_box(sum | (a ^ b)));
        self.word.len() == word.len() && black_box(differing) == 0
    }
}

/// Refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: StatusCode,
    /// Error and advice.
    pub message: String,
}

impl Refusal {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

/// Purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The page without any data.
    EmptyPage,
    /// Reading.
    Read,
    /// Moving a process's memory.
    Move,
}

/// The rules for requests.
pub struct Access {
    token: Token,
    /// True if reading is open, because only users of this machine can connect.
    is_local: bool,
}

impl Access {
    /// Creates the rules for a server with this listening address.
    pub fn new(listens: SocketAddr, token: Token) -> Self {
        Self { token, is_local: listens.ip().is_loopback() }
    }

    /// Returns true if only users of this machine can connect.
    pub fn is_local(&self) -> bool {
        self.is_local
    }

    /// Suffix of the page's address: a newly generated token, in the URL fragment, which only the browser reads.
    pub fn fragment(&self) -> String {
        if self.token.is_new { format!("#token={}", self.token.word) } else { String::new() }
    }

    /// Returns true if the request has the token.
    pub fn is_owner(&self, headers: &HeaderMap) -> bool {
        given_token(headers).is_some_and(|word| self.token.is(word))
    }

    /// Checks a request.
    ///
    /// # Errors
    ///
    /// If the request must be refused.
    pub fn check(&self, purpose: Purpose, headers: &HeaderMap) -> Result<(), Refusal> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        // Another site's name can resolve to this machine. Its page would then send requests as if from this origin.
        if self.is_local && !text(header::HOST).is_some_and(names_this_machine) {
            return Err(Refusal::new(
                StatusCode::MISDIRECTED_REQUEST,
                "memlab serve answers to localhost and 127.0.0.1 only: use one of these, and `ssh -L` from another \
                 machine",
            ));
        }
        if purpose == Purpose::Move && !is_same_origin(text(header::ORIGIN), text(header::HOST)) {
            return Err(Refusal::new(StatusCode::FORBIDDEN, "refused: the request came from another site’s page"));
        }
        let needs_token = match purpose {
            Purpose::EmptyPage => false,
            Purpose::Read => !self.is_local,
            Purpose::Move => true,
        };
        match given_token(headers) {
            _ if !needs_token => Ok(()),
            Some(word) if self.token.is(word) => Ok(()),
            Some(_) => Err(Refusal::new(StatusCode::UNAUTHORIZED, "wrong token for this memlab serve")),
            None => Err(Refusal::new(
                StatusCode::UNAUTHORIZED,
                "this needs the token of memlab serve, as `Authorization: Bearer TOKEN`: it is in the address that memlab serve \
                 printed, or in its token file",
            )),
        }
    }
}

fn given_token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, word) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| word.trim())
}

/// Returns true if a `Host` always means this machine, whatever name servers answer.
fn names_this_machine(host: &str) -> bool {
    let name = without_port(host);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn without_port(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.split(':').next().unwrap_or(host),
    }
}

/// Returns true if a request comes from this server's page, or from no page.
fn is_same_origin(origin: Option<&str>, host: Option<&str>) -> bool {
    let Some(origin) = origin else { return true };
    let site = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    site.is_some() && site == host
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORD: &str = "0123456789abcdef";

    fn access(address: &str) -> Access {
        Access::new(address.parse().unwrap(), Token::given(WORD, "test").unwrap())
    }

    fn ask(access: &Access, purpose: Purpose, headers: &[(header::HeaderName, &str)]) -> u16 {
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        access.check(purpose, &headers).map_or_else(|refusal| refusal.status.as_u16(), |()| 200)
    }

    #[test]
    fn on_this_machine_reading_is_open_and_moving_needs_the_token() {
        let access = access("127.0.0.1:9870");
        let host = (header::HOST, "localhost:9870");
        let bearer = |word| (header::AUTHORIZATION, word);
        assert_eq!(ask(&access, Purpose::Read, std::slice::from_ref(&host)), 200);
        assert_eq!(ask(&access, Purpose::Move, std::slice::from_ref(&host)), 401);
        for wrong in ["Bearer 0123456789abcdeX", "Bearer 0123456789abcde", "Bearer ", "Basic 0123456789abcdef", "x"] {
            assert_eq!(ask(&access, Purpose::Move, &[host.clone(), bearer(wrong)]), 401, "{wrong}");
        }
        assert_eq!(ask(&access, Purpose::Move, &[host, bearer("bearer 0123456789abcdef")]), 200);
    }

    #[test]
    fn names_of_others_that_point_here_are_refused() {
        let access = access("127.0.0.1:9870");
        for host in
            ["evil.example", "localhost.evil.example:9870", "127.0.0.1.evil.example", "10.0.0.7:9870", "", "[::2]"]
        {
            assert_eq!(ask(&access, Purpose::Read, &[(header::HOST, host)]), 421, "{host}");
        }
        assert_eq!(ask(&access, Purpose::EmptyPage, &[]), 421);
        for host in ["127.0.0.1", "127.0.0.1:1", "[::1]:9870", "LOCALHOST:80"] {
            assert_eq!(ask(&access, Purpose::Read, &[(header::HOST, host)]), 200, "{host}");
        }
    }

    #[test]
    fn elsewhere_all_but_the_empty_page_needs_the_token() {
        let access = access("0.0.0.0:9870");
        let host = (header::HOST, "node7:9870");
        assert_eq!(ask(&access, Purpose::EmptyPage, std::slice::from_ref(&host)), 200);
        assert_eq!(ask(&access, Purpose::Read, std::slice::from_ref(&host)), 401);
        assert_eq!(ask(&access, Purpose::Read, &[host, (header::AUTHORIZATION, "Bearer 0123456789abcdef")]), 200);
    }

    #[test]
    fn pages_of_other_sites_move_nothing() {
        let access = access("127.0.0.1:9870");
        let with = |origin| {
            let headers = [
                (header::HOST, "localhost:9870"),
                (header::AUTHORIZATION, "Bearer 0123456789abcdef"),
                (header::ORIGIN, origin),
            ];
            ask(&access, Purpose::Move, &headers)
        };
        assert_eq!(with("http://localhost:9870"), 200);
        for origin in
            ["http://localhost:9871", "http://evil.example", "null", "localhost:9870", "file://localhost:9870"]
        {
            assert_eq!(with(origin), 403, "{origin}");
        }
    }

    #[test]
    fn tokens_are_long_and_can_be_sent() {
        for word in ["", "short", "0123456789abcde", "0123456789abc def", "0123456789abcdé"] {
            assert!(Token::given(word, "MEMLAB_SERVE_TOKEN").is_err(), "{word}");
        }
        assert!(Token::given(" 0123456789abcdef\n", "x").unwrap().is(WORD));
        let (a, b) = (Token::random().unwrap(), Token::random().unwrap());
        assert!(a.word.len() == 32 && a.word != b.word);
    }
}
