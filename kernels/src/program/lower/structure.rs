//! Checks that a graph has the structure of a model, and derives the properties of its layers.

use crate::attention::Window;
use crate::kv_pool::KeyMean;
use crate::program::graph::{Node, Op};
use crate::program::rows::RowIndex;
use crate::program::{ProgramBuilder, ProgramError};

impl ProgramBuilder {
    /// The largest window with which each layer is read; [`Window::NONE`] for a layer that is never read.
    pub(super) fn layer_windows(&self) -> Vec<Window> {
        let mut windows: Vec<Option<Window>> = vec![None; self.config.geometry.num_layers];
        for node in &self.nodes {
            if let Op::Attention { layer, window, .. } = node.op {
                windows[layer] = windows[layer].max(Some(window));
            }
        }
        windows.into_iter().map(|window| window.unwrap_or(Window::NONE)).collect()
    }

    /// Determines for each layer how the mean of its keys depends on the position: it rotates if rope produced the
    /// keys.
    pub(super) fn layer_means(&self) -> Vec<KeyMean> {
        let geometry = self.config.geometry;
        let mut means = vec![KeyMean::Fixed; geometry.num_layers];
        for node in &self.nodes {
            if let Op::WriteKv { layer, key, .. } = node.op
                && let Op::Rope { frequencies, head_size, .. } = self.nodes[key.0].op
                && head_size == geometry.head_size
            {
                means[layer] = KeyMean::Turns(frequencies);
            }
        }
        for node in &self.nodes {
            // A fixed mean changes all scores of a row alike, which neither a soft cap nor a sink allows.
            if let Op::Attention { layer, soft_cap, sinks, .. } = node.op
                && (soft_cap.is_some() || (sinks.is_some() && means[layer] == KeyMean::Fixed))
            {
                means[layer] = KeyMean::Zero;
            }
        }
        means
    }

    /// Checks that `logits` or `pooled` is last, every layer is written once, and all layers have the same number of
    /// heads. Returns the number of rows of the smallest embedding, and H / G.
    pub(super) fn check_structure(&self) -> Result<(usize, usize), ProgramError> {
        let fail = |what: String| Err(ProgramError::Structure { what });
        if self.state_size > 0 && self.num_window_parts.is_none() {
            return fail("has states, but no parts of blocks for them".to_owned());
        }
        let geometry = self.config.geometry;
        let mut writes = vec![0; geometry.num_layers];
        let mut query_width = None;
        let mut num_embeddings = usize::MAX;
        for (index, node) in self.nodes.iter().enumerate() {
            match node.op {
                Op::WriteKv { layer, .. } => writes[layer] += 1,
                Op::Attention { query, .. } => {
                    let width = self.nodes[query.0].width;
                    if query_width.is_some_and(|other| other != width) {
                        return fail("has attention layers with different numbers of heads".to_owned());
                    }
                    query_width = Some(width);
                }
                Op::Logits { .. } if index + 1 < self.nodes.len() => {
                    return fail("continues after `logits`".to_owned());
                }
                Op::Pooled { .. }
                    if !matches!(self.nodes[index + 1..], [] | [Node { op: Op::Logits { .. }, .. }]) =>
                {
                    return fail("continues after `pooled`".to_owned());
                }
                Op::Embedding { weight, index: RowIndex::Token } => {
                    num_embeddings = num_embeddings.min(self.weights[weight.0].shape[0])
                }
                _ => {}
            }
        }
        if !matches!(self.nodes.last(), Some(Node { op: Op::Logits { .. } | Op::Pooled { .. }, .. })) {
            return fail("does not end with `logits` or `pooled`".to_owned());
        }
        if let Some(layer) = writes.iter().position(|count| *count != 1) {
            return fail(format!("writes K and V of layer {layer} {} times, expected once", writes[layer]));
        }
        let unit = geometry.num_kv_heads * geometry.head_size;
        Ok((num_embeddings, query_width.unwrap_or(unit) / unit))
    }
}
