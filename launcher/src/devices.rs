//! The GPUs of shards with the cuda backend.

use std::env;

use crate::error::LauncherError;

/// The variable that selects a process's GPUs, by number or name and separated by commas.
const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// Returns the variable that gives one of several shards a GPU of its own: that at the shard's place in the launcher's
/// variable, or else the one with the number of its lane.
pub(crate) fn variable(lane: u32) -> Option<(&'static str, String)> {
    let device = match visible() {
        Some(devices) => devices.get(lane as usize)?.clone(),
        None => lane.to_string(),
    };
    Some((VARIABLE, device))
}

/// Fails if the launcher's variable has too few GPUs for this number of shards. Without the variable, the launcher does
/// not know how many there are, and a shard that finds none says so.
pub(crate) fn check(replicas: u32) -> Result<(), LauncherError> {
    let Some(devices) = visible() else { return Ok(()) };
    if replicas == 1 || replicas as usize <= devices.len() {
        return Ok(());
    }
    Err(LauncherError::usage(format!(
        "`--replicas` is {replicas}, but the number of GPUs in `{VARIABLE}` is {}; hint: each replica needs a GPU of \
         its own",
        devices.len()
    )))
}

/// Returns the GPUs that the launcher's variable names, if it is set. CUDA ignores what follows a number below 0.
fn visible() -> Option<Vec<String>> {
    let text = env::var(VARIABLE).ok()?;
    let devices = text.split(',').map(str::trim);
    let devices = devices.take_while(|device| !device.is_empty() && !device.starts_with('-'));
    Some(devices.map(str::to_owned).collect())
}
