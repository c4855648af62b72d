//! The reasons for which the process ends by itself, and their exit codes.

use crate::server::DriverEnded;

/// Why the process ends.
#[derive(Debug)]
pub enum End {
    /// A user's mistake: the launcher does not start us again.
    User(anyhow::Error),
    /// A defect: the launcher starts us again.
    Bug(anyhow::Error),
}

impl End {
    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::User(_) => 2,
            Self::Bug(_) => 70,
        }
    }

    /// One line for stderr. Our own errors name their sources already, so the chain is not repeated.
    pub fn line(&self) -> String {
        let (Self::User(error) | Self::Bug(error)) = self;
        format!("error: {}", error.to_string().replace('\n', " "))
    }
}

impl From<DriverEnded> for End {
    fn from(ended: DriverEnded) -> Self {
        Self::Bug(ended.into())
    }
}
