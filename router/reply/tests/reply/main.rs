//! All tests of the crate, in one binary: each binary is linked by itself.

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
mod replies;
mod support;
mod whole;
