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
            /// Says whether the model reasons before it answers, and how much; by default as its template has it.
            pub think: Option<Think>,
            /// If false, the answer is one JSON object; by default it is a stream of lines.
            pub stream: Option<bool>,
            /// Returns the logprobs of the generated tokens.
            pub logprobs: Option<bool>,
            /// The number of likeliest tokens to return at each position.
            #[schema(minimum = 0, maximum = 20)]
            pub top_logprobs: Option<i64>,
            /// The time for which the model stays in memory after this request, where models are loaded when they are
            /// asked for.
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
