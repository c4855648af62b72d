//! Nothing but dependencies: their features are the same in every build of the workspace.
//!
//! Cargo turns on what any crate of a build asks of a dependency. Tests ask for more than what ships, so that each such
//! dependency, and all that stands on it up to the router, would be compiled once for the tests and once more to be
//! served. What is tested would not be what ships, either. `scripts/features.py` says which features are missing
//! here.
