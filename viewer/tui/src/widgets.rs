//! Elements of the screens: panes, tables, bars and facts.

pub mod columns;
pub mod facts;
pub mod gauge;
pub mod pane;
pub mod rows;
pub mod table;
