use trunkline_bench::client::tls::Trust;
use trunkline_launcher::cache::server::{Server, ServerError};

#[test]
fn a_url_names_a_server_and_nothing_more() {
    for url in ["http://localhost:8080", "https://kv.example/", "http://[::1]:80"] {
        assert!(Server::new(url, None, Trust::System).is_ok(), "{url}");
    }
    for url in ["", "localhost:8080", "ftp://x", "http://", "http://x/v1", "http://key@x", "https://x?y"] {
        assert!(matches!(Server::new(url, None, Trust::System), Err(ServerError::Url { .. })), "{url}");
    }
    let unset = Server::new("http://x", Some("TRUNKLINE_NO_SUCH_VARIABLE"), Trust::System);
    assert!(matches!(unset, Err(error @ ServerError::Key { .. }) if error.is_users_mistake()));
}
