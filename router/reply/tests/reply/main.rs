//! All tests of the crate, in one binary, so that only one is linked.

#[path = "../../../kv/tests/kv/draw.rs"]
mod draw;
mod parts {
    mod formats;
    mod json_scanner;
    mod lenient_json;
    mod python_calls;
    mod python_string;
    mod reasoning;
    mod sections;
}
mod complete;
mod families;
mod replies;
mod support;
