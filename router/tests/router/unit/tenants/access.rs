use axum::http::{HeaderMap, HeaderName};
use trunkline_base::error::ApiError;
use trunkline_base::tenants::{Access, AccessError, Caller};

const KEY: &str = "sk-0123456789abcdef";

fn headers(name: &str, value: &str) -> HeaderMap {
    let name = HeaderName::try_from(name).unwrap();
    HeaderMap::from_iter([(name, value.try_into().unwrap())])
}

#[test]
fn a_key_is_found_in_either_header() {
    let access = Access::new(None, Some(KEY)).unwrap();
    let problem = |headers: &HeaderMap| match access.caller(true, headers) {
        Ok(caller) => {
            assert_eq!(caller.name(), Some("default"));
            None
        }
        Err(ApiError::InvalidApiKey { problem }) => Some(problem),
        Err(error) => panic!("{error}"),
    };
    for (name, value) in [
        ("authorization", format!("Bearer {KEY}")),
        ("authorization", format!("bearer  {KEY} ")),
        ("x-api-key", KEY.to_owned()),
    ] {
        assert_eq!(problem(&headers(name, &value)), None, "{name}: {value}");
    }
    for value in [format!("Basic {KEY}"), "Bearer".to_owned(), KEY.to_owned()] {
        assert_eq!(problem(&headers("authorization", &value)), Some("no API key was sent"), "{value}");
    }
    assert_eq!(problem(&HeaderMap::new()), Some("no API key was sent"));
    assert_ne!(problem(&headers("x-api-key", "sk-0123456789abcdeX")), Some("no API key was sent"));
}

#[test]
fn a_key_is_required_once_one_is_configured() {
    let open = Access::open();
    assert_eq!(open.caller(true, &HeaderMap::new()).unwrap(), Caller::anybody());
    let access = Access::new(None, Some(KEY)).unwrap();
    let caller = |needs_key, headers| {
        access.caller(needs_key, &headers).ok().map(|caller| caller.name().map(str::to_owned))
    };
    assert_eq!(caller(true, HeaderMap::new()), None);
    assert_eq!(caller(true, headers("x-api-key", "sk-0123456789abcdeX")), None);
    assert_eq!(caller(false, HeaderMap::new()), Some(None));
    assert_eq!(caller(false, headers("x-api-key", "wrong")), Some(None));
    let bearer = headers("authorization", &format!("Bearer {KEY}"));
    assert_eq!(caller(true, bearer), Some(Some("default".into())));
    // One of the two headers may be meant for another service.
    let mut both = headers("authorization", "Bearer sk-of-another-service");
    both.extend(headers("x-api-key", KEY));
    assert_eq!(caller(true, both), Some(Some("default".into())));
}

#[test]
fn an_invalid_file_leaves_the_keys_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.toml");
    assert!(matches!(Access::new(Some(path.clone()), None), Err(AccessError::Unreadable { .. })));
    std::fs::write(&path, format!("[tenants.a]\nkeys = \"{KEY}\"")).unwrap();
    let access = Access::new(Some(path.clone()), Some("another-key-0123")).unwrap();
    assert_eq!(access.ring().unwrap().num_keys(), 2);
    std::fs::write(&path, "[tenants.a]\nkeys = \"short\"").unwrap();
    let error = access.reload().unwrap_err().to_string();
    assert!(error.contains("line 2: a key of this tenant has 5 characters"), "{error}");
    assert!(access.ring().unwrap().find(KEY.as_bytes()).is_some());
    std::fs::write(&path, "[tenants.b]\nkeys = \"sk-fedcba9876543210\"\nshare = 3").unwrap();
    access.reload().unwrap();
    assert!(access.ring().unwrap().find(KEY.as_bytes()).is_none());
    assert!(access.ring().unwrap().find(b"another-key-0123").is_some());
    let shares: Vec<_> =
        access.shares().iter().map(|share| (share.tenant.to_string(), share.weight)).collect();
    assert_eq!(shares, [("b".into(), 3), ("default".into(), 1)]);
}

#[test]
fn a_key_in_the_environment_is_checked_and_not_shown() {
    let error = Access::new(None, Some("short-key")).unwrap_err().to_string();
    assert!(
        error.contains("`TRUNKLINE_API_KEY` has 9 characters") && !error.contains("short-key"),
        "{error}"
    );
}
