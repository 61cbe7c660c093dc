//! Answers what holds the memory of a row of the dashboard.

use memlab_trace::{BlockLayer, HeldView, Model};

use super::roster::Roster;
use memlab_base::findings::holder::{no_search, search_failed};
use memlab_base::query::{HeldMemory, HoldersAnswer, HoldersQuery};

/// Answers a query; `None`: its search has not ended yet, or the trace is not read yet.
pub(super) fn answer(roster: &mut Roster, query: &HoldersQuery) -> Option<HoldersAnswer> {
    let mut wholes = roster.traces_mut().iter().filter_map(|trace| trace.whole.as_ref());
    let (model, _) = wholes.find(|followed| followed.path() == query.trace)?.caught_up()?;
    let search = match query.since {
        Some(since) => model.search_since(since)?.map_err(search_failed),
        None => model.searches().next_back().map(|search| search.number).ok_or_else(|| no_search(model)),
    };
    let held = match search {
        Ok(search) => Ok(held(model, search, query)?),
        Err(why) => Err(why),
    };
    Some(HoldersAnswer { of: query.clone(), held })
}

/// Holders of the memory of a row at a search that has a result.
fn held(model: &Model, search: u32, query: &HoldersQuery) -> Option<HeldView> {
    match &query.of {
        HeldMemory::Line(line) => {
            model.holders_of_line(search, Some(query.device), Some((&line.file, line.line.unwrap_or(0))))
        }
        HeldMemory::Layer { layer, with_inner } => {
            model.holders_of_layers(search, query.device, &|of| of == layer || *with_inner && is_inside(of, layer))
        }
    }
}

/// Returns true if a layer is inside another one of the same outermost module.
fn is_inside(of: &BlockLayer, outer: &BlockLayer) -> bool {
    let (Some(name), Some(outer_name)) = (&of.name, &outer.name) else { return false };
    let is_below = || name.strip_prefix(&**outer_name).is_some_and(|rest| rest.starts_with('.'));
    of.root == outer.root && (outer_name.is_empty() || is_below())
}
