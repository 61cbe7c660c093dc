//! The page: one document that needs nothing else, and is empty until its script asks for what to show.

use std::fmt::Write as _;

use memlab_report::page::{self, Document};
pub use memlab_report::report::live::PagePart;

/// The whole page; `nonce`: for its scripts.
pub fn page(nonce: &str) -> String {
    let mut tabs = String::new();
    for (number, part) in PagePart::ALL.into_iter().enumerate() {
        let _ = write!(
            tabs,
            "<button type=\"button\" role=\"tab\" id=\"tab-{name}\" data-part=\"{name}\" aria-controls=\"part\" title=\"{title} ({key})\">{title}</button>",
            name = part.as_str(),
            title = part.title(),
            key = number + 1
        );
    }
    let body = include_str!("page.html").replace("{tabs}", &tabs).replace("{version}", env!("CARGO_PKG_VERSION"));
    page::live_document(
        &Document { title: "memlab", style: include_str!("page.css"), body: &body, script: include_str!("page.js") },
        nonce,
    )
}
