use std::path::Path;
use std::time::Duration;

use trunkline_base::limits::{
    Limits, MAX_ANSWERS_BYTES, MIN_REQUESTS_BYTES, SPARE_CONNECTIONS, ServerLimits, Timeouts, open_requests,
};
use trunkline_base::machine::machine_memory;
use trunkline_base::watermark::DEFAULT_KEY;
use trunkline_generation::model::Choice;
use trunkline_grammar::GrammarLimits;
use trunkline_router::args::{reasoning_format, tool_format};
use trunkline_scheduler::{PolicyKind, Watermark};
use trunkline_settings::{
    Adapters, Choice as _, EvictionPolicy, ReasoningParser, Replies, RouterCache, ServeSettings, Server,
    ToolCallParser,
};

#[test]
fn parsers_are_chosen_by_name() {
    for parser in ToolCallParser::ALL {
        match tool_format(*parser) {
            Choice::Auto => assert_eq!(*parser, ToolCallParser::Auto),
            Choice::Is(format) => assert_eq!(format.name(), parser.name()),
            Choice::Off => assert_eq!(*parser, ToolCallParser::Off),
        }
    }
    let formats = [ReasoningParser::Auto, ReasoningParser::Think, ReasoningParser::Off].map(reasoning_format);
    assert_eq!(formats, [Choice::Auto, Choice::Is(()), Choice::Off]);
}

#[test]
fn eviction_policies_have_the_schedulers_names() {
    assert_eq!(EvictionPolicy::ALL.len(), PolicyKind::ALL.len());
    for eviction_policy in EvictionPolicy::ALL {
        let mut settings = ServeSettings::new("s".into(), "m".into(), "n".into());
        settings.cache.eviction_policy = *eviction_policy;
        assert_eq!(ServerLimits::from(&settings).eviction_policy.name(), eviction_policy.name());
    }
}

#[test]
fn limits_are_those_of_the_settings() {
    let mut settings = ServeSettings::new("s".into(), "m".into(), "n".into());
    let requests =
        Limits { max_schema_bytes: 18, max_schema_depth: 19, max_schema_properties: 20, ..Limits::default() };
    settings.limits = requests.clone();
    let graceful_termination_timeout = Duration::from_secs(26);
    settings.server = Server { graceful_termination_timeout, ..Server::default() };
    settings.replies = Replies { watermark_gamma: 0.25, watermark_delta: 1.5, ..Replies::default() };
    settings.cache = RouterCache { max_pinned_share: 23, ..RouterCache::default() };
    settings.adapters = Adapters { lora: vec!["a=/a".into()], lora_folder: None };
    let limits = ServerLimits::from(&settings);
    let wanted = ServerLimits {
        requests,
        graceful_termination_timeout,
        eviction_policy: PolicyKind::Worth,
        max_pinned_percent: 23,
        watermark: Watermark { gamma: 0.25, delta: 1.5, key: DEFAULT_KEY },
        adapters: settings.adapters.clone(),
        timeouts: Timeouts::default(),
        spare_connections: SPARE_CONNECTIONS,
        max_answers_bytes: MAX_ANSWERS_BYTES,
        max_open: limits.max_open,
        min_requests_bytes: MIN_REQUESTS_BYTES.max(machine_memory(Path::new("/")) / 100),
    };
    assert_eq!(format!("{limits:?}"), format!("{wanted:?}"));
    let grammar =
        GrammarLimits { max_bytes: 18, max_depth: 19, max_properties: 20, ..GrammarLimits::default() };
    assert_eq!(limits.grammar(), grammar);
}

#[test]
fn limits_left_out_follow_from_others() {
    let limits = ServerLimits::from(Limits { max_concurrent_requests: Some(7), ..Limits::default() });
    assert_eq!((limits.max_open, limits.max_queued(), limits.request_timeout()), (7, 7, None));
    let limits = ServerLimits::from(Limits {
        max_queued_requests: Some(3),
        request_timeout: Duration::from_secs(5),
        ..Limits::default()
    });
    assert_eq!((limits.max_queued(), limits.request_timeout()), (3, Some(Duration::from_secs(5))));
}

#[test]
fn memory_sets_the_number_of_open_requests_within_bounds() {
    let mib = |count: usize| count << 20;
    let of = [(0, 128), (mib(8), 128), (mib(32), 512), (mib(256), 4096), (usize::MAX, 4096)];
    for (num_bytes, wanted) in of {
        assert_eq!(open_requests(num_bytes), wanted, "{num_bytes}");
    }
    let limits = ServerLimits::default();
    assert_eq!(limits.max_open, open_requests(machine_memory(Path::new("/")) / 100));
}

#[test]
fn the_memory_of_the_machine_is_within_its_cgroups() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    assert_eq!(machine_memory(root.path()), 0);
    write("proc/meminfo", "MemTotal:       8000 kB\nMemFree: 1 kB\n");
    assert_eq!(machine_memory(root.path()), 8000 << 10);
    write("proc/self/cgroup", "0::/pod/box\n");
    write("sys/fs/cgroup/pod/box/memory.max", "max\n");
    assert_eq!(machine_memory(root.path()), 8000 << 10);
    write("sys/fs/cgroup/pod/memory.max", "5000000\n");
    assert_eq!(machine_memory(root.path()), 5_000_000);
    // The older version of cgroups; its limit may be at the root only, as a container sees it.
    write("proc/self/cgroup", "3:cpu,cpuacct:/x\n4:memory:/box\n0::/\n");
    write("sys/fs/cgroup/memory/memory.limit_in_bytes", "4000000\n");
    assert_eq!(machine_memory(root.path()), 4_000_000);
}
