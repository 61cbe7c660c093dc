//! What is printed and exported: reports, comparisons, plans, pages, formats of other programs.
//!
//! # Layers
//!
//! ```text
//! plan                                                             how much memory a program will take
//! plan::html, plan::text, plan::sequence_text                      a plan, as a page and printed
//! plan::charts                                                   what the page draws
//! plan::answer                                                     a plan, as values
//! plan::phases, plan::ranks, plan::sequence                        evaluation, saving; one rank of several; steps of different lengths
//! diff, report                                                     what is printed
//! advice, page                                                     what to change in a program; the frame of a web page
//! export                                                           formats of other programs
//! ```

pub mod advice;
pub mod diff;
pub mod export;
pub mod page;
pub mod plan;
pub mod report;
