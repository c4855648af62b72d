//! The tables: every setting of `trunkline serve`.

use std::ops::Bound;
use std::path::PathBuf;
use std::time::Duration;

use crate::choices::{
    Backend, EvictionPolicy, KvCacheDtype, KvWindows, LogFormat, LogLevel, Numerics, PinThreads, PoolingKind,
    Pull, Quantize, ReasoningParser, ToolCallParser,
};
use crate::form::Form;
use crate::macros::settings;
use crate::value::{Choice, Speculate, WeightsCache};

/// Upper bound of the number of open requests.
const MAX_REQUESTS: u64 = 1 << 16;
/// Upper bound of the number of shards of a server.
pub const MAX_REPLICAS: u32 = 64;
/// Size of a store of K and V; a smaller one holds hardly a conversation.
const STORE_SIZE: Form = Form::bytes(16 << 20, 1 << 50);

settings! {
    /// The model to serve. Only the launcher reads it.
    "Model" => Model {
        /// Alternative to the argument MODEL [default: the embedded model].
        model_id: Option<String> = None, Form::Name { what: "MODEL" };
        /// Branch, tag or commit on the Hub.
        revision: Option<String> = None, Form::Name { what: "REVISION" };
        /// Name of the model in answers [default: its Hub id or file name].
        served_model_name: Option<String> = None, Form::Name { what: "NAME" };
    }

    /// The memory that models share, where the server has several, and the time for which one stays in it.
    "Models" => Residency {
        /// Memory of all models together. Models that were not used for the longest time make room for one that is
        /// asked for [default: 90 % of the memory that is available at the start].
        models_memory: Option<u64> = None, Form::bytes(16 << 20, 1 << 50);
        /// Folder of models, which are served besides those that are named: each `.gguf` file, and each folder with
        /// `config.json` or one `.gguf` file. Models that are put into it or taken out later are noticed
        /// [default: none].
        models_folder: Option<PathBuf> = None, Form::Folder;
        /// Models that requests may add to the server by their names.
        pull: Pull = Pull::Never, Form::Choice { what: "WHERE", named: Pull::NAMED };
        /// Time after its last request after which a model leaves the memory; 0 means that it stays as long as there is
        /// room.
        #[serde(with = "crate::value::seconds")]
        idle_unload: Duration = Duration::ZERO, Form::seconds(0);
        /// Load the model at the start and keep it in memory.
        pin: bool = false, Form::Switch;
        /// Models with a lower number leave the memory before others.
        model_priority: u32 = 0, Form::count(0, 1000);
        /// Other names by which requests may call the model, separated by commas [default: none].
        model_alias: Vec<String> = Vec::new(), Form::Names;
    }

    /// The router's address, access to it, and its traces.
    "Server" => Server {
        /// Address to listen on; 0.0.0.0 opens the server to the network.
        hostname: String = "127.0.0.1".into(), Form::Host;
        /// Port to listen on; 0 picks a free one.
        port: u16 = 3000, Form::Number { unit: "PORT", min: 0, max: 65_535 };
        /// Port that answers only `/metrics`, `/livez` and `/readyz`, over plain HTTP and without keys; 0 opens none.
        metrics_port: u16 = 0, Form::Number { unit: "PORT", min: 0, max: 65_535 };
        /// Address of `--metrics-port`; 0.0.0.0 opens it to the network, such as that of a pod.
        metrics_hostname: String = "127.0.0.1".into(), Form::Host;
        /// TOML file with the API keys of each tenant. Without this file and without `TRUNKLINE_API_KEY`, which holds a
        /// single key, the server needs no key.
        api_keys: Option<PathBuf> = None, Form::File;
        /// PEM file with the server's certificate chain; the server then accepts only TLS. It is read again when it
        /// changes. Requires `--tls-key`.
        tls_cert: Option<PathBuf> = None, Form::File;
        /// PEM file with the certificate's private key.
        tls_key: Option<PathBuf> = None, Form::File;
        /// Browser origins allowed to call this server (CORS), such as `https://chat.example.com`, separated by commas;
        /// `*` allows all [default: none].
        cors_allow_origin: Vec<String> = Vec::new(), Form::Origins;
        /// Folder in which the server keeps the conversations of its page, by tenant. Without it, each browser keeps
        /// its own [default: none].
        history_path: Option<PathBuf> = None, Form::Folder;
        /// Serve no web page at `/`.
        no_web: bool = false, Form::Switch;
        /// OpenTelemetry collector that gets a span of each request, such as http://127.0.0.1:4317. The variables
        /// OTEL_* hold: OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf sends by HTTP instead of gRPC [default: none].
        otlp_endpoint: Option<String> = None, Form::Collector;
        /// Time that open requests have to finish after SIGTERM.
        #[serde(with = "crate::value::seconds")]
        graceful_termination_timeout: Duration = Duration::from_secs(90), Form::seconds(0);
        /// Time that `trunkline reload` may take, a download included. Then the new router and shard are ended, and the
        /// old ones go on.
        #[serde(with = "crate::value::seconds")]
        reload_timeout: Duration = Duration::from_secs(1800), Form::seconds(1);
    }

    /// Limits on requests, which the router enforces.
    "Limits" => Limits {
        /// Maximum number of open requests; further requests are refused with 429 [default: by memory, 128 to 4096: one
        /// for each 64 KiB of a hundredth of it].
        max_concurrent_requests: Option<usize> = None, Form::count(1, MAX_REQUESTS);
        /// Maximum number of sequences waiting for their first step; further requests are refused with 429 [default:
        /// `--max-concurrent-requests`].
        max_queued_requests: Option<usize> = None, Form::count(1, MAX_REQUESTS);
        /// Maximum number of prompt tokens [default: the context minus one].
        max_input_tokens: Option<u32> = None, Form::tokens(1);
        /// Maximum number of prompt and output tokens together [default: the model's context].
        max_total_tokens: Option<u32> = None, Form::tokens(2);
        /// Maximum number of outputs for one prompt (`n`, `best_of`).
        max_best_of: u32 = 128, Form::count(1, 1024);
        /// Maximum number of messages in a chat.
        max_messages: usize = 16_384, Form::count(1, MAX_MESSAGES as u64);
        /// Maximum number of parts, or blocks, in a message.
        max_message_parts: usize = 1024, Form::count(1, MAX_MESSAGE_PARTS as u64);
        /// Maximum number of tools in a request.
        max_tools: usize = 128, Form::count(0, 4096);
        /// Maximum size of the stored answers that later requests to /v1/responses can continue, and again of the
        /// streams that outlive their connection; 0 stores none.
        max_response_store_bytes: usize = 64 << 20, Form::bytes(0, u64::MAX);
        /// Maximum size of the conversations that `--history-path` keeps for a tenant.
        max_history_bytes: u64 = 256 << 20, Form::bytes(1 << 20, 1 << 50);
        /// Maximum number of stop strings in a request.
        max_stop_sequences: usize = 64, Form::count(0, 256);
        /// Maximum size of a JSON schema, regular expression or grammar.
        max_schema_bytes: usize = 128 << 10, Form::bytes(1, 8 << 20);
        /// Maximum nesting depth of objects and arrays in a JSON schema.
        max_schema_depth: usize = 64, Form::count(1, 128);
        /// Maximum number of properties, alternatives and enumerated values in a JSON schema.
        max_schema_properties: usize = 4096, Form::count(1, 1 << 16);
        /// Maximum size of a request body; larger ones are refused with 413.
        max_body_bytes: usize = 8 << 20, Form::bytes(1 << 10, 1 << 30);
        /// Maximum size of a request header; larger ones are refused with 431.
        max_header_bytes: usize = 64 << 10, Form::bytes(1 << 10, 1 << 20);
        /// Time after which a client that reads none of its answer is disconnected.
        #[serde(with = "crate::value::seconds")]
        client_stall_timeout: Duration = Duration::from_secs(30), Form::seconds(1);
        /// Maximum lifetime of a request, including its time in the queue; 0 means no limit.
        #[serde(with = "crate::value::seconds")]
        request_timeout: Duration = Duration::ZERO, Form::seconds(0);
        /// Time for which requests wait for a new shard after the last one was lost. After that they fail.
        #[serde(with = "crate::value::seconds")]
        shard_restart_timeout: Duration = Duration::from_secs(120), Form::seconds(0);
        /// Time that a step should take at most while it continues streams, which is the time between two of their
        /// tokens; long prompts are computed in parts that fit into it. 0 computes them as fast as possible.
        target_itl_ms: u32 = 45, Form::milliseconds(10_000);
        /// Time after which the first token of a reply should be there. While a prompt can meet it only with longer
        /// steps, steps take up to four times `--target-itl-ms`. 0 means that streams never slow down for it.
        target_ttft_ms: u32 = 0, Form::milliseconds(600_000);
        /// Drafts of the next tokens, found in the text itself, so that a step can give a stream several tokens. `auto`
        /// uses them where they are predicted to pay, a number uses up to as many wherever there are any. The text
        /// is the same in any case.
        speculate: Speculate = Speculate::Auto, Form::OffAutoOrCount(MAX_SPECULATE);
        /// The number of `--replicas` that compute prompts for the others, which only continue streams and read what
        /// was computed from `--kv-disk-path`; a folder in /dev/shm keeps it in memory.
        prefill_replicas: u32 = 0, Form::count(0, MAX_REPLICAS as u64 - 1);
        /// Time after which a step still running makes `/readyz` answer 503.
        #[serde(with = "crate::value::seconds")]
        stuck_step_timeout: Duration = Duration::from_secs(60), Form::seconds(1);
        /// Multiple of `--stuck-step-timeout` for which `/readyz` may report a shard as silent or stuck before the
        /// shard is killed and restarted; 0 means never. Its first step may take ten times as long.
        hung_shard_factor: u32 = 2, Form::count(0, 1000);
    }

    /// Limits on steps, which the shard enforces and tells the router.
    "Limits" => StepLimits {
        /// Maximum number of tokens computed in one step [default: chosen by the backend].
        max_batch_prefill_tokens: Option<u32> = None, Form::Number { unit: "TOKENS", min: 1, max: 1 << 16 };
        /// Size of the KV cache in tokens, of which each of `--replicas` gets an equal part except on the cuda backend
        /// [default: 131072, or as many as fit into a quarter of the available memory if that is less].
        max_batch_total_tokens: Option<u32> = None, Form::tokens(2);
        /// Memory of the model on the cpu backend. The KV cache gets what weights, activations and processes leave of
        /// it [default: what they need].
        model_memory: Option<u64> = None, Form::bytes(64 << 20, 1 << 50);
        /// Start on the cpu backend even if weights, activations and KV cache need more memory than is available.
        /// Without `--max-batch-total-tokens` the KV cache has then 512 tokens.
        overcommit: bool = false, Form::Switch;
        /// Memory of the weights on the cpu backend, of which each of `--replicas` gets an equal part. What exceeds it
        /// is read from `--weights-cache` in every step [default: all weights].
        weights_memory: Option<u64> = None, Form::bytes(1 << 20, 1 << 50);
        /// Memory of the KV cache on the cpu backend, of which each of `--replicas` gets an equal part. What exceeds it
        /// of `--max-batch-total-tokens` is in a file in TMPDIR or /var/tmp while no step needs it, so that prompts may
        /// be longer than the memory [default: all of the KV cache].
        kv_memory: Option<u64> = None, Form::bytes(1 << 20, 1 << 50);
        /// Maximum number of sequences in one step [default: chosen by the backend].
        max_step_sequences: Option<u32> = None, Form::count(1, 1 << 12);
    }

    /// Chat template, and parsing and watermarking of replies, in the router.
    "Replies" => Replies {
        /// File with a Jinja template that replaces the model's own chat template.
        chat_template: Option<PathBuf> = None, Form::File;
        /// Format of the model's tool calls.
        tool_call_parser: ToolCallParser = ToolCallParser::Auto,
            Form::Choice { what: "FORMAT", named: ToolCallParser::NAMED };
        /// Format of the model's reasoning.
        reasoning_parser: ReasoningParser = ReasoningParser::Auto,
            Form::Choice { what: "FORMAT", named: ReasoningParser::NAMED };
        /// Fraction of the vocabulary that is green in watermarked replies (TGI's `watermark`), from 0.01 to 0.99.
        watermark_gamma: f32 = 0.5,
            Form::Decimal { unit: "FRACTION", range: (Bound::Included(0.01), Bound::Included(0.99)) };
        /// Bias added to the logits of green tokens, up to 100. A larger bias makes the watermark easier to detect and
        /// changes replies more.
        watermark_delta: f32 = 2.0,
            Form::Decimal { unit: "LOGITS", range: (Bound::Excluded(0.0), Bound::Included(100.0)) };
        /// File with the key that selects the green tokens, a whole number below 2^64. Without this file and without
        /// `TRUNKLINE_WATERMARK_KEY`, which holds the key itself, TGI's publicly known key is used.
        watermark_key_file: Option<PathBuf> = None, Form::File;
    }

    /// The backend and its threads.
    "Compute" => Compute {
        /// Implementation of the model. `cuda` needs an NVIDIA GPU, PyTorch and Triton; `transformers` is slower and
        /// needs PyTorch and transformers; `reference` is slow and needs PyTorch.
        backend: Backend = Backend::Cpu, Form::Choice { what: "BACKEND", named: Backend::NAMED };
        /// Guarantee for the bits of a reply on the cuda backend; other backends are always exact.
        numerics: Numerics = Numerics::Exact, Form::Choice { what: "NUMERICS", named: Numerics::NAMED };
        /// Number of shards, each with the whole model, among which the server divides requests by what each has
        /// cached. With the cuda backend each has a GPU of its own: those that CUDA_VISIBLE_DEVICES names, or else the
        /// first ones. With other backends each has an equal part of the cores, and of the memory of
        /// `--max-batch-total-tokens`.
        replicas: u32 = 1, Form::count(1, MAX_REPLICAS as u64);
        /// Threads of the CPU backend in each of `--replicas` [default: one per physical core of its part, within the
        /// CPU quota, at most 64].
        threads: Option<u32> = None, Form::count(1, 1024);
        /// Pins each thread of the CPU backend to its own core.
        pin_threads: PinThreads = PinThreads::Auto, Form::Choice { what: "WHEN", named: PinThreads::NAMED };
        /// Folder for packed weights, which make the next start faster, or `off` [default: trunkline/weights in the
        /// user's cache folder].
        weights_cache: Option<WeightsCache> = None, Form::FolderOrOff;
        /// Quantises the weights of an unquantised checkpoint while it is loaded. `fp8`, `nf4`, `bitsandbytes-nf4` and
        /// `bitsandbytes-fp4` are for the cuda backend; on others the first is int8 and the rest int4. `bitsandbytes`
        /// and `eetq` mean int8. `gptq` and `awq` check that the checkpoint is quantised so.
        quantize: Quantize = Quantize::None, Form::Choice { what: "TYPE", named: Quantize::NAMED };
        /// Position whose output is the embedding of a text, or `mean` of all; `none` makes no embeddings. By default
        /// the model's files say it, as those of embedding models do. cpu and reference backends only.
        pooling: PoolingKind = PoolingKind::Auto, Form::Choice { what: "POOLING", named: PoolingKind::NAMED };
        /// Folder or .gguf file of a smaller model with the same vocabulary, which drafts tokens where the text itself
        /// has no drafts; cpu backend only. Replies stay the same [default: none].
        speculative_model: Option<PathBuf> = None, Form::File;
    }

    /// Shards that others start. Only the launcher reads it.
    "Compute" => ForeignShards {
        /// Unix socket of a shard that others start, with the same model and settings; repeated, or separated by
        /// commas, for several. The server then starts no shard, and is ready when the first of them is [default:
        /// none].
        shard_socket: Vec<PathBuf> = Vec::new(), Form::Sockets { max: MAX_REPLICAS as usize };
    }

    /// The shard's part of the KV cache.
    "KV cache" => ShardCache {
        /// Format of keys and values; `auto` is int8 on the CPU.
        kv_cache_dtype: KvCacheDtype = KvCacheDtype::Auto,
            Form::Choice { what: "DTYPE", named: KvCacheDtype::NAMED };
        /// Tokens whose keys and values layers with a sliding window keep.
        kv_windows: KvWindows = KvWindows::Auto, Form::Choice { what: "MODE", named: KvWindows::NAMED };
        /// Folder that keeps the KV cache on disk, so that it survives restarts and crashes. It contains conversation
        /// content [default: not kept].
        kv_disk_path: Option<PathBuf> = None, Form::Folder;
        /// Maximum size of the KV cache on disk, such as 500MiB or 2TiB, of which each of `--replicas` gets an equal
        /// part. Blocks that other models left in the folder make room, unless a server uses them [default: 10GiB].
        kv_disk_size: Option<u64> = None, STORE_SIZE;
        /// Serve without the KV cache on disk, with a warning, if its folder cannot be used when the server starts.
        /// Without this, the start fails.
        kv_disk_optional: bool = false, Form::Switch;
        /// Pinned host memory that extends the KV cache of the cuda backend, such as 64GiB, of which each of
        /// `--replicas` gets an equal part. With `--kv-disk-path`, it holds the most recently used blocks of the disk
        /// [default: none; with `--kv-disk-path` 1GiB].
        kv_host_size: Option<u64> = None, STORE_SIZE;
    }

    /// The router's part of the KV cache.
    "KV cache" => RouterCache {
        /// Order in which cached prefixes are evicted when the KV cache is full.
        eviction_policy: EvictionPolicy = EvictionPolicy::Worth,
            Form::Choice { what: "POLICY", named: EvictionPolicy::NAMED };
        /// Maximum share of the KV cache that requests may pin, in percent.
        max_pinned_share: u32 = 25, Form::Number { unit: "PERCENT", min: 0, max: 100 };
        /// Object store through which servers share the KV cache: s3://bucket/prefix, gs://bucket, az://container or
        /// file:///folder. Credentials are read from the environment. Requires `--kv-disk-path` and a single shard
        /// [default: none].
        kv_object_store: Option<String> = None, Form::ObjectStore;
        /// ZeroMQ endpoint on which KV cache events are published for cache-aware routers; `tcp://*:5557` listens,
        /// `tcp://HOST:5557` connects. The events contain the tokens of all prompts [default: none].
        kv_events_endpoint: Option<String> = None, Form::Endpoint;
        /// ZeroMQ endpoint on which readers that missed events ask for the last 64 MiB of them again, such as
        /// `tcp://*:5558`. Requires `--kv-events-endpoint` [default: none].
        kv_events_replay_endpoint: Option<String> = None, Form::Endpoint;
    }

    /// The adapters that the router knows from the start.
    "Adapters" => Adapters {
        /// LoRA adapter that requests may name as their model: a folder with PEFT's files, a GGUF file, or a Hub id;
        /// repeated, or separated by commas, for several. Without NAME=, the path or id is also the name [default:
        /// none].
        lora: Vec<String> = Vec::new(), Form::Adapters { max: MAX_ADAPTERS };
        /// Folder each of whose subfolders and .gguf files is an adapter of that name, also if it is added while the
        /// server runs [default: none].
        lora_folder: Option<PathBuf> = None, Form::Folder;
    }

    /// The shard's room for adapters.
    "Adapters" => AdapterSlots {
        /// Maximum number of adapters that each shard has loaded at once; others are loaded when a request needs them
        /// [default: 32 with `--lora`, `--lora-folder` or `--enable-lora`, else 0, which turns adapters off].
        max_loras: Option<u32> = None, Form::count(0, 1024);
        /// Maximum rank of an adapter. Memory is planned for `--max-loras` adapters of rank 16 in f32, so fewer of a
        /// larger rank are loaded at once.
        max_lora_rank: u32 = 64, Form::count(1, 256);
    }

    /// Other spellings of settings of adapters. The launcher resolves them, and no other process knows them.
    "Adapters" => AdapterAliases {
        /// Takes adapters that `POST /v1/load_lora_adapter` names, also without `--lora`; the same as `--max-loras 32`.
        enable_lora: bool = false, Form::Switch;
    }

    /// The log of every process.
    "Logging" => Logging {
        /// Form of log lines [default: text, or json with `--json-output`].
        log_format: Option<LogFormat> = None, Form::Choice { what: "FORMAT", named: LogFormat::NAMED };
        /// Most detailed level that is logged, to stderr.
        log_level: LogLevel = LogLevel::Info, Form::Choice { what: "LEVEL", named: LogLevel::NAMED };
    }

    /// Other spellings of settings. The launcher resolves them, and no other process knows them.
    "Logging" => Aliases {
        /// The same as `--log-format json`.
        json_output: bool = false, Form::Switch;
    }
}

impl Logging {
    /// The format of log lines, given or not.
    pub fn format(&self) -> LogFormat {
        self.log_format.unwrap_or(LogFormat::Text)
    }
}

/// Places for adapters in a shard if the user asks for adapters and gives no number.
pub const DEFAULT_ADAPTER_SLOTS: u32 = 32;
/// Upper bound of the number of adapters that a server knows by name.
pub const MAX_ADAPTERS: usize = 10_000;
/// Upper bound of `--speculate`.
const MAX_SPECULATE: u64 = 64;
/// Upper bound of `--max-messages`, which bodies are read with before the limit itself is checked.
pub const MAX_MESSAGES: usize = 1 << 16;
/// Upper bound of `--max-message-parts`, which bodies are read with before the limit itself is checked.
pub const MAX_MESSAGE_PARTS: usize = 1 << 16;
