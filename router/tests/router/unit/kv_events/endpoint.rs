use trunkline_engine::kv_events::{Endpoint, Topic};

#[test]
fn endpoints_listen_or_connect() {
    let bind = |text: &str| Ok(Endpoint::Bind(text.to_owned()));
    assert_eq!("tcp://*:5557".parse(), bind("tcp://0.0.0.0:5557"));
    assert_eq!("tcp://*:0".parse(), bind("tcp://0.0.0.0:0"));
    assert_eq!("tcp://[::1]:5557".parse(), bind("tcp://[::1]:5557"));
    assert_eq!("tcp://indexer:5557".parse(), Ok(Endpoint::Connect("tcp://indexer:5557".to_owned())));
    for text in [
        "",
        "*:5557",
        "tcp://*",
        "tcp://:5557",
        "tcp://*:70000",
        "ipc:///x",
        "tcp://a*:1",
        "tcp://::1:1",
        "tcp://host:0",
        "tcp://a/b:1",
    ] {
        let error = text.parse::<Endpoint>().unwrap_err().to_string();
        assert!(error.contains("hint: "), "{text}: {error}");
    }
}

#[test]
fn a_topic_has_three_parts() {
    assert_eq!(Topic::new("pod-0", "org/name").unwrap().as_str(), "kv@pod-0@org/name");
    assert_eq!(Topic::new("10.0.0.1:8000", "m").unwrap().as_str(), "kv@10.0.0.1:8000@m");
    for (pod, model) in [("", "m"), ("a@b", "m"), ("p", ""), ("p", "m@1")] {
        assert!(Topic::new(pod, model).is_err(), "{pod} {model}");
    }
}
