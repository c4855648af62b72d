//! The arguments of `trunkline chat`, `run` and `top`.

use std::path::PathBuf;

use clap::Args;

/// How to reach a server that has an address.
#[derive(Debug, Clone, Default, Args)]
pub struct Connection {
    /// Environment variable that contains the API key [default: TRUNKLINE_API_KEY, if set]
    #[arg(long, value_name = "VAR")]
    pub(crate) api_key_env: Option<String>,
    /// PEM file with the authority of the server's certificate, or with that certificate if it is self-signed
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub(crate) cacert: Option<PathBuf>,
    /// Accept every certificate; another server could then receive the API key
    #[arg(long)]
    pub(crate) insecure: bool,
}

/// The settings on which a reply depends.
#[derive(Debug, Clone, Args)]
pub struct Sampling {
    /// Name of the model, for a server that has several
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Seed: the same one gives the same reply to the same question [default: a random one]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) seed: Option<i64>,
    /// Temperature, 0 to 100; 0 takes the likeliest token each time [default: the model's]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) temperature: Option<f64>,
    /// Longest reply in tokens [default: what the context leaves]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) max_tokens: Option<u32>,
}

/// Arguments of `trunkline chat`.
#[derive(Debug, Clone, Args)]
pub struct ChatArgs {
    /// Address of a server, such as http://localhost:3000, or a model: Hub id, folder or `.gguf` file [default: the
    /// server on this machine, or else the embedded model]
    #[arg(value_name = "URL|MODEL")]
    pub(crate) target: Option<String>,
    /// The settings of replies.
    #[command(flatten)]
    pub(crate) sampling: Sampling,
    /// Go on with the conversation in this file, which `/save` wrote
    #[arg(long, value_name = "FILE")]
    pub(crate) load: Option<PathBuf>,
    /// Show tokens, speed, time to the first token and cached tokens after each reply
    #[arg(long)]
    pub(crate) stats: bool,
    /// Do not keep what is typed for the Up key of later chats
    #[arg(long)]
    pub(crate) no_history: bool,
    /// The way to reach the server.
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Arguments of `trunkline run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// A model: Hub id, folder or `.gguf` file; or the address of a server, such as http://localhost:3000
    #[arg(value_name = "URL|MODEL")]
    pub(crate) target: String,
    /// The question; text on the standard input follows it
    pub(crate) prompt: Option<String>,
    /// File with a JSON schema that the answer follows
    #[arg(long, value_name = "FILE")]
    pub(crate) json_schema: Option<PathBuf>,
    /// The settings of replies.
    #[command(flatten)]
    pub(crate) sampling: Sampling,
    /// The way to reach the server.
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Arguments of `trunkline top`.
#[derive(Debug, Clone, Args)]
pub struct TopArgs {
    /// Address of a server, or process id of a `trunkline serve` [default: the only server on this machine]
    #[arg(value_name = "URL|PID")]
    pub(crate) target: Option<String>,
    /// Print one view as text, after a second, and end
    #[arg(long)]
    pub(crate) once: bool,
    /// The way to reach the server.
    #[command(flatten)]
    pub(crate) connection: Connection,
}
