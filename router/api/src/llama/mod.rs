//! Routes of llama.cpp's server: <https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md>.

pub(crate) mod infill;
mod types;
