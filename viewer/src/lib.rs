//! The `memlab` command: `run`, `top`, `view`, `ps`, `offload`, `restore`, `limit`, `simulate`, `doctor`, `report`, `advise`,
//! `serve`, `diff`, `export`, `config`, `completions`, over one dashboard and one model.
//!
//! # Layers
//!
//! ```text
//! cli                                            the command line, and the exit code
//! commands                                       one file per command
//! recording                                      running a program for a plan
//! doctor                                         what works on this machine; doctor::check: one line of it
//! run                                            `memlab run`, which has a folder
//! serve                                          `memlab serve`: metrics and a page that follows the processes
//! plan                                           how much memory a program will take
//! plan::html, plan::text, plan::sequence_text    a plan, as a page and printed
//! plan::pictures                                 what the page draws
//! plan::answer                                   a plan, as values
//! plan::phases, plan::ranks, plan::sequence      evaluation, saving; one rank of several; steps of different lengths
//! session                                        the loop between terminal, feed and dashboard
//! app                                            the dashboard: the screens, and where keys and data go
//! overlays, screens::overview, screens::time      drawn over a screen; the screens made of parts of others
//! screens                                        one folder per screen: state, keys, drawing
//! screens::screen_state                          what the dashboard asks of every screen
//! widgets                                        panes, tables, bars
//! context, diff, report                          what screens share; what is printed
//! advice, page                                   what to change in a program; the frame of a web page
//! export, feed, request, trace_moment            formats of other programs; the thread that follows traces
//! notices                                        telling somebody while a program runs
//! offload                                        moving GPU memory to the host: the thread of the dashboard
//! arguments, config, moment, snapshot            arguments of several commands; preferences; moments by name; what screens show, as plain values
//! offload::checkpoint, offload::operation, offload::selection
//! offload::control                               the socket of a traced process
//! simulation, preload                            what a simulated card and libmemlab.so need
//! filter, findings, input, json, kernels, program_terminal, progress, ranges, save, screen, terminal, theme, trace_files
//! parallel                                       where ranks are in meshes and pipelines, in words
//! category, clock, error, format, holdings, offload::cuda_driver, query, signals, source_file, text
//! shared_library                                 libraries that are opened by name
//! ```

pub mod advice;
pub mod app;
pub mod arguments;
pub mod category;
pub mod cli;
pub mod clock;
pub mod commands;
pub mod config;
pub mod context;
pub mod diff;
pub mod doctor;
pub mod error;
pub mod export;
pub mod feed;
pub mod filter;
pub mod findings;
pub mod format;
pub mod holdings;
pub mod input;
pub mod json;
pub mod kernels;
pub mod moment;
pub mod notices;
pub mod offload;
pub mod overlays;
pub mod page;
pub mod parallel;
pub mod plan;
pub mod preload;
pub mod program_terminal;
pub mod progress;
pub mod query;
pub mod ranges;
pub mod recording;
pub mod report;
pub mod request;
pub mod run;
pub mod save;
pub mod screen;
pub mod screens;
pub mod serve;
pub mod session;
pub mod shared_library;
pub mod signals;
pub mod simulation;
pub mod snapshot;
pub mod source_file;
pub mod terminal;
pub mod text;
pub mod theme;
pub mod trace_files;
pub mod trace_moment;
pub mod widgets;
