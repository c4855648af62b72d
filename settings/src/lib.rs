//! The settings of `trunkline serve`, each declared once: name, default, valid range, help text and group.
//!
//! The tables are in [`groups`]. From one entry the launcher makes a flag, an environment variable and a key of its
//! configuration file, and the processes get the values in one file, [`ServeSettings`]. To add a setting, add an entry
//! to one of its groups and use the new field in the router, or the new attribute in the shard.
//! The crate uses no other crate of ours.
//!
//! ```
//! use trunkline_settings::{Group, Limits};
//!
//! let limits = Limits::read(|setting| (setting.name == "max_tools").then(|| "7".to_owned()))?;
//! assert_eq!((limits.max_tools, limits.max_messages), (7, 16_384));
//! let error = Limits::read(|setting| (setting.name == "max_tools").then(|| "many".to_owned())).unwrap_err();
//! assert_eq!(error.to_string(), "`--max-tools` is `many`; expected a whole number from 0 to 4096");
//! # Ok::<(), trunkline_settings::SettingError>(())
//! ```

mod adapter;
mod choices;
mod form;
mod groups;
mod macros;
mod quantity;
mod setting;
mod tool_formats;
mod value;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use crate::adapter::{MAX_ADAPTER_NAME_BYTES, is_adapter_name, parse as parse_adapter};
pub use crate::choices::{
    Backend, EvictionPolicy, KvCacheDtype, KvWindows, LogFormat, LogLevel, Numerics, PinThreads, PoolingKind,
    Pull, Quantize, ReasoningParser, ToolCallParser,
};
pub use crate::form::Form;
pub use crate::groups::{
    AdapterAliases, AdapterSlots, Adapters, Aliases, Compute, DEFAULT_ADAPTER_SLOTS, ForeignShards, Limits,
    Logging, MAX_ADAPTERS, MAX_MESSAGE_PARTS, MAX_MESSAGES, MAX_REPLICAS, Model, Replies, Residency,
    RouterCache, Server, ShardCache, StepLimits,
};
pub use crate::setting::{Group, Setting, SettingError, check};
pub use crate::value::{Choice, Named, Speculate, Value, WeightsCache};

/// Environment variable of an API key. There is no flag, since command lines are visible to other users.
pub const KEY_VARIABLE: &str = "TRUNKLINE_API_KEY";
/// Environment variable of the key that selects the green tokens of watermarks, without a flag for the same reason.
pub const WATERMARK_KEY_VARIABLE: &str = "TRUNKLINE_WATERMARK_KEY";

/// Exit code of the router, and of the launcher, after a requested stop that cut requests because they were not
/// finished in time.
pub const EXIT_CUT: u8 = 3;

/// Returns every setting of `trunkline serve` with its default as users write it, in the order of the help text.
pub fn all() -> Vec<(&'static Setting, Option<String>)> {
    fn with_defaults<G: Group>() -> impl Iterator<Item = (&'static Setting, Option<String>)> {
        let shown = |(setting, default): (&'static Setting, Option<String>)| {
            (setting, default.map(|default| setting.form.shown(&default)))
        };
        G::SETTINGS.iter().zip(G::default().texts()).map(shown)
    }
    with_defaults::<Model>()
        .chain(with_defaults::<Residency>())
        .chain(with_defaults::<Server>())
        .chain(with_defaults::<Limits>())
        .chain(with_defaults::<StepLimits>())
        .chain(with_defaults::<Replies>())
        .chain(with_defaults::<Compute>())
        .chain(with_defaults::<ForeignShards>())
        .chain(with_defaults::<ShardCache>())
        .chain(with_defaults::<RouterCache>())
        .chain(with_defaults::<Adapters>())
        .chain(with_defaults::<AdapterSlots>())
        .chain(with_defaults::<AdapterAliases>())
        .chain(with_defaults::<Logging>())
        .chain(with_defaults::<Aliases>())
        .collect()
}

/// The file that the launcher writes for the router and its shards, as JSON. Each reads the groups that concern it; the
/// shard's side is `server/trunkline_server/settings.py`.
///
/// It holds no secret: keys reach the router by environment variables and by the files that the settings name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServeSettings {
    /// The number by which launcher and router speak of the model. The first one has 0.
    #[serde(default)]
    pub model_number: u32,
    /// Unix sockets of the shards, in the order of their lanes. The router retries until it can connect.
    pub shard_sockets: Vec<PathBuf>,
    /// The model's `.gguf` file or folder, from which the router reads the tokenizer and the chat template.
    pub model_path: PathBuf,
    pub served_model_name: String,
    /// The memory that the model is expected to take, in bytes; 0 where models stay in memory.
    #[serde(default)]
    pub model_bytes: u64,
    #[serde(default)]
    pub residency: Residency,
    #[serde(default)]
    pub server: Server,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    pub replies: Replies,
    #[serde(default)]
    pub cache: RouterCache,
    #[serde(default)]
    pub compute: Compute,
    #[serde(default)]
    pub step_limits: StepLimits,
    #[serde(default)]
    pub shard_cache: ShardCache,
    /// Read by the router.
    #[serde(default)]
    pub adapters: Adapters,
    /// Read by the shards. Without `max_loras` they take no adapters.
    #[serde(default)]
    pub adapter_slots: AdapterSlots,
    #[serde(default)]
    pub logging: Logging,
}

