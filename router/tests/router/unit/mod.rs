//! Tests of single modules. The folders mirror `src/`.

mod api {
    mod chat {
        mod arguments;
        mod call_ids;
        mod prompt;
        mod reply;
        mod structured;
        mod tools;
    }
    mod lists;
    mod ollama;
    mod openapi;
    mod response_store;
    mod tgi;
}
mod limits;
mod log;
mod engine {
    mod driver;
    mod object {
        mod download;
    }
    mod shard {
        mod health;
        mod masks;
        mod message_size;
    }
}
mod generation {
    mod stops;
}
mod grammars {
    mod cache;
}
mod http {
    mod body;
    mod cors;
    mod event_frame;
    mod events;
    mod json;
    mod pace;
    mod stall;
}
mod kv_events;
mod metrics {
    mod usage;
}
mod request {
    mod deadline;
    mod retention;
    mod service_tier;
    mod tokens;
}
mod tenants {
    mod access;
    mod bucket;
    mod caller;
    mod key_file;
    mod key_ring;
    mod limiter;
    mod memory;
    mod network;
    mod permits;
    mod places;
    mod rate_headers;
}
mod watermark;
