//! The page: one self-contained document, empty until its script fetches data.

use maud::{PreEscaped, html};

use memlab_report::page::{self, Document};
pub use memlab_report::report::live::PagePart;

/// Returns the whole page; `nonce`: for its scripts.
pub fn page(nonce: &str) -> String {
    let tabs = html! {
        @for (key, part) in (1..).zip(PagePart::ALL) {
            @let (name, title) = (part.as_str(), part.title());
            @let hint = format!("{title} ({key})");
            button type="button" role="tab" #{ "tab-" (name) } data-part=(name) aria-controls="part" title=(hint) { (title) }
        }
    };
    let body = include_str!("page.html").replace("{tabs}", &tabs.0).replace("{version}", env!("CARGO_PKG_VERSION"));
    page::live_document(
        &Document {
            title: "memlab",
            style: include_str!("page.css"),
            body: &PreEscaped(body),
            script: include_str!("page.js"),
        },
        nonce,
    )
}
