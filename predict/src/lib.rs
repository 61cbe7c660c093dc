//! Forecasts: the memory of a program before it runs, and changes that lower it. Does not depend on processes or terminals.
//!
//! # Layers
//!
//! ```text
//! advice                      changes to a program
//! advice::advise              all rules, the best first
//! advice::fit                 modules to recompute so that a program fits
//! advice::batch               the largest batch that fits
//! advice::combinations        several pieces of advice on one recording
//! advice::rules               a file for each rule
//! advice::times               GPU times in the trace
//! advice::allocator_replay    the run on the model of the allocator
//! advice::cache               keys and values that Hugging Face models keep
//! advice::names               names of modules and lines, in prose and in code
//! advice::modules             modules, and the memory each of their passes keeps
//! advice::offload             activations on the GPU while others wait on the host
//! advice::candidates          results of the rules
//! advice::choice              the modules of a pass to checkpoint
//! advice::block_lifetimes     allocated bytes after each event, also with changes
//! advice::report              advice, and the report of a run
//! advice::cost                cost of a change
//! plan                        other batches, cards and settings
//! plan::sequence              steps of different lengths
//! plan::search                the smallest card, the largest batch
//! plan::program               several families
//! plan::timeline, plan::peak    memory over the steps; the peak by category, line and layer
//! plan::steady                replay until steps repeat exactly
//! plan::family                the requests at any batch
//! plan::matching              equal requests of two recordings
//! plan::growth                the size of a request at any batch
//! plan::order                 orders of lengths
//! plan::period                the part of a recording that repeats
//! plan::recording::read       a recording from a trace
//! plan::recording             requests, and their places in the program
//! plan::stage                 training, evaluation, saving
//! allocator                   model of PyTorch's caching allocator
//! allocator::replay           a sequence of requests
//! allocator::caching          one request at a time
//! allocator::caching::find    the search for a free block
//! allocator::caching::release    memory returned to the card
//! allocator::caching::expandable    segments that grow
//! allocator::caching::state   blocks, free blocks, pools and counters
//! allocator::free_blocks      the best fit
//! allocator::blocks, allocator::card, allocator::counters
//! allocator::address_space    addresses of segments on a card
//! allocator::request          requests to the allocator
//! allocator::settings         the user's choices
//! allocator::sizes            constants and roundings
//! splitmix                    pseudorandom numbers
//! ```

#![warn(missing_docs)]

pub mod advice;
pub mod allocator;
pub mod plan;
mod splitmix;
