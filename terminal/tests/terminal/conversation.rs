use serde_json::json;
use trunkline_terminal::conversation::{Conversation, ToolCall};

#[test]
fn turns_make_the_body_of_a_request() {
    let mut conversation = Conversation { seed: Some(7), ..Conversation::default() };
    conversation.set_system(Some("Be brief."));
    conversation.ask("a");
    conversation.add_reply("b", "thought", Vec::new());
    conversation.ask("c");
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "thought"},
        {"role": "user", "content": "c"},
    ]);
    let wanted =
        json!({"seed": 7, "messages": messages, "stream": true, "stream_options": {"include_usage": true}});
    assert_eq!(conversation.request(), wanted);
    let saved = serde_json::to_string(&conversation).unwrap();
    assert_eq!(serde_json::from_str::<Conversation>(&saved).unwrap(), conversation);
}

#[test]
fn an_unanswered_question_is_part_of_the_next_one() {
    let mut conversation = Conversation::default();
    conversation.ask("a");
    conversation.ask("b");
    assert_eq!(conversation.messages.len(), 1);
    assert_eq!(conversation.take_question().unwrap(), "a\n\nb");
    assert!(conversation.is_empty() && conversation.take_question().is_none() && !conversation.drop_reply());
}

#[test]
fn retry_drops_the_reply_with_its_calls() {
    let mut conversation = Conversation::default();
    conversation.set_system(Some("s"));
    conversation.ask("a");
    let call = ToolCall { id: "call_1".to_owned(), ..ToolCall::default() };
    conversation.add_reply("", "", vec![call.clone()]);
    conversation.tell(&call, "4");
    conversation.add_reply("b", "", Vec::new());
    assert_eq!(conversation.messages[3].tool_call_id.as_deref(), Some("call_1"));
    assert!(conversation.drop_reply());
    assert_eq!((conversation.len(), conversation.messages[1].content.as_deref()), (1, Some("a")));
    conversation.clear();
    assert_eq!((conversation.system(), conversation.len()), (Some("s"), 0));
    conversation.set_system(None);
    assert!(conversation.messages.is_empty());
}

#[test]
fn bodies_of_requests_can_be_loaded() {
    let text = r#"{"messages": [{"role": "user", "content": "a"}], "stream": false, "top_p": 0.5}"#;
    assert_eq!(serde_json::from_str::<Conversation>(text).unwrap().len(), 1);
    assert!(serde_json::from_str::<Conversation>("{}").is_err());
}
