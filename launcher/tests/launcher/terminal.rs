//! `trunkline chat`, `run` and `top`, in a pipe and at a terminal.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Bench, FakeApi, KEY, Typist, kill, wait_until_gone};

/// Runs a command with this text on its standard input; returns exit code, stdout and stderr.
fn piped(bench: &Bench, args: &[&str], input: &str) -> (i32, String, String) {
    let mut child = bench.command(args).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    (output.status.code().unwrap(), stdout, bench.stderr())
}

#[test]
fn a_pipe_gets_the_answer_and_nothing_else() {
    let (bench, api) = (Bench::new(), FakeApi::new());
    let outcome = piped(&bench, &["chat", &api.url], "hello\n");
    assert_eq!(outcome, (0, "you said hello\n".to_owned(), String::new()));
    let outcome = piped(&bench, &["chat", &format!("{}/v1/", api.url)], "think\n");
    assert_eq!(outcome, (0, "**so**\n".to_owned(), String::new()), "neither reasoning nor colours");
    assert_eq!(piped(&bench, &["chat", &api.url], " \n").0, 2);
}

#[test]
fn run_sends_what_the_flags_say() {
    let (bench, api) = (Bench::new(), FakeApi::new());
    let schema = bench.path("schema.json");
    std::fs::write(&schema, r#"{"type": "object"}"#).unwrap();
    let schema = schema.to_str().unwrap();
    let flags = ["--json-schema", schema, "--max-tokens", "9", "--temperature", "0.5", "--seed", "-7"];
    let target = api.url.strip_prefix("http://").unwrap();
    let args = [&["run", target, "Summarise:", "--system", "Be brief.", "--model", "m"], &flags[..]].concat();
    let (code, stdout, _) = piped(&bench, &args, "the notes\n");
    assert_eq!((code, stdout.as_str()), (0, "you said Summarise:\n\nthe notes\n"));
    let json_schema = json!({"name": "answer", "schema": {"type": "object"}, "strict": true});
    let wanted = json!({
        "model": "m", "seed": -7, "temperature": 0.5, "max_tokens": 9,
        "response_format": {"type": "json_schema", "json_schema": json_schema},
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Summarise:\n\nthe notes"},
        ],
        "stream": true, "stream_options": {"include_usage": true},
    });
    assert_eq!(api.body(0), wanted);
}

#[test]
fn the_key_comes_from_a_variable() {
    let (bench, api) = (Bench::new(), FakeApi::new());
    let (code, _, stderr) = bench.run(&["run", &api.url, "locked"]);
    let hint = "hint: put it into the variable `TRUNKLINE_API_KEY`";
    assert_eq!((code, stderr), (2, format!("error: `{}` requires a valid API key; {hint}\n", api.url)));
    let bench = Bench::new().with("TRUNKLINE_API_KEY", "other").with("MY_KEY", KEY);
    assert_eq!(bench.run(&["run", &api.url, "locked"]).0, 2);
    assert_eq!(bench.run(&["run", &api.url, "locked", "--api-key-env", "MY_KEY"]).1, "you said locked\n");
}

#[test]
fn errors_are_sentences_and_codes() {
    let (bench, api) = (Bench::new(), FakeApi::new());
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for (args, input, code, wanted) in [
        (&["chat", &api.url][..], "refuse", 1, "answered 400: `temperature` is 101, the limit is 100"),
        (&["chat", &api.url], "break", 1, "was lost after 8 characters of the reply"),
        (&["chat", &closed], "hello", 1, "hint: check that the server is running"),
        (&["chat", "http://a/b"], "hello", 2, "the address is `http://a/b`; expected `http://HOST:PORT`"),
        (&["run", &api.url, "x", "--json-schema", "none.json"], "", 2, "cannot read `none.json`"),
        (&["top", &closed, "--once"], "", 1, "no answer from"),
        (
            &["top", "999999", "--once"],
            "",
            1,
            "cannot show the server: no server of this user with process id 999999",
        ),
    ] {
        // The first request of the fake breaks, later ones do not.
        let api = FakeApi::new();
        let args: Vec<&str> =
            args.iter().map(|arg| if arg.starts_with("http://127") { &api.url } else { *arg }).collect();
        let (is, _, stderr) = piped(&bench, &args, input);
        let last = stderr.lines().last().unwrap_or_default();
        assert!(
            is == code && last.contains(wanted) && last.starts_with("error: "),
            "{args:?}: {is} {stderr}"
        );
    }
    drop(api);
}

#[test]
fn ctrl_c_stops_the_reply_and_nothing_else() {
    let (bench, api) = (Bench::new(), FakeApi::new());
    let mut typist = Typist::new(&bench, &["chat", &api.url]);
    typist.sees("fake/small at http").types("count\r").sees("30 31").presses("\x03").sees("stopped");
    api.wait_until_left();
    typist.types("wait\r").sees("model coder is loading, 40 %").presses("\x03").sees("stopped");
    typist.types("/stats\r").sees("first token after");
    typist.types("hello\r").sees("you said");
    let messages = api.messages(2);
    assert!(messages[1]["content"].as_str().unwrap().starts_with("0 1 2 "), "{messages}");
    assert_eq!(messages[2], json!({"role": "user", "content": "wait\n\nhello"}));
    typist.types("\x03").sees("press Ctrl-C again").types("\x03");
    assert_eq!(typist.ends(), 0);
}

