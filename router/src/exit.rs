//! The reasons for which the process ends on its own, and their exit codes.

use crate::server::DriverEnded;

#[derive(Debug)]
pub enum End {
    /// A user's mistake. The launcher does not restart the router.
    User(anyhow::Error),
    /// A defect. The launcher restarts the router.
    Bug(anyhow::Error),
}

impl End {
    pub fn code(&self) -> u8 {
        match self {
            Self::User(_) => 2,
            Self::Bug(_) => 70,
        }
    }

    /// Returns the line for stderr. Sources are not appended, because our errors' texts already include them.
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
