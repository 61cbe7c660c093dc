//! `memlab serve`: this user's recorded processes on this host, as Prometheus metrics and a live page.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;

use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::serve::{Access, Token, serve};
use memlab_base::error::bad_input;
use memlab_base::output;
use memlab_base::signals::SignalReceiver;

/// Environment variable with the token, for use without a file.
const TOKEN_VARIABLE: &str = "MEMLAB_SERVE_TOKEN";

/// Help text after the options.
pub const HELP: &str = "\
Processes appear when they first use the GPU, and stay listed for an hour after they end. From another machine:
`ssh -L 9870:localhost:9870 HOST`, then open the same address.

On this machine, only offloading and restoring need the token. On any other address, every request needs it. Prometheus sends it
with `authorization: {credentials_file: FILE}`. The connection is not encrypted.

Examples:
  memlab serve                                the page and http://127.0.0.1:9870/metrics
  memlab serve --listen 0.0.0.0:9870 --token-file token
                                              for other machines too";

/// Options of `memlab serve`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// The address and port to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9870", value_parser = parse_address)]
    listen: SocketAddr,
    /// The file with the token [default: MEMLAB_SERVE_TOKEN, else a new one, printed with the page's address].
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let found =
        text.to_socket_addrs().map_err(|error| format!("{error}: write an address and a port: 127.0.0.1:9870"))?;
    // A name can have several addresses. Prefer IPv4.
    let mut addresses: Vec<SocketAddr> = found.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    addresses.first().copied().ok_or_else(|| "this name has no address".to_owned())
}

/// Serves until a signal ends it.
///
/// # Errors
///
/// If the address cannot be used, or the token is invalid.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let token = token(options)?;
    let listener = listen(options.listen)?;
    let address = listener.local_addr()?;
    let access = Access::new(address, token);
    let signals = SignalReceiver::new(&[SIGINT, SIGTERM, SIGHUP])?;
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    let received = signals.received().clone();
    std::thread::Builder::new().name("memlab-stop".into()).spawn(move || {
        let _ = received.recv();
        drop(ended);
    })?;
    let stop = async {
        let _ = end.await;
        // Work in progress changes nothing, so do not wait for it.
        std::process::exit(0);
    };
    serve(listener, access, |count, access| announce(address, count, access), stop)
}

fn token(options: &Options) -> anyhow::Result<Token> {
    match (&options.token_file, std::env::var(TOKEN_VARIABLE)) {
        (Some(file), _) => Token::of_file(file),
        (None, Ok(word)) if !word.is_empty() => Token::given(&word, TOKEN_VARIABLE),
        _ => Token::random(),
    }
}

fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| {
        let next = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "another program listens there, perhaps another memlab serve: open its page, or choose another port with --listen"
            }
            io::ErrorKind::PermissionDenied => "ports below 1024 are reserved: choose another one with --listen",
            io::ErrorKind::AddrNotAvailable => "this machine has no such address: choose another one with --listen",
            _ => "choose another address with --listen",
        };
        bad_input(format!("cannot listen on {address}: {error}: {next}"))
    })
}

/// Reports the address.
///
/// Standard output gets the address alone, for scripts.
fn announce(address: SocketAddr, count: usize, access: &Access) {
    output::note(what_is_served(count));
    if !access.is_local() {
        output::note("other machines can reach this address: it requires the token, but is not encrypted");
    }
    output::note(format_args!("metrics for Prometheus: http://{address}/metrics; Ctrl-C stops memlab serve"));
    // The reader of standard output may be gone; the page works without it.
    let _ = output::line(format_args!("http://{address}/{}", access.fragment()));
}

fn what_is_served(count: usize) -> String {
    match count {
        0 => "no recorded process is running yet: start one with `memlab run -- CMD`, and it appears here".to_owned(),
        1 => "serving 1 recorded process; new ones appear automatically".to_owned(),
        count => format!("serving {count} recorded processes; new ones appear automatically"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_processes_the_message_shows_how_to_start_one() {
        assert!(what_is_served(0).contains("memlab run -- CMD"));
        assert_eq!([1, 2].map(what_is_served).map(|said| said.starts_with("serving ")), [true; 2]);
    }

    #[test]
    fn addresses_have_a_port() {
        assert_eq!(parse_address("0.0.0.0:1").map(|address| address.to_string()).as_deref(), Ok("0.0.0.0:1"));
        assert_eq!(parse_address("localhost:80").map(|address| address.ip().is_loopback()), Ok(true));
        assert!(parse_address("[::1]:80").is_ok_and(|address| address.is_ipv6()));
        for wrong in ["", "127.0.0.1", ":80x", "127.0.0.1:99999"] {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }
}
