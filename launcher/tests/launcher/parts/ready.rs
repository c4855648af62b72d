use std::path::Path;

use trunkline_launcher::listen::Listener;
use trunkline_launcher::ready::{Reach, banner};
use trunkline_settings::Answers;

#[test]
fn banner_quotes_the_model_name_for_json_and_shell() {
    let listener = Listener::open("127.0.0.1", 0).unwrap();
    let banner =
        banner(Reach { listener: &listener, tls_cert: None, key: None }, "it's \"x\"", Answers::Text, 0);
    assert_eq!(banner.lines().count(), 2);
    assert_eq!(banner.matches(&format!("http://{}", listener.local())).count(), 2, "{banner}");
    assert!(banner.contains(r#""model":"it'\''s \"x\"""#), "{banner}");
    assert!(!banner.contains("authorization") && !banner.contains("--cacert"), "{banner}");
}

#[test]
fn banner_has_the_key_and_the_certificate_that_a_client_needs() {
    let listener = Listener::open("127.0.0.1", 0).unwrap();
    let tls_cert = Some(Path::new("/etc/my certs/chain.pem"));
    let banner = banner(
        Reach { listener: &listener, tls_cert, key: Some("$TRUNKLINE_API_KEY") },
        "x",
        Answers::Text,
        2,
    );
    assert_eq!(banner.matches(&format!("https://{}", listener.local())).count(), 2, "{banner}");
    assert!(banner.contains("curl --cacert '/etc/my certs/chain.pem' https://"), "{banner}");
    assert!(banner.contains(r#" -H "authorization: Bearer $TRUNKLINE_API_KEY" "#), "{banner}");
    assert!(banner.contains("; 2 other models are loaded when they are asked for)"), "{banner}");
}

#[test]
fn banner_asks_for_what_the_model_makes() {
    let listener = Listener::open("127.0.0.1", 0).unwrap();
    for (answers, path, field) in [
        (Answers::Text, "/v1/chat/completions ", r#""messages":["#),
        (Answers::Embeddings, "/v1/embeddings ", r#""input":""#),
        (Answers::Scores, "/v1/rerank ", r#""documents":["#),
        (Answers::Classes, "/v1/classify ", r#""input":""#),
    ] {
        let banner = banner(Reach { listener: &listener, tls_cert: None, key: None }, "x", answers, 0);
        assert!(banner.contains(path) && banner.contains(field), "{banner}");
    }
}
