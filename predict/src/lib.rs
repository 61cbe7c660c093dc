//! Forecasts: what a program takes before it runs, and what to change in it. Knows nothing of processes and terminals.
//!
//! # Layers
//!
//! ```text
//! advice                      what to change in a program
//! advice::advise              all rules, the best first
//! advice::batch               how large a batch fits
//! advice::combinations        several pieces on one recording
//! advice::rules               a file for each rule
//! advice::times               what the trace says about GPU time
//! advice::allocator_replay    the run on the model of the allocator
//! advice::cache               keys and values that models of Hugging Face keep
//! advice::names               modules and lines, in words and in code
//! advice::modules             modules of repeated lists and others, and what each pass of them keeps
//! advice::offload             which activations are on the GPU when others wait on the host
//! advice::candidates          what came of the rules
//! advice::choice              which modules of a pass to checkpoint
//! advice::block_lifetimes     what is allocated after each event, and after changes
//! advice::report              pieces of advice, and all of a run
//! advice::cost                what one costs
//! plan                        other batches, cards and settings
//! plan::sequence              steps of different lengths
//! plan::search                the smallest card, the largest batch
//! plan::program               several families
//! plan::timeline, plan::peak    memory over the steps; what is held at the peak: categories, lines, layers
//! plan::steady                replay until steps repeat exactly
//! plan::family                the requests at any batch
//! plan::matching              which requests of two recordings are the same
//! plan::growth                the size of a request at any batch
//! plan::order                 orders of lengths
//! plan::period                the part of a recording that repeats
//! plan::recording::read       a recording from a trace
//! plan::recording             what was asked for, and where
//! plan::stage                 training, evaluation, saving
//! allocator                   PyTorch's caching allocator as a model
//! allocator::replay           a sequence of requests
//! allocator::caching          one request at a time
//! allocator::caching::find    the search for a free block
//! allocator::caching::release    what goes back to the card
//! allocator::caching::expandable    segments that grow
//! allocator::caching::state   blocks, free blocks, pools and counters, and how they change together
//! allocator::free_blocks      the best fit
//! allocator::blocks, allocator::card, allocator::counters
//! allocator::address_space    where a card's driver puts segments
//! allocator::request          what is asked
//! allocator::settings         the user's choices
//! allocator::sizes            constants and roundings
//! splitmix                    numbers that look random
//! ```

#![warn(missing_docs)]

pub mod advice;
pub mod allocator;
pub mod plan;
mod splitmix;