/// A report of a child to the launcher, one line of JSON on the child's standard output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Report {
    /// The router accepts connections, and the shard at this socket computes since it was started.
    Ready { socket: PathBuf, answers: Answers },
    /// The router has closed the listening socket, because another one accepts its connections.
    Left,
    /// The router's shard hangs and must be killed.
    HungShard {
        socket: PathBuf,
        /// Seconds since its step began, or for which it did not answer.
        seconds: u64,
    },
    /// Requests are to blame for the last losses of the router's shard, so they say nothing about the shard.
    Excused { socket: PathBuf, num_losses: u64 },
    /// Nothing is left on the shard at this socket, whose lane drains.
    Drained { socket: PathBuf },
    /// Start the shards of the model with this number ([`ServeSettings::model_number`]).
    Load { model: u32 },
    /// Stop the shards of this model.
    Unload { model: u32 },
    /// Look for a model by the name that a request gave, and download it if that is allowed.
    Find { model: String, downloads: bool },
    /// Remove this model, which a request has added, and delete its files.
    Delete { model: u32 },
    /// This model has taken the place of another one, or cannot be loaded, so that the other one stays.
    Replaced { model: u32, problem: Option<String> },
    /// The shard has loaded its model and waits until another process gives up the store on disk.
    AwaitsStore,
    /// The shard has loaded so much of its model's weights.
    Loading { percent: u8 },
}

/// An order of the launcher to the router, one line of JSON on the router's standard input. The end of that input means
/// that the launcher has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Order {
    /// Start no sequence on the shard at this socket while another one serves. What runs there goes on with another
    /// shard after this time.
    Drain { socket: PathBuf, patience_ms: u64 },
    /// End the drain of the shard at this socket.
    Undrain { socket: PathBuf },
    /// The shards of this model have stopped.
    Unloaded { model: u32 },
    /// The shards of this model cannot be started, or crash too often.
    Failed { model: u32, why: String },
    /// The shard of this lane has loaded so much of the model's weights.
    Loading { model: u32, lane: u32, percent: u8 },
    /// So much of a model has been downloaded.
    Downloading { model: String, done_bytes: u64, total_bytes: u64 },
    /// A model cannot be added.
    NotFound { model: String, why: String },
    /// There is another model, with these settings. `found_as` is the name by which a request asked for it. If it
    /// replaces another model, it is to be loaded before the other one leaves, if that is in memory.
    Added { settings: PathBuf, found_as: Option<String>, replaces: Option<u32> },
    /// This model is no longer served. Its requests may end.
    Removed { model: u32 },
    /// This model stays, and its files are not deleted.
    NotDeleted { model: u32, why: String },
}

/// The kind of answer that a user of the served model wants first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answers {
    Text,
    /// It makes only vectors that are embeddings.
    Embeddings,
    /// It has one class, whose probability is the score of a pair of texts.
    Scores,
    /// It has several classes.
    Classes,
}

impl ServeSettings {
    /// Settings with every default, for one shard and the given model.
    pub fn new(shard_socket: PathBuf, model_path: PathBuf, served_model_name: String) -> Self {
        Self {
            model_number: 0,
            shard_sockets: vec![shard_socket],
            model_path,
            served_model_name,
            model_bytes: 0,
            residency: Residency::default(),
            server: Server::default(),
            limits: Limits::default(),
            replies: Replies::default(),
            cache: RouterCache::default(),
            compute: Compute::default(),
            step_limits: StepLimits::default(),
            shard_cache: ShardCache::default(),
            adapters: Adapters::default(),
            adapter_slots: AdapterSlots::default(),
            logging: Logging::default(),
        }
    }

    /// Checks that every value is within its range, as a file may have been written by hand.
    pub fn check(&self) -> Result<(), SettingError> {
        check(&self.residency)?;
        check(&self.server)?;
        check(&self.limits)?;
        check(&self.replies)?;
        check(&self.cache)?;
        check(&self.compute)?;
        check(&self.step_limits)?;
        check(&self.shard_cache)?;
        check(&self.adapters)?;
        check(&self.adapter_slots)?;
        check(&self.logging)
    }
}
