//! Regular expressions: the dialect that is accepted, what one may cost, and the tables that match tokens.

pub(crate) mod automaton;
pub(crate) mod class_budget;
pub(crate) mod matcher;
pub(crate) mod portable;
pub(crate) mod table;
