//! The commands that begin with a slash.

use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Slash {
    Help,
    /// Shows the system prompt, or changes it.
    System(Option<Change<String>>),
    Seed(Option<Change<i64>>),
    Tools(Option<Change<PathBuf>>),
    /// Shows the statistics of the last reply, or turns those of all replies on or off.
    Stats(Option<bool>),
    /// Lists the models, or chooses one.
    Model(Option<String>),
    Save(PathBuf),
    Load(PathBuf),
    Retry,
    Edit,
    Clear,
    Exit,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<T> {
    Set(T),
    Off,
}

/// The names, with what follows them and what they do.
pub const COMMANDS: [(&str, &str, &str); 12] = [
    ("/help", "", "shows this"),
    ("/system", "[TEXT|off]", "shows, sets or removes the system prompt"),
    ("/seed", "[NUMBER|off]", "the same seed, the same reply to the same messages"),
    ("/retry", "", "asks for the last reply again"),
    ("/edit", "", "takes the last question back for editing"),
    ("/tools", "[FILE|off]", "a JSON list of tools; you type the results of calls"),
    ("/stats", "[on|off]", "tokens, speed, time to the first one, cached ones"),
    ("/model", "[NAME]", "lists the models, or goes on with another one"),
    ("/save", "FILE", "writes the conversation as JSON"),
    ("/load", "FILE", "goes on with a saved conversation"),
    ("/clear", "", "begins a new conversation; the system prompt stays"),
    ("/exit", "", "leaves; so does Ctrl-D"),
];

/// Reads a command; `None` if the line is a message. The error says what is wrong.
pub fn parse(line: &str) -> Option<Result<Slash, String>> {
    let line = line.trim();
    if !line.starts_with('/') || line.starts_with("//") {
        return None;
    }
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    Some(command(name, rest.trim()))
}

/// Returns what a message says: two slashes at its beginning stand for one.
pub fn message(line: &str) -> &str {
    let line = line.trim();
    if line.starts_with("//") { &line[1..] } else { line }
}

fn command(name: &str, rest: &str) -> Result<Slash, String> {
    let text = (!rest.is_empty()).then(|| rest.to_owned());
    let alone = |command| match &text {
        None => Ok(command),
        Some(text) => Err(format!("`{name}` takes nothing, but `{text}` follows it")),
    };
    let file = |command: fn(PathBuf) -> Slash| match &text {
        Some(path) => Ok(command(path.into())),
        None => Err(format!("`{name}` needs the name of a file; hint: `{name} chat.json`")),
    };
    match name {
        "/help" | "/?" => alone(Slash::Help),
        "/retry" => alone(Slash::Retry),
        "/edit" => alone(Slash::Edit),
        "/clear" => alone(Slash::Clear),
        "/exit" | "/quit" | "/bye" => alone(Slash::Exit),
        "/save" => file(Slash::Save),
        "/load" => file(Slash::Load),
        "/model" => Ok(Slash::Model(text)),
        "/system" => Ok(Slash::System(text.map(change))),
        "/tools" => Ok(Slash::Tools(text.map(|text| match change(text) {
            Change::Set(path) => Change::Set(path.into()),
            Change::Off => Change::Off,
        }))),
        "/seed" => match text.map(change) {
            None => Ok(Slash::Seed(None)),
            Some(Change::Off) => Ok(Slash::Seed(Some(Change::Off))),
            Some(Change::Set(text)) => match text.parse() {
                Ok(seed) => Ok(Slash::Seed(Some(Change::Set(seed)))),
                Err(_) => Err(format!("the seed is `{text}`; expected a whole number of 64 bits, or `off`")),
            },
        },
        "/stats" => match rest {
            "" => Ok(Slash::Stats(None)),
            "on" => Ok(Slash::Stats(Some(true))),
            "off" => Ok(Slash::Stats(Some(false))),
            other => Err(format!("`/stats` is followed by `{other}`; expected `on`, `off` or nothing")),
        },
        _ => Err(format!(
            "there is no command `{name}`; hint: `/help` lists them, and a message that begins with a slash has two"
        )),
    }
}

fn change(text: String) -> Change<String> {
    if text == "off" { Change::Off } else { Change::Set(text) }
}
