//! All tests of the crate, in one binary: each binary is linked by itself.

#[path = "../../../kv/tests/kv/draw.rs"]
mod draw;
mod parts {
    mod format;
    mod json;
    mod loose;
    mod python_string;
    mod pythonic;
    mod reasoning;
    mod sections;
}
mod replies;
mod support;
mod whole;
