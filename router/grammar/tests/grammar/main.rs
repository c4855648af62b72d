//! Whatever is sampled under the masks parses and validates; bombs are refused quickly.

mod bombs;
mod keywords;
mod kinds;
mod real_schemas;
mod support;
