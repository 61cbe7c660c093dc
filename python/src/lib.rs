//! `memlab._native`: the loader and the live books, for Python.
//!
//! Exposes the functions of `memlab-paging` and `memlab-live` in Python, and nothing else.
//!
//! # Layers
//!
//! ```text
//! allocator, plan_family                            the model of PyTorch's allocator; memory of a program at any batch size
//! paging                                            page: the host's work at each module boundary and for each tensor
//! paging::forward
//! paging::holder
//! paging::counters, paging::dictionaries, paging::placed
//! paging::reads
//! checkpoint, offload_stream, pipeline, plan, recomputation         one file for each part of the loader
//! holders, line_marks, line_profiles, tracker       queries of the tools in the program
//! reporter                                          reports of all tensors
//! reporter::table                                   tensors with names and memory, by device
//! reporter::names, reporter::reader, reporter::text
//! reporter::model, reporter::objects, reporter::optimizer
//! reporter::blocks, reporter::classes, reporter::exchange, reporter::getters, reporter::mappings, reporter::shapes
//! live_books                                        the books, and the thread that reads the recording
//! ranges, training                                  ranges that the program names; steps that a training reports
//! library                                           the functions of libmemlab.so
//! arena, sizes
//! error
//! ```

mod allocator;
mod arena;
mod checkpoint;
mod error;
mod holders;
mod library;
mod line_marks;
mod line_profiles;
mod live_books;
mod offload_stream;
mod paging;
mod pipeline;
mod plan;
mod plan_family;
mod ranges;
mod recomputation;
mod reporter;
mod sizes;
mod tracker;
mod training;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<PyModule>) -> PyResult<()> {
    module.add("PAGE_SIZE", memlab_paging::arena::PAGE_SIZE)?;
    module.add("PIN_GRANULE", memlab_paging::arena::PIN_GRANULE)?;
    module.add_class::<allocator::AllocatorModel>()?;
    module.add_function(wrap_pyfunction!(allocator::recorded_requests, module)?)?;
    module.add_class::<reporter::names::TensorNames>()?;
    module.add_class::<reporter::reader::TensorReader>()?;
    module.add_class::<reporter::table::TensorTable>()?;
    module.add_class::<plan_family::PlanFamily>()?;
    module.add("SETTINGS_TO_TRY", memlab_predict::plan::SETTINGS_TO_TRY.to_vec())?;
    module.add_function(wrap_pyfunction!(plan_family::card, module)?)?;
    module.add_class::<arena::Arena>()?;
    module.add_class::<arena::HostShare>()?;
    module.add_class::<pipeline::Pipeline>()?;
    module.add_class::<pipeline::Session>()?;
    module.add_class::<paging::reads::TensorReads>()?;
    module.add_class::<paging::counters::EditCounters>()?;
    module.add_class::<paging::counters::Versions>()?;
    module.add_class::<paging::dictionaries::SwappedDicts>()?;
    module.add_class::<paging::placed::UnitForms>()?;
    module.add_class::<paging::placed::PlacedUnits>()?;
    module.add_class::<paging::holder::Boundaries>()?;
    module.add_class::<paging::holder::UnitHolder>()?;
    module.add_class::<paging::forward::WatchedForward>()?;
    module.add_class::<offload_stream::OffloadStream>()?;
    module.add_class::<offload_stream::HostCopy>()?;
    module.add_function(wrap_pyfunction!(recomputation::choose_recomputation, module)?)?;
    module.add_function(wrap_pyfunction!(plan::plan, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint::checkpoint_tensors, module)?)?;
    module.add_function(wrap_pyfunction!(sizes::parse_size, module)?)?;
    module.add_function(wrap_pyfunction!(sizes::format_size, module)?)?;
    module.add_function(wrap_pyfunction!(sizes::short_size, module)?)?;
    module.add_class::<line_marks::LineMarks>()?;
    for function in [
        wrap_pyfunction!(line_marks::set_target_device, module)?,
        wrap_pyfunction!(line_profiles::profile_new, module)?,
        wrap_pyfunction!(line_profiles::profile_drop, module)?,
        wrap_pyfunction!(line_profiles::profile_add, module)?,
        wrap_pyfunction!(line_profiles::profile_enable, module)?,
        wrap_pyfunction!(line_profiles::profile_clear, module)?,
        wrap_pyfunction!(line_profiles::profile_figures, module)?,
        wrap_pyfunction!(library::driver_found, module)?,
        wrap_pyfunction!(library::library_found, module)?,
        wrap_pyfunction!(library::load_library, module)?,
        wrap_pyfunction!(library::set_output, module)?,
        wrap_pyfunction!(library::recording_status, module)?,
        wrap_pyfunction!(library::ask_for_tags, module)?,
        wrap_pyfunction!(library::offload, module)?,
        wrap_pyfunction!(library::restore, module)?,
        wrap_pyfunction!(training::steps_recorded, module)?,
        wrap_pyfunction!(training::step_trained, module)?,
        wrap_pyfunction!(ranges::range_push, module)?,
        wrap_pyfunction!(ranges::range_pop, module)?,
        wrap_pyfunction!(reporter::objects::held_alone, module)?,
        wrap_pyfunction!(reporter::objects::of_types, module)?,
        wrap_pyfunction!(reporter::objects::referents, module)?,
        wrap_pyfunction!(reporter::objects::without, module)?,
        wrap_pyfunction!(reporter::optimizer::optimizer_tensors, module)?,
        wrap_pyfunction!(reporter::text::table_rows, module)?,
        wrap_pyfunction!(holders::search_holders, module)?,
        wrap_pyfunction!(tracker::books_start, module)?,
        wrap_pyfunction!(tracker::books_stop, module)?,
        wrap_pyfunction!(tracker::books_active, module)?,
        wrap_pyfunction!(tracker::books_error, module)?,
        wrap_pyfunction!(tracker::totals, module)?,
        wrap_pyfunction!(tracker::peak, module)?,
        wrap_pyfunction!(tracker::reset_peak, module)?,
        wrap_pyfunction!(tracker::latest_time, module)?,
        wrap_pyfunction!(tracker::lost_events, module)?,
        wrap_pyfunction!(tracker::devices, module)?,
        wrap_pyfunction!(tracker::device_facts, module)?,
        wrap_pyfunction!(tracker::lines, module)?,
        wrap_pyfunction!(tracker::layers, module)?,
        wrap_pyfunction!(tracker::categories, module)?,
        wrap_pyfunction!(tracker::blocks, module)?,
        wrap_pyfunction!(tracker::watch_begin, module)?,
        wrap_pyfunction!(tracker::watch_end, module)?,
        wrap_pyfunction!(tracker::watch_drop, module)?,
        wrap_pyfunction!(tracker::watch_figures, module)?,
        wrap_pyfunction!(tracker::watch_timeline, module)?,
        wrap_pyfunction!(tracker::watch_categories, module)?,
        wrap_pyfunction!(tracker::watch_lines, module)?,
        wrap_pyfunction!(tracker::watch_layers, module)?,
    ] {
        module.add_function(function)?;
    }
    Ok(())
}
