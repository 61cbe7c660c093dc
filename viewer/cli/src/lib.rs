//! The `memlab` command: `run`, `top`, `view`, `ps`, `offload`, `restore`, `limit`, `simulate`, `doctor`, `report`, `advise`,
//! `serve`, `diff`, `export`, `config`, `completions`, over one dashboard and one model.
//!
//! # Layers
//!
//! ```text
//! cli                                                              the command line, and the exit code
//! commands                                                         one file per command
//! recording                                                        running a program for a plan
//! doctor                                                           what works on this machine; doctor::check: one line of it
//! run                                                              `memlab run`, which has a folder
//! serve                                                            `memlab serve`: metrics and a page that follows the processes
//! ```

pub mod cli;
pub mod commands;
pub mod doctor;
pub mod recording;
pub mod run;
pub mod serve;
