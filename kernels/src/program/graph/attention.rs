//! Records the storing of keys and values, and attention over them.

use super::{Op, ProgramBuilder, ValueId, WeightId, check_soft_cap, shape_error};
use crate::attention::Window;
use crate::program::ProgramError;

impl ProgramBuilder {
    /// Stores key and value `[T, G * D]` in the slots of the step's tokens. With latent attention, the value is a part
    /// of the key. The returned id may not be used as an operand.
    pub fn write_kv(
        &mut self,
        layer: usize,
        key: ValueId,
        value: Option<ValueId>,
    ) -> Result<ValueId, ProgramError> {
        self.check_layer("write_kv", layer)?;
        let geometry = self.config.geometry;
        if value.is_some() == geometry.latent_size.is_some() {
            let expected = "one, unless it is a part of the key";
            return Err(shape_error("write_kv", "number of values", usize::from(value.is_some()), expected));
        }
        let expected = geometry.num_kv_heads * geometry.head_size;
        for (what, operand) in
            std::iter::once(("width of key", key)).chain(value.map(|v| ("width of value", v)))
        {
            let width = self.width("write_kv", operand)?;
            if width != expected {
                return Err(shape_error("write_kv", what, width, expected));
            }
        }
        Ok(self.push(Op::WriteKv { layer, key, value }, 0))
    }

    /// Causal attention of `query` `[T, H * D]` over the blocks of its sequence: H values. With a window, it covers
    /// the last `window` positions, including the query's own; after [`ProgramBuilder::see_all`] also as many behind
    /// it. With a soft cap, each score `s` becomes
    /// `soft_cap * tanh(s / soft_cap)`. `sinks` `[H]` are scores that take part in the softmax of their head and have
    /// no value.
    pub fn paged_attention(
        &mut self,
        layer: usize,
        query: ValueId,
        scale: f32,
        window: Option<usize>,
        soft_cap: Option<f32>,
        sinks: Option<WeightId>,
    ) -> Result<ValueId, ProgramError> {
        let causal = match window {
            None => Window::NONE,
            Some(size) => Window::new(size)
                .ok_or_else(|| shape_error("paged_attention", "window", size, "at least 1"))?,
        };
        let window = if self.sees_all { causal.symmetric() } else { causal };
        check_soft_cap("paged_attention", soft_cap)?;
        self.check_layer("paged_attention", layer)?;
        let width = self.width("paged_attention", query)?;
        let geometry = self.config.geometry;
        let unit = geometry.num_kv_heads * geometry.head_size;
        if !width.is_multiple_of(unit) {
            let expected = format!("a multiple of {unit}");
            return Err(shape_error("paged_attention", "width of query", width, expected));
        }
        if let Some(sinks) = sinks {
            self.vector("paged_attention", sinks, width / geometry.head_size)?;
        }
        let is_written =
            self.nodes.iter().any(|node| matches!(node.op, Op::WriteKv { layer: l, .. } if l == layer));
        if !is_written {
            let what = format!("reads K and V of layer {layer} before `write_kv`");
            return Err(ProgramError::Structure { what });
        }
        let width = width / geometry.head_size * geometry.value_size();
        Ok(self.push(Op::Attention { layer, query, scale, soft_cap, window, sinks }, width))
    }
}
