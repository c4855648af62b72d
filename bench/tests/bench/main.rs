//! The tests of `trunkline bench`. Those of whole measurements run against a server in this process.

#![allow(clippy::unwrap_used)] // a test's way to fail

mod arrivals;
mod client;
mod fake;
mod figures;
mod reports;
mod whole;
mod workloads;
