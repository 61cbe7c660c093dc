//! The model: the state of a traced process, built by replaying its records one by one.
//!
//! [`Model::apply`] changes it by one record; every other method reads it. No content of a trace can make the model panic,
//! loop or outgrow the live blocks and definitions. It counts contradictions in [`Anomalies`] and otherwise ignores them.

mod accumulation;
mod allocation_totals;
mod anomalies;
mod apply;
mod blocks;
mod call_tree;
mod category;
mod category_timeline;
mod cell;
mod classification;
mod code_origin;
mod device;
mod device_totals;
mod device_views;
mod driver_memory;
mod forwards;
mod framework;
mod gpu_work;
mod gpu_work_views;
mod growth;
mod history_views;
mod holders;
mod keyframe;
mod ledger;
mod line;
mod line_book;
mod lines;
mod long_lived;
mod ooms;
mod passes;
mod private_pools;
mod process_state;
mod queries;
mod scope;
mod snapshots;
mod sources;
mod step_work;
mod steps;
mod symbols;
mod tags;
mod tensor_names;
mod time_bins;
mod timeline;
mod trainings;
mod views;
mod windows;

pub use accumulation::{AccumulationSpan, AccumulationView, Caller, StackAccumulation};
pub use allocation_totals::AllocationTotals;
pub use anomalies::Anomalies;
pub use call_tree::{Call, CallTree, LineCalls};
pub use category::{Category, CategoryBytes};
pub use code_origin::CodeOrigin;
pub use forwards::EarlierForwards;
pub use framework::Framework;
pub use history_views::*;
pub use holders::{HeldView, SearchView};
pub use line::Line;
pub use process_state::{HOST, Model};
pub use scope::{ByScope, Scope};
pub use sources::Sources;
pub use symbols::MAX_STACK_DEPTH;
pub use views::*;
