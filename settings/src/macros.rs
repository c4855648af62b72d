//! The macros that turn a table into types.

/// Declares a group of settings: a struct, its defaults, and the [`Setting`](crate::Setting) of each field.
///
/// ```text
/// settings! {
///     /// What the struct is for.
///     "Heading of --help" => GroupName {
///         /// The help text, and the field's documentation.
///         field: Type = default, form;
///     }
/// }
/// ```
macro_rules! settings {
    ($($(#[doc = $about:literal])* $heading:literal => $group:ident {
        $($(#[doc = $help:literal])+ $(#[serde($($attribute:tt)+)])*
          $field:ident: $type:ty = $default:expr, $form:expr;)*
    })*) => {
        $(
            $(#[doc = $about])*
            #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
            #[serde(default, deny_unknown_fields)]
            pub struct $group {
                $($(#[doc = $help])+ $(#[serde($($attribute)+)])* pub $field: $type,)*
            }

            impl Default for $group {
                fn default() -> Self {
                    Self { $($field: $default,)* }
                }
            }

            impl crate::Group for $group {
                const SETTINGS: &'static [crate::Setting] = &[$(crate::Setting {
                    name: stringify!($field),
                    heading: $heading,
                    help: &[$($help),+],
                    form: $form,
                }),*];

                fn read(
                    mut text_of: impl FnMut(&crate::Setting) -> Option<String>,
                ) -> Result<Self, crate::SettingError> {
                    let mut group = Self::default();
                    let mut settings = Self::SETTINGS.iter();
                    $(if let Some(setting) = settings.next() && let Some(text) = text_of(setting) {
                        group.$field = setting.parse(&text)?;
                    })*
                    Ok(group)
                }

                fn texts(&self) -> Vec<Option<String>> {
                    vec![$(crate::Value::text(&self.$field)),*]
                }
            }
        )*
    };
}

/// Declares a type whose values are a few names: `Variant = "name"`, and `| "alias"` for each alias.
macro_rules! choices {
    ($($(#[doc = $about:literal])* $choice:ident {
        $($(#[doc = $help:literal])+ $variant:ident = $name:literal $(| $alias:literal)*;)*
    })*) => {
        $(
            $(#[doc = $about])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
            pub enum $choice {
                $($(#[doc = $help])+ #[serde(rename = $name)] $variant,)*
            }

            impl crate::Choice for $choice {
                const ALL: &'static [Self] = &[$(Self::$variant),*];
                const NAMED: &'static [crate::Named] =
                    &[$(crate::Named { name: $name, aliases: &[$($alias),*], help: &[$($help),+] }),*];
            }

            impl crate::Value for $choice {
                fn parse(text: &str) -> Option<Self> {
                    use crate::Choice;
                    let mut values = Self::ALL.iter().zip(Self::NAMED);
                    values.find(|(_, named)| named.is(text)).map(|(value, _)| *value)
                }

                fn text(&self) -> Option<String> {
                    Some(crate::Choice::name(*self).to_owned())
                }
            }

            impl std::fmt::Display for $choice {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str(crate::Choice::name(*self))
                }
            }
        )*
    };
}

pub(crate) use {choices, settings};
