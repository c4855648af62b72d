//! The fields that the bodies of `/api/chat` and `/api/generate` have in common.

/// Defines the body of a request for an output: the route's own fields, followed by the common fields.
macro_rules! body {
    ($(#[$about:meta])* pub struct $name:ident { $($own:tt)* }) => {
        $(#[$about])*
        pub struct $name {
            $($own)*
            /// The name of the served model or of an adapter, with or without `:latest`; may be omitted.
            pub model: Option<String>,
            /// The options of the output.
            pub options: Option<Options>,
            /// Says whether the model reasons before it answers, and how much: true, false, `low`, `medium`, `high` or
            /// `max`; by default as its chat template has it. True and false set the template's `enable_thinking`, an
            /// effort also `reasoning_effort`. With false, reasoning is left out of the answer. A model that does not
            /// reason refuses the others.
            pub think: Option<Think>,
            /// If false, the answer is one JSON object; otherwise it is a stream of lines.
            #[schema(default = true)]
            pub stream: Option<bool>,
            /// Returns the logprobs of the generated tokens.
            #[schema(default = false)]
            pub logprobs: Option<bool>,
            /// The number of likeliest tokens to return at each position.
            #[schema(minimum = 0, maximum = 20, default = 0)]
            pub top_logprobs: Option<i64>,
            /// The time for which the model stays in memory after this request, in seconds or as a duration such as
            /// `"5m"` or `"1h30m"`; negative for ever. It counts on a server of several models or with `--idle-unload`,
            /// which is the default, not five minutes. On others it is checked, and the model stays.
            pub keep_alive: Option<KeepAlive>,
        }

        impl $name {
            /// Returns the field that names the model or its adapter.
            fn names(&self) -> Named<'_> {
                Named::model(self.model.as_deref().map(untagged))
            }

            /// Takes the generation parameters out of the body, except for those of the grammar. `prompt` is the field
            /// that has the prompt.
            fn params(&mut self, prompt: &'static str) -> Result<RawParams, ApiError> {
                raw_params(self.options.take(), prompt, self.logprobs, self.top_logprobs)
            }

            fn is_stream(&self) -> bool {
                self.stream != Some(false)
            }
        }
    };
}

pub(super) use body;
