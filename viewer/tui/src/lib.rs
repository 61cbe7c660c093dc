//! The dashboard: screens over snapshots of traces.
//!
//! # Layers
//!
//! ```text
//! session                                                          the loop between terminal, feed and dashboard
//! app                                                              the dashboard: the screens, and where keys and data go
//! overlays, screens::overview, screens::time                       drawn over a screen; the screens made of parts of others
//! screens                                                          one folder per screen: state, keys, drawing
//! screens::screen_state                                            what the dashboard asks of every screen
//! widgets                                                          panes, tables, bars
//! context                                                          what screens share
//! config                                                           preferences
//! size_units                                                       the units of sizes
//! input, program_terminal, screen, terminal                        keys; the program's own terminal
//! ```

pub mod app;
pub mod config;
pub mod context;
pub mod input;
pub mod overlays;
pub mod program_terminal;
pub mod screen;
pub mod screens;
pub mod session;
pub mod size_units;
pub mod terminal;
pub mod widgets;
