//! The object `options`, and the other fields that all routes with outputs have.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use trunkline_contract::{RequestNumbers, range};
use utoipa::ToSchema;

use crate::openai::{OneOrMany, Seed};
use crate::sampling_body::sampling_body;
use trunkline_base::error::ApiError;
use trunkline_generation::request::number::bounded;
use trunkline_generation::request::raw::{ContextField, FieldNames, RawParams};
use trunkline_http::{IgnoredFields, OtherFields, Refused, parse_noting};

/// Options that are refused, because ignoring them would change the answer.
const REFUSED: &[Refused] = &[
    Refused {
        field: "repeat_last_n",
        neutral: &["-1"],
        hint: "penalties count the whole prompt and output; leave it out",
    },
    Refused { field: "penalize_newline", neutral: &["true"], hint: "leave it out" },
    Refused { field: "mirostat", neutral: &["0"], hint: "use `top_p` or `min_p`" },
    Refused { field: "tfs_z", neutral: &["1", "1.0"], hint: "use `top_p` or `min_p`" },
    Refused { field: "rope_frequency_base", neutral: &[], hint: "leave it out" },
    Refused { field: "rope_frequency_scale", neutral: &[], hint: "leave it out" },
];

/// Options that are accepted, because they do not change the answer.
const HARMLESS: &[&str] = &[
    // The context is never shifted, so nothing is kept of it.
    "num_keep",
    // The speed, and the place of the work.
    "draft_num_predict",
    "f16_kv",
    "low_vram",
    "main_gpu",
    "num_batch",
    "num_gpu",
    "num_thread",
    "numa",
    "use_mlock",
    "use_mmap",
    // Older names that Ollama ignores, too.
    "embedding_only",
    "logits_all",
    "vocab_only",
    // These belong to an option that is refused.
    "mirostat_eta",
    "mirostat_tau",
];

sampling_body! { ollama:
    /// The options of an output.
    #[derive(Debug, Default, Deserialize, ToSchema)]
    #[schema(as = OllamaOptions)]
    pub struct Options {
        /// The most tokens to generate; -1 and -2 generate as many as the context leaves. A requested length that does
        /// not fit is refused.
        #[schema(minimum = -2, default = json!(-1))]
        pub num_predict: Option<i64>,
        /// The most tokens of prompt and output together, at most the server's limit of both, which is the default. A
        /// longer prompt is refused, and never cut.
        #[schema(minimum = 1)]
        pub num_ctx: Option<i64>,
        /// Divides the positive logits, and multiplies the negative logits, of tokens that occur in the prompt or the
        /// output.
        #[schema(minimum = 0.01, maximum = 100)]
        pub repeat_penalty: Option<f64>,
        /// The seed of sampling, an integer of 64 bits. Equal seeds give the same bits; random if absent or -1.
        #[schema(value_type = Option<i64>)]
        pub seed: Option<Seed>,
        /// A string, or a list of strings, that ends the output: at most 64 (`--max-stop-sequences`), each of 1 to 1024
        /// bytes. The output does not include it.
        pub stop: Option<OneOrMany>,
    }
}

/// The seed that means a random one.
const RANDOM_SEED: Seed = Seed(u64::MAX);

/// Returns the parameters of an output. `prompt` is the field that has the prompt.
pub(super) fn raw_params(
    options: Option<Options>,
    prompt: &'static str,
    logprobs: Option<bool>,
    top_logprobs: Option<i64>,
) -> Result<RawParams, ApiError> {
    let options = options.unwrap_or_default();
    let shows_logprobs = logprobs == Some(true);
    if top_logprobs.is_some_and(|top| top != 0) && !shows_logprobs {
        return Err(ApiError::value("top_logprobs", "needs `logprobs`; hint: set `logprobs` to true"));
    }
    if let Some(asked) = options.num_predict.filter(|asked| *asked < 1 && ![-1, -2].contains(asked)) {
        let problem = format!("is {asked}, must be at least 1, or -1 or -2 for as many as fit");
        return Err(ApiError::value("options.num_predict", problem));
    }
    let numbers = options.numbers();
    let repeat_penalty = options.repeat_penalty.map(|penalty| {
        bounded("options.repeat_penalty", penalty, range::REQUEST_REPETITION_PENALTY).map(f64::from)
    });
    Ok(RawParams {
        names: FieldNames {
            max_new_tokens: "options.num_predict",
            stop: "options.stop",
            prompt,
            ..FieldNames::default()
        },
        takes_defaults: true,
        max_new_tokens: options.num_predict.filter(|asked| *asked > 0),
        context: options.num_ctx.map(|num_tokens| ContextField { field: "options.num_ctx", num_tokens }),
        numbers: RequestNumbers { repetition_penalty: repeat_penalty.transpose()?, ..numbers },
        seed: options.seed.filter(|seed| *seed != RANDOM_SEED).map(|seed| seed.0),
        stops: options.stop.unwrap_or_default().0,
        logprobs: shows_logprobs.then(|| top_logprobs.unwrap_or(0)),
        ..RawParams::default()
    })
}

/// Parses a body and notes its unknown fields. Unknown options are refused, because most change the answer.
pub(crate) fn parse<T: DeserializeOwned>(
    body: &[u8],
    refused: &[Refused],
    ignored: &mut IgnoredFields,
) -> Result<T, ApiError> {
    /// The options as JSON text, to check their names.
    #[derive(Deserialize)]
    struct Raw<'a> {
        #[serde(borrow)]
        options: Option<&'a RawValue>,
    }
    // The error of a body that is no object comes from the second parser.
    if let Ok(Raw { options: Some(options) }) = serde_json::from_slice(body) {
        let mut unknown = IgnoredFields::default();
        let others = OtherFields { refused: REFUSED, harmless: HARMLESS };
        parse_noting::<Options>(options.get().as_bytes(), others, "options.", &mut unknown)?;
        if let Some(field) = unknown.names().first() {
            let hint = "leave it out; `docs/api/ollama.md` lists the options of this server";
            return Err(ApiError::UnsupportedField { field: field.clone(), hint });
        }
    }
    parse_noting(body, OtherFields { refused, harmless: &[] }, "", ignored)
}
