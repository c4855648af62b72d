//! Adds the sampling parameters of a dialect to the body of its requests.

/// Declares the body of a request: its own fields, and a field for each number that the table of sampling parameters
/// has for the dialect, with the method `numbers` that returns them.
///
/// This is not a flattened struct, because serde would parse its fields twice and its errors would not name the field.
macro_rules! sampling_body {
    // Makes one token of each help text.
    (@rows $dialect:ident $body:tt
        $($(#[doc = $help:literal])+ $name:ident: $kind:ident = $neutral:literal in $range:expr,
        sent as $sent:ident = $default:literal in $request:expr, $(model $model:ident,)? by $by:tt;)*) => {
        crate::sampling_body::sampling_body! { @$dialect $body $($name $sent [$($help)+] $by)* }
    };
    // Selects the rows of the dialect.
    (@openai $body:tt $($name:ident $sent:ident $help:tt
        [$(openai $note:tt)? $(responses $r:tt)? $(anthropic $a:tt)? $(tgi $t:tt)? $(ollama $l:tt)?])*) => {
        crate::sampling_body::sampling_body! { @body $body $($($name $sent $help $note)?)* }
    };
    (@responses $body:tt $($name:ident $sent:ident $help:tt
        [$(openai $o:tt)? $(responses $note:tt)? $(anthropic $a:tt)? $(tgi $t:tt)? $(ollama $l:tt)?])*) => {
        crate::sampling_body::sampling_body! { @body $body $($($name $sent $help $note)?)* }
    };
    (@anthropic $body:tt $($name:ident $sent:ident $help:tt
        [$(openai $o:tt)? $(responses $r:tt)? $(anthropic $note:tt)? $(tgi $t:tt)? $(ollama $l:tt)?])*) => {
        crate::sampling_body::sampling_body! { @body $body $($($name $sent $help $note)?)* }
    };
    (@tgi $body:tt $($name:ident $sent:ident $help:tt
        [$(openai $o:tt)? $(responses $r:tt)? $(anthropic $a:tt)? $(tgi $note:tt)? $(ollama $l:tt)?])*) => {
        crate::sampling_body::sampling_body! { @body $body $($($name $sent $help $note)?)* }
    };
    (@ollama $body:tt $($name:ident $sent:ident $help:tt
        [$(openai $o:tt)? $(responses $r:tt)? $(anthropic $a:tt)? $(tgi $t:tt)? $(ollama $note:tt)?])*) => {
        crate::sampling_body::sampling_body! { @body $body $($($name $sent $help $note)?)* }
    };
    (@body { $(#[$about:meta])* pub struct $body:ident { $($own:tt)* } }
        $($name:ident $sent:ident [$($help:literal)+] [$($note:literal)?])*) => {
        $(#[$about])*
        pub struct $body {
            $($own)*
            $($(#[doc = $help])+ $(#[doc = $note])? pub $name: Option<$sent>,)*
        }

        impl $body {
            /// Returns the numbers of the sampling parameters.
            // A dialect may have all of them.
            #[allow(clippy::needless_update)]
            pub fn numbers(&self) -> trunkline_contract::RequestNumbers {
                trunkline_contract::RequestNumbers { $($name: self.$name,)* ..Default::default() }
            }
        }
    };
    ($dialect:ident: $($body:tt)*) => {
        trunkline_contract::with_sampling_params! {
            [crate::sampling_body::sampling_body] @rows $dialect { $($body)* }
        }
    };
}

pub(crate) use sampling_body;
