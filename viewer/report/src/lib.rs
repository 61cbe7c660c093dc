//! Printed and exported output: reports, comparisons, plans, pages, formats of other programs.
//!
//! # Layers
//!
//! ```text
//! plan                                                             memory forecast of a program
//! plan::html, plan::text, plan::sequence_text                      a plan, as a page and printed
//! plan::charts                                                   charts of the page
//! plan::answer                                                     a plan, as values
//! plan::phases, plan::ranks, plan::sequence                        evaluation, saving; one rank of several; steps of different lengths
//! plan::holders                                                    holders of memory at the peak
//! diff, report                                                     printed comparisons and reports
//! holders                                                          holders of memory
//! advice, page                                                     advice on a program; the frame of a web page
//! export                                                           formats of other programs
//! ```

pub mod advice;
pub mod diff;
pub mod export;
pub mod holders;
pub mod page;
pub mod plan;
pub mod report;
