//! The dashboard: screens over snapshots of traces.
//!
//! # Layers
//!
//! ```text
//! session                                                          the loop between terminal, feed and dashboard
//! app                                                              the dashboard: screens, and dispatch of keys and data
//! overlays, screens::overview, screens::time                       drawn over a screen; screens composed of parts of others
//! screens                                                          one folder per screen: state, keys, drawing
//! screens::screen_state                                            interface of every screen to the dashboard
//! widgets                                                          panes, tables, bars
//! context                                                          state shared by screens
//! config                                                           preferences
//! size_units                                                       units of sizes
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
