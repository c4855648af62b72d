//! A shard's side of the masks that have numbers.

use bytes::Bytes;
use trunkline_engine::shard::{MASK_NAMES, proto};

/// A shard's table of masks.
#[derive(Debug, Default)]
pub struct KnownMasks {
    masks: Vec<Bytes>,
}

impl KnownMasks {
    /// Puts the bytes of named masks into the late masks and the starts of a request.
    pub fn resolve(&mut self, request: &mut proto::StepRequest) -> Result<(), String> {
        for late in &mut request.late_masks {
            self.read(&mut late.allowed_tokens, late.mask_id, late.sequence_id)?;
        }
        for start in request.plan.iter_mut().flat_map(|plan| &mut plan.starts) {
            let Some(sampling) = &mut start.sampling else { continue };
            self.read(&mut sampling.allowed_tokens, sampling.mask_id, start.sequence_id)?;
        }
        Ok(())
    }

    fn read(&mut self, mask: &mut Bytes, name: u32, sequence_id: u64) -> Result<(), String> {
        if name == 0 {
            return Ok(());
        }
        if !MASK_NAMES.contains(&name) {
            return Err(format!("mask of sequence {sequence_id}: mask {name} is not a name"));
        }
        self.masks.resize(MASK_NAMES.count(), Bytes::new());
        let named = &mut self.masks[(name - MASK_NAMES.start()) as usize];
        if mask.is_empty() {
            mask.clone_from(named);
        } else {
            named.clone_from(mask);
        }
        if mask.is_empty() {
            return Err(format!("mask of sequence {sequence_id}: mask {name} has not been sent"));
        }
        Ok(())
    }
}
