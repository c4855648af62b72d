use trunkline_launcher::args::cache::{events_endpoint, size};

#[test]
fn an_endpoint_has_host_and_port() {
    for text in ["tcp://*:5557", "tcp://indexer:5557", "tcp://[::]:5557"] {
        assert_eq!(events_endpoint(text.to_owned()).unwrap(), text);
    }
    for text in ["", "*:5557", "tcp://*", "tcp://:5557", "tcp://*:70000", "ipc:///events"] {
        let error = events_endpoint(text.to_owned()).unwrap_err().to_string();
        assert!(error.contains("--kv-events-endpoint") && error.contains("hint: "), "{text}: {error}");
    }
}

#[test]
fn sizes_are_read_or_refused() {
    assert_eq!(size("--kv-disk-size", "16MiB").unwrap(), 16 << 20);
    assert_eq!(size("--kv-disk-size", "2 GiB").unwrap(), 2 << 30);
    assert_eq!(size("--kv-disk-size", "3T").unwrap(), 3 << 40);
    assert_eq!(size("--kv-disk-size", "20000000").unwrap(), 20_000_000);
    for (text, what) in [
        ("", "no size"),
        ("GiB", "no size"),
        ("-1GiB", "no size"),
        ("1.5GiB", "no size"),
        ("10GB", "no size"),
        ("1KiB", "less than 16MiB"),
        ("9999999TiB", "more than 1024TiB"),
        ("99999999999999999TiB", "more than 1024TiB"),
    ] {
        let error = size("--kv-host-size", text).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("hint: "), "{text}: {error}");
    }
}
