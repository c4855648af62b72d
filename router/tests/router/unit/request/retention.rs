use trunkline_generation::request::retention::{CacheControl, CacheRetention, RawRetention};
use trunkline_scheduler::CachePriority;

fn own(priority: &str, ttl_s: Option<i64>) -> RawRetention {
    let cache_retention = Some(CacheRetention { priority: priority.into(), ttl_s });
    RawRetention { cache_retention, ..RawRetention::default() }
}

fn pinned_ms(raw: &RawRetention) -> Result<Option<u64>, String> {
    raw.check().map(|checked| checked.pinned_ms).map_err(|error| error.to_string())
}

#[test]
fn each_dialects_fields_set_a_retention_time() {
    assert_eq!(pinned_ms(&RawRetention::default()), Ok(None));
    assert_eq!(pinned_ms(&own("normal", None)), Ok(None));
    assert_eq!(pinned_ms(&own("high", None)), Ok(Some(300_000)));
    assert_eq!(pinned_ms(&own("high", Some(86_400))), Ok(Some(86_400_000)));
    let openai =
        |text: &str| RawRetention { prompt_cache_retention: Some(text.into()), ..RawRetention::default() };
    assert_eq!(pinned_ms(&openai("in_memory")), Ok(None));
    assert_eq!(pinned_ms(&openai("24h")), Ok(Some(86_400_000)));
    let mark = |ttl: Option<&str>| CacheControl { kind: "ephemeral".into(), ttl: ttl.map(Into::into) };
    assert_eq!(mark(None).ttl_s("f").unwrap(), 300);
    assert_eq!(mark(Some("1h")).ttl_s("f").unwrap(), 3600);
    // Our own field goes before OpenAI's.
    let both = RawRetention { prompt_cache_retention: Some("24h".into()), ..own("normal", None) };
    assert_eq!(pinned_ms(&both), Ok(None));
    let low = RawRetention { prompt_cache_key: Some("k".into()), ..own("low", None) };
    let low = low.check().unwrap();
    assert_eq!(
        (low.pinned_ms, low.cache_priority, low.group.as_deref()),
        (None, CachePriority::Low, Some("k"))
    );
}
