//! The types of settings whose value is one of a few names.

use crate::macros::choices;
use crate::with_tool_formats;

choices! {
    /// The implementation of the model's operations.
    Backend {
        /// Rust kernels on the CPU.
        Cpu = "cpu";
        /// Triton kernels on an NVIDIA GPU.
        Cuda = "cuda";
        /// PyTorch operations in fp32.
        Reference = "reference";
        /// Any architecture that the Python package transformers knows, on the CPU; slower.
        Transformers = "transformers";
    }

    /// The guarantee for the bits of a result on the cuda backend.
    Numerics {
        /// The bits depend only on the request itself.
        Exact = "exact";
        /// The bits may also depend on other requests in the same step.
        Fast = "fast";
    }

    /// The quantisation of an unquantised checkpoint while it is loaded.
    Quantize {
        /// Weights stay as they are.
        None = "none";
        /// 8-bit integers with a scale for each 32 weights.
        Int8 = "int8";
        /// 4-bit integers with a scale and a minimum for each 32 weights.
        Int4 = "int4";
        /// 8-bit floats with a scale for each row on the cuda backend, int8 on others.
        Fp8 = "fp8";
        /// NF4 in blocks of 64 weights on the cuda backend, int4 on others.
        Nf4 = "nf4";
        /// The same as int8.
        Bitsandbytes = "bitsandbytes";
        /// The same as nf4.
        BitsandbytesNf4 = "bitsandbytes-nf4";
        /// FP4 in blocks of 64 weights on the cuda backend, int4 on others.
        BitsandbytesFp4 = "bitsandbytes-fp4";
        /// The same as int8.
        Eetq = "eetq";
        /// The checkpoint must be quantised with AWQ.
        Awq = "awq";
        /// The checkpoint must be quantised with GPTQ.
        Gptq = "gptq";
    }

    /// The output that is the embedding of a text.
    PoolingKind {
        /// What the model's files say.
        Auto = "auto";
        /// The model makes no embeddings.
        None = "none";
        /// The output of the last token.
        Last = "last";
        /// The mean of all outputs.
        Mean = "mean";
    }

    /// The models that requests may add to the server by their names.
    Pull {
        /// Only the models that the server was started with.
        Never = "never";
        /// Hub repositories that were downloaded to this machine and, for admins, files by their absolute paths.
        Local = "local";
        /// The same, and for admins any Hub repository, which is downloaded.
        Hub = "hub";
    }

    /// The condition under which each thread is pinned to a core.
    PinThreads {
        /// Pin them when the threads use every core.
        Auto = "auto";
        /// Pin them in any case.
        On = "on";
        /// Do not pin them.
        Off = "off";
    }

    /// The format of stored keys and values.
    KvCacheDtype {
        /// The default of the backend.
        Auto = "auto";
        /// 8-bit floating point (e4m3) with a scale per token and head; cuda backend only.
        Fp8 = "fp8";
        /// 8-bit integers with a scale per token and head.
        Int8 = "int8";
        /// 4-bit integers with a scale per token and head.
        Int4 = "int4";
        /// IEEE 754 half precision.
        F16 = "f16";
        /// bfloat16, with the range of fp32.
        Bf16 = "bf16";
    }

    /// The tokens that layers with a sliding window keep.
    KvWindows {
        /// Little more than the window, if that saves memory.
        Auto = "auto";
        /// All tokens, like other layers.
        Off = "off";
    }

    /// The order in which cached prefixes are evicted.
    EvictionPolicy {
        /// Least recently used first.
        Lru = "lru";
        /// Least likely to be reused first, judged by past reuse of similar prefixes.
        Worth = "worth";
    }

    /// The format of the model's reasoning.
    ReasoningParser {
        /// The format that the chat template shows.
        Auto = "auto";
        /// Between `<think>` and `</think>`.
        Think = "think" | "deepseek_r1" | "qwen3";
        /// Reasoning is part of the text.
        Off = "off";
    }

    /// The form of log lines.
    LogFormat {
        /// For people to read: `2026-01-31T12:00:00.000Z  INFO router: message key=value`
        Text = "text";
        /// JSON objects with the same fields.
        Json = "json";
        /// JSON objects with the names of the Elastic Common Schema.
        Ecs = "ecs";
    }

    /// The most detailed level that is logged.
    LogLevel {
        /// Failures that end something.
        Error = "error";
        /// Problems that need attention.
        Warn = "warn";
        /// Starts, stops and restarts.
        Info = "info";
        /// Details that help to find a fault.
        Debug = "debug";
        /// Every detail there is.
        Trace = "trace";
    }
}

macro_rules! tool_call_parser {
    ($($(#[doc = $help:literal])+
       $module:ident $variant:ident $constant:ident = $name:literal $(| $alias:literal)*, of $models:literal;)*) => {
        choices! {
            /// The format of the model's tool calls.
            ToolCallParser {
                /// The format that the chat template shows.
                Auto = "auto";
                $($(#[doc = $help])+ $variant = $name $(| $alias)*;)*
                /// Replies are plain text, whatever they look like.
                Off = "off";
            }
        }
    };
}

with_tool_formats!(tool_call_parser);
