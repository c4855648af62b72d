use trunkline_router::api::response_store::ResponseStore;
use trunkline_router::api::responses::ResponseObject;
use trunkline_text::ChatMessage;

fn put(store: &ResponseStore, id: &str, before: Option<&str>, text: &str) {
    let before = before.map(|id| store.get(None, id).unwrap().0);
    let response = ResponseObject { id: id.into(), ..ResponseObject::default() };
    store.put(None, before, vec![ChatMessage::new("user", text)], None, response.stored());
}

#[test]
fn conversations_branch_and_share_their_beginning() {
    let store = ResponseStore::new(1 << 20);
    put(&store, "a", None, "1");
    put(&store, "b", Some("a"), "2");
    put(&store, "c", Some("a"), "3");
    let texts = |id| {
        let conversation = store.get(None, id).unwrap().0.conversation();
        conversation.into_iter().map(|message| message.content.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((texts("b"), texts("c")), (vec!["1".into(), "2".into()], vec!["1".into(), "3".into()]));
    // An evicted response is still part of the conversations that continue it.
    assert!(store.remove(None, "a") && !store.remove(None, "a"));
    assert_eq!(texts("b"), ["1", "2"]);
    assert!(store.get(None, "a").is_none());
}

#[test]
fn the_least_recently_used_response_is_evicted_and_all_bytes_are_freed() {
    let store = ResponseStore::new(100_000);
    for idx in 0..100 {
        put(&store, &format!("r{idx}"), None, &"x".repeat(10_000));
        assert!(store.num_bytes() <= 100_000);
        assert!(store.get(None, "r0").is_some(), "it is used again and again");
    }
    assert!(store.get(None, "r50").is_none() && store.get(None, "r99").is_some());
    // A chain of any length is dropped without a stack frame for each turn.
    let store = ResponseStore::new(usize::MAX);
    put(&store, "0", None, "x");
    for idx in 1..100_000 {
        put(&store, &idx.to_string(), Some(&(idx - 1).to_string()), "x");
        assert!(store.remove(None, &(idx - 1).to_string()));
    }
    assert!(store.num_bytes() > 0 && store.remove(None, "99999"));
    assert_eq!(store.num_bytes(), 0);
}

#[test]
fn responses_of_other_tenants_are_missing() {
    let store = ResponseStore::new(1 << 20);
    let response = ResponseObject { id: "a".into(), ..ResponseObject::default() };
    store.put(Some("alice"), None, Vec::new(), None, response.stored());
    assert!(store.get(Some("alice"), "a").is_some());
    assert!(store.get(Some("bob"), "a").is_none() && store.get(None, "a").is_none());
    assert!(!store.remove(Some("bob"), "a"));
}

fn put_for(store: &ResponseStore, owner: &str, id: &str, num_bytes: usize) {
    let response = ResponseObject { id: id.into(), ..ResponseObject::default() };
    store.put(
        Some(owner),
        None,
        vec![ChatMessage::new("user", "x".repeat(num_bytes))],
        None,
        response.stored(),
    );
}

#[test]
fn a_tenant_evicts_its_own_responses_before_those_of_smaller_tenants() {
    let store = ResponseStore::new(100_000);
    put_for(&store, "small", "kept", 20_000);
    for idx in 0..100 {
        put_for(&store, "large", &format!("r{idx}"), 10_000);
        assert!(store.num_bytes() <= 100_000);
    }
    assert!(store.get(Some("small"), "kept").is_some(), "another tenant's responses evicted it");
    assert!(store.get(Some("large"), "r99").is_some() && store.get(Some("large"), "r0").is_none());
    // A tenant that comes later gets its share from the largest one.
    put_for(&store, "late", "first", 30_000);
    assert!(store.get(Some("small"), "kept").is_some() && store.get(Some("late"), "first").is_some());
    // A response that exceeds the store by itself evicts only its own tenant's.
    put_for(&store, "late", "huge", 200_000);
    assert!(store.get(Some("late"), "huge").is_none() && store.get(Some("late"), "first").is_none());
    assert!(store.get(Some("small"), "kept").is_some() && store.get(Some("large"), "r99").is_some());
}

#[test]
fn json_counts_by_its_memory() {
    let store = ResponseStore::new(usize::MAX);
    let items = vec![serde_json::Value::from(0); 100_000];
    let text = serde_json::to_string(&items).unwrap();
    let extra = serde_json::Map::from_iter([("tool_calls".to_owned(), items.into())]);
    let message = ChatMessage { role: "assistant".into(), content: None, extra };
    let response = ResponseObject { id: "a".into(), ..ResponseObject::default() };
    store.put(None, None, vec![message], None, response.stored());
    assert!(store.num_bytes() > 20 * text.len(), "{} bytes for {} of text", store.num_bytes(), text.len());
    assert!(store.remove(None, "a"));
    assert_eq!(store.num_bytes(), 0);
}
