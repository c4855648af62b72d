use trunkline_terminal::chat::slash::{COMMANDS, Change, Slash, message, parse};

#[test]
fn commands_are_read() {
    let cases = [
        ("/help", Slash::Help),
        ("  /exit  ", Slash::Exit),
        ("/quit", Slash::Exit),
        ("/seed -7", Slash::Seed(Some(Change::Set(-7)))),
        ("/seed off", Slash::Seed(Some(Change::Off))),
        ("/seed", Slash::Seed(None)),
        (
            "/system You answer in verse.\nAlways.",
            Slash::System(Some(Change::Set("You answer in verse.\nAlways.".into()))),
        ),
        ("/system off", Slash::System(Some(Change::Off))),
        ("/save my chat.json", Slash::Save("my chat.json".into())),
        ("/load\tchat.json", Slash::Load("chat.json".into())),
        ("/tools tools.json", Slash::Tools(Some(Change::Set("tools.json".into())))),
        ("/stats on", Slash::Stats(Some(true))),
        ("/model coder", Slash::Model(Some("coder".into()))),
        ("/retry", Slash::Retry),
        ("/edit", Slash::Edit),
        ("/clear", Slash::Clear),
    ];
    for (line, wanted) in cases {
        assert_eq!(parse(line), Some(Ok(wanted)), "{line}");
    }
}

#[test]
fn what_is_wrong_is_said() {
    let cases = [
        ("/sed 7", "there is no command `/sed`"),
        ("/usr/bin is full", "a message that begins with a slash has two"),
        ("/seed x", "the seed is `x`; expected a whole number"),
        ("/save", "`/save` needs the name of a file"),
        ("/retry now", "`/retry` takes nothing, but `now` follows it"),
        ("/stats maybe", "expected `on`, `off` or nothing"),
    ];
    for (line, wanted) in cases {
        let problem = parse(line).unwrap().unwrap_err();
        assert!(problem.contains(wanted), "{problem}");
    }
}

#[test]
fn messages_are_no_commands() {
    for (line, text) in [("hello /help", "hello /help"), ("//usr/bin", "/usr/bin"), (" a\nb ", "a\nb")] {
        assert_eq!((parse(line), message(line)), (None, text));
    }
}

#[test]
fn every_listed_command_exists() {
    for (name, ..) in COMMANDS {
        let with_file = format!("{name} file");
        let outcomes = [parse(name).unwrap(), parse(&with_file).unwrap()];
        assert!(outcomes.iter().any(Result::is_ok), "{outcomes:?}");
    }
}
