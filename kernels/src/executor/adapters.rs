//! The slots of adapters, and which one a sequence uses.

use std::sync::Arc;

use super::{Executor, ExecutorError};
use crate::adapter::{Adapter, AdapterError};

/// The adapter of a sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AdapterUse {
    /// Slots are numbered from 1.
    pub(super) slot: usize,
    /// The factor of what the adapter adds; 1 is as it was trained.
    pub(super) scale: f32,
}

impl Executor {
    /// Creates `num_slots` empty slots. The program must take adapters.
    pub fn set_num_adapter_slots(&mut self, num_slots: usize) {
        self.adapters.resize(num_slots, None);
    }

    /// Puts an adapter into a slot, or empties it. Slots are numbered from 1. Fails if the adapter does not fit the
    /// model, or if a started sequence uses the slot.
    pub fn set_adapter(&mut self, slot: usize, adapter: Option<Arc<Adapter>>) -> Result<(), ExecutorError> {
        self.check_adapter_slot(slot)?;
        if self.sequences.iter().any(|sequence| sequence.adapter.is_some_and(|used| used.slot == slot)) {
            return Err(AdapterError::InUse { slot }.into());
        }
        if let Some(adapter) = &adapter {
            adapter.check(&self.program.adapted, self.program.max_adapter_rank)?;
        }
        self.adapters[slot - 1] = adapter;
        Ok(())
    }

    /// Lets a sequence that has just started use the adapter in a slot.
    pub fn use_adapter(&mut self, sequence_id: u64, slot: usize, scale: f32) -> Result<(), ExecutorError> {
        self.check_adapter_slot(slot)?;
        if self.adapters[slot - 1].is_none() {
            return Err(AdapterError::Empty { slot }.into());
        }
        if !scale.is_finite() {
            return Err(AdapterError::Scale { scale: scale.to_string() }.into());
        }
        self.sequence_mut(sequence_id)?.adapter = Some(AdapterUse { slot, scale });
        Ok(())
    }

    fn check_adapter_slot(&self, slot: usize) -> Result<(), AdapterError> {
        let num_slots = self.adapters.len();
        if (1..=num_slots).contains(&slot) {
            Ok(())
        } else {
            Err(AdapterError::UnknownSlot { slot, num_slots })
        }
    }
}
