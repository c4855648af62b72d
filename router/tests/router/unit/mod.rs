//! One module of the crate at a time; these modules mirror `src/`.

mod args;
mod compiling;
mod deadline;
mod dialects {
    mod arguments;
    mod call_ids;
    mod lists;
    mod reply;
    mod responses {
        mod store;
    }
    mod structured;
    mod tgi;
    mod tools;
}
mod driver;
mod grammar_cache;
mod http {
    mod body;
    mod cors;
    mod event_frame;
    mod events;
    mod json;
    mod stall;
}
mod kv_events;
mod log;
mod object {
    mod download;
}
mod openapi;
mod retention;
mod service_tier;
mod shard {
    mod masks;
}
mod stops;
mod tenants {
    mod access;
    mod bucket;
    mod caller;
    mod key_file;
    mod key_ring;
    mod limiter;
    mod places;
    mod rate_headers;
}
mod tls {
    mod validity;
}
mod token_fields;
mod watermark;
