use trunkline_http::cors::Origin;

#[test]
fn origins_are_scheme_and_host() {
    for text in ["*", "https://chat.example.com", "http://localhost:3001", "http://[::1]:3", "app-x://main"] {
        assert!(text.parse::<Origin>().is_ok(), "{text}");
    }
    let origin: Origin = "https://Chat.Example.com".parse().unwrap();
    assert_eq!(format!("{origin:?}"), "Origin(\"https://chat.example.com\")");
    for text in
        ["", "example.com", "https://", "https://a/", "https://a/b", "https://*.a", "https://u@a", "a b://c"]
    {
        let problem = text.parse::<Origin>().unwrap_err();
        assert!(problem.contains("is not an origin"), "{text}: {problem}");
    }
}
