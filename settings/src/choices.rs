//! Settings whose value is one of a few names.

use crate::macros::choices;

choices! {
    /// The implementation of the model's operations.
    Backend {
        /// Rust kernels.
        Cpu = "cpu";
        /// Triton kernels on an NVIDIA GPU.
        Cuda = "cuda";
        /// PyTorch in fp32.
        Reference = "reference";
    }

    /// What may influence the bits of a result on the cuda backend.
    Numerics {
        /// Only the request itself.
        Exact = "exact";
        /// Also the other requests computed at the same time, since PyTorch's matrix products depend on their number.
        Fast = "fast";
    }

    /// Whether each thread is pinned to a core.
    PinThreads {
        /// When the threads use every core.
        Auto = "auto";
        /// Always.
        On = "on";
        /// Never.
        Off = "off";
    }

    /// How keys and values are stored.
    KvCacheDtype {
        /// The backend's recommendation.
        Auto = "auto";
        /// 8-bit floating point (e4m3) with a scale per token and head; cuda backend only.
        Fp8 = "fp8";
        /// 8-bit integers with a scale per token and head.
        Int8 = "int8";
        /// 4-bit integers with a scale per token and head.
        Int4 = "int4";
        /// IEEE half precision.
        F16 = "f16";
        /// bfloat16.
        Bf16 = "bf16";
    }

    /// What layers with a sliding window keep.
    KvWindows {
        /// Little more than the window, when that saves memory.
        Auto = "auto";
        /// Every token.
        Off = "off";
    }

    /// Which cached prefixes are evicted first.
    EvictionPolicy {
        /// The least recently used.
        Lru = "lru";
        /// The least likely to be reused, judged by past reuse of similar prefixes.
        Worth = "worth";
        /// Chosen by `lru` or `worth`, whichever has had more hits recently.
        Adaptive = "adaptive";
    }

    /// How the model writes tool calls.
    ToolCallParser {
        /// As the chat template shows.
        Auto = "auto";
        /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`
        Hermes = "hermes";
        /// `{"name": ..., "parameters": {...}}`
        Llama3 = "llama3" | "llama3_json";
        /// `[TOOL_CALLS]` and a list, or a name and `[ARGS]`.
        Mistral = "mistral";
        /// `[name(key=value, ...), ...]`
        Pythonic = "pythonic";
        /// A JSON object or a list of them.
        Json = "json";
        /// Replies are plain text, whatever they look like.
        Off = "off";
    }

    /// How the model marks its reasoning.
    ReasoningParser {
        /// As the chat template shows.
        Auto = "auto";
        /// Between `<think>` and `</think>`.
        Think = "think" | "deepseek_r1" | "qwen3";
        /// Reasoning is part of the text.
        Off = "off";
    }

    /// How much is logged.
    LogLevel {
        /// Failures that end something.
        Error = "error";
        /// Problems that need attention.
        Warn = "warn";
        /// Starts, stops and restarts.
        Info = "info";
        /// Details that help to find a fault.
        Debug = "debug";
        /// Everything.
        Trace = "trace";
    }
}