#[test]
fn a_lost_connection_loses_nothing() {
    let (bench, api) = (Bench::new(), FakeApi::new());
    let mut typist = Typist::new(&bench, &["chat", &api.url, "--stats"]);
    typist.types("break it\r").sees("half of").sees("was lost after 8 characters").sees("/retry");
    typist.types("/retry\r").sees("you said").sees("break it").sees("5 tokens").sees("8 of them cached");
    assert_eq!(api.messages(1), json!([{"role": "user", "content": "break it"}]));
    typist.types("refuse\r").sees("answered 400").sees("taken back");
    typist.types("and\\\rthen\r").sees("then");
    let last = api.messages(3).as_array().unwrap().last().cloned();
    assert_eq!(last, Some(json!({"role": "user", "content": "and\nthen"})));
    typist.types("/edit\r").sees("then").presses("\x08\x08\x08\x08more\r").sees("more");
    let last = api.messages(4).as_array().unwrap().last().cloned();
    assert_eq!(last, Some(json!({"role": "user", "content": "and\nmore"})));
    typist.types("\x04");
    assert_eq!(typist.ends(), 0);
}

#[test]
fn tools_are_answered_by_hand_and_chats_are_kept() {
    let (bench, api) = (Bench::new(), FakeApi::new());
    let [tools, saved] = ["tools.json", "chat.json"].map(|name| bench.path(name));
    let list = r#"[{"type": "function", "function": {"name": "add", "parameters": {}}}]"#;
    std::fs::write(&tools, list).unwrap();
    let mut typist = Typist::new(&bench, &["chat", &api.url, "--system", "S"]);
    typist.types(&format!("/tools {}\r", tools.display())).sees("may call add");
    typist.types("/seed 7\r").types("/model fake/coder\r").sees("answers from now on");
    typist.types("add\r").sees("calls add").sees("result of add").types("4\r").sees("the tool said 4");
    typist.types(&format!("/save {}\r", saved.display())).sees("4 messages are in");
    typist.types("/exit\r");
    assert_eq!(typist.ends(), 0);
    assert_eq!(std::fs::metadata(&saved).unwrap().permissions().mode() & 0o777, 0o600);
    let history = bench.path(".local/state/trunkline/chat-history");
    assert_eq!(std::fs::metadata(&history).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(std::fs::read_to_string(&history).unwrap().contains("/seed 7"));

    let mut typist =
        Typist::new(&bench, &["chat", &api.url, "--no-history", "--load", saved.to_str().unwrap()]);
    typist.sees("4 messages from").types("unseen\r").sees("you said");
    let body = api.body(2);
    assert_eq!((&body["seed"], &body["tools"]), (&json!(7), &serde_json::from_str::<Value>(list).unwrap()));
    assert_eq!(body["messages"][3], json!({"role": "tool", "content": "4", "tool_call_id": "call_1"}));
    typist.types("\x04");
    assert_eq!(typist.ends(), 0);
    assert!(!std::fs::read_to_string(&history).unwrap().contains("unseen"));
}

#[test]
fn sigterm_leaves_the_terminal_as_it_was() {
    let (bench, api) = (Bench::new(), FakeApi::new());
    for (args, ready) in [(["chat", &api.url], "> "), (["top", &api.url], "q leaves")] {
        let mut typist = Typist::new(&bench, &args);
        typist.sees(ready);
        kill(typist.pid(), Signal::TERM);
        assert_eq!(typist.ends(), 128 + 15);
        let shown = typist.shown();
        assert!(shown.contains("\x1b[?1049l\x1b[?25h\x1b[?2004l"), "{shown:?}");
    }
}

#[test]
fn top_shows_a_server_until_q_is_pressed() {
    let (bench, api) = (Bench::new(), FakeApi::new());
    let (code, text, _) = bench.run(&["top", &api.url, "--once"]);
    assert!(code == 0 && text.contains("running 3, queued -"), "{text}");
    let mut typist = Typist::new(&bench, &["top", &api.url]);
    // Blanks are not drawn on a blank screen.
    typist.sees("running").sees("fake/coder").sees("serves").presses("q");
    assert_eq!(typist.ends(), 0);
}

#[test]
fn a_server_with_a_lifeline_ends_with_its_standard_input() {
    let bench = Bench::new();
    let mut command = bench.command(&["serve", "--port", "0", "--lifeline"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let lifeline = child.stdin.take();
    bench.nth("router", "listen", 1);
    let router = bench.nth("router", "start", 1)["pid"].as_u64().unwrap() as u32;
    drop(lifeline);
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", bench.stderr());
    wait_until_gone(router);
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let bench = Bench::new().with("FAKE_RESOLVE", "refuse");
    let (code, stdout, stderr) = piped(&bench, &["chat", "a/b"], "hello");
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert_eq!(stderr, "error: no model `x`\n");
}

#[test]
fn each_command_has_a_manual_page() {
    let bench = Bench::new();
    let folder = bench.path("man");
    std::fs::create_dir(&folder).unwrap();
    assert_eq!(bench.run(&["man", folder.to_str().unwrap()]).0, 0);
    let page = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    assert!(page("trunkline.1").contains("trunkline\\-serve(1)"));
    assert!(page("trunkline-serve.1").contains("\\-\\-kv\\-disk\\-path"));
    assert!(!page("trunkline-serve.1").contains("lifeline"));
    assert!(page("trunkline-cache-pin.1").contains("Duration of the pin"));
}
