//! Flags whose value is one of a few names.

use clap::ValueEnum;

/// A value as it is written on the command line of another process: by the name that the user writes, too.
pub trait AsFlag {
    /// That name.
    fn as_flag(&self) -> String;
}

impl<T: ValueEnum> AsFlag for T {
    fn as_flag(&self) -> String {
        // Only a variant that clap is told to skip has no name; there is none.
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}
