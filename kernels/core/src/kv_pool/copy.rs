//! Copies the first positions of a block to another.

use super::{KvDtype, KvGeometry, KvPool, KvPoolError, QUAD, VALUE_GROUP};
use crate::vector::LANES;

impl KvPool {
    /// Copies K and V of the first `num_tokens` positions of `source` to `destination`, in all layers that the source
    /// has.
    pub fn copy_block(
        &mut self,
        source: u32,
        destination: u32,
        num_tokens: usize,
    ) -> Result<(), KvPoolError> {
        self.check_copy(source, destination, num_tokens)?;
        let g = self.geometry;
        let Some(parts) = &mut self.windows else {
            for layer in 0..g.num_layers {
                self.copy_layer(layer, source, destination, num_tokens)?;
            }
            return Ok(());
        };
        let offsets = |bytes_each: usize, from: usize, to: usize| (from * bytes_each, to * bytes_each);
        if let Some(part) = parts.part(source) {
            let offsets = offsets(parts.part_bytes, part, parts.take(destination)?);
            copy_positions(&mut parts.map, &g, parts.part_bytes, offsets, num_tokens);
        }
        let base_bytes = parts.base_bytes;
        let offsets = offsets(base_bytes, source as usize, destination as usize);
        copy_positions(&mut self.map, &g, base_bytes, offsets, num_tokens);
        Ok(())
    }

    /// Like [`KvPool::copy_block`], in one layer of a pool without window parts.
    pub fn copy_layer(
        &mut self,
        layer: usize,
        source: u32,
        destination: u32,
        num_tokens: usize,
    ) -> Result<(), KvPoolError> {
        self.check_copy(source, destination, num_tokens)?;
        let [from, to] = [source, destination].map(|id| self.strides.offset(layer, id));
        copy_positions(&mut self.map, &self.geometry, self.geometry.layer_bytes(), (from, to), num_tokens);
        Ok(())
    }

    pub fn check_copy(&self, source: u32, destination: u32, num_tokens: usize) -> Result<(), KvPoolError> {
        self.check_block(source)?;
        self.check_block(destination)?;
        let block_size = self.geometry.block_size;
        // A state is that behind a whole block.
        let least = match &self.windows {
            Some(parts) if parts.state_bytes > 0 => block_size,
            _ => 1,
        };
        if source == destination || num_tokens < least || num_tokens > block_size {
            return Err(KvPoolError::BadCopy {
                source_id: source,
                destination_id: destination,
                num_tokens,
                block_size,
            });
        }
        Ok(())
    }
}

/// Copies the first `num_tokens` positions of all heads of one piece of `piece_bytes` at the offset `from` to another.
fn copy_positions(
    map: &mut [u8],
    g: &KvGeometry,
    piece_bytes: usize,
    (from, to): (usize, usize),
    num_tokens: usize,
) {
    if num_tokens == g.block_size {
        return map.copy_within(from..from + piece_bytes, to);
    }
    for head in (0..piece_bytes).step_by(g.head_bytes()) {
        let mut copy = |start: usize, num_bytes: usize| {
            map.copy_within(from + head + start..from + head + start + num_bytes, to + head + start);
        };
        match g.dtype {
            KvDtype::Int8 | KvDtype::Int4 => copy_quads(g, num_tokens, &mut copy),
            KvDtype::F16 | KvDtype::Bf16 => copy_half(g, num_tokens, &mut copy),
        }
    }
}

/// Calls `copy` with the byte ranges (start, length) of the first `num_tokens` positions of a head of 16-bit floats.
fn copy_half(g: &KvGeometry, num_tokens: usize, copy: &mut impl FnMut(usize, usize)) {
    const ELEMENT_BYTES: usize = size_of::<u16>();
    if g.latent_size.is_some() {
        return copy(0, num_tokens * g.padded_head_size() * ELEMENT_BYTES);
    }
    for d in 0..g.head_size {
        copy(d * g.block_size * ELEMENT_BYTES, num_tokens * ELEMENT_BYTES);
    }
    copy(g.key_bytes(), num_tokens * g.padded_head_size() * ELEMENT_BYTES);
}

/// Like [`copy_half`], for int8 and int4 heads with their scales. Whole vectors of keys and whole quads of values are
/// one range each.
fn copy_quads(g: &KvGeometry, num_tokens: usize, copy: &mut impl FnMut(usize, usize)) {
    let vector_bytes = g.stored_key_quads() * LANES * QUAD;
    let (vectors, lanes) = (num_tokens / LANES, num_tokens % LANES);
    copy(0, vectors * vector_bytes);
    for quad in 0..g.stored_key_quads() {
        copy(vectors * vector_bytes + quad * LANES * QUAD, lanes * QUAD);
    }
    let quad_bytes = g.stored_value_bytes() * QUAD;
    for quad in 0..g.block_size.div_ceil(VALUE_GROUP) * LANES {
        let first = quad / LANES * VALUE_GROUP + quad % LANES;
        let start = g.key_bytes() + quad * quad_bytes;
        // The number of the quad's positions that are copied, which are the first bytes of each element.
        match num_tokens.saturating_sub(first).div_ceil(LANES) {
            0 => {}
            QUAD.. => copy(start, quad_bytes),
            some => (0..g.stored_value_bytes()).for_each(|d| copy(start + d * QUAD, some)),
        }
    }
    for scales in [0, g.scale_bytes()] {
        copy(g.key_bytes() + g.value_bytes() + scales, num_tokens * g.bytes_per_scale());
    }
    copy(g.first_key_offset(), g.first_key_bytes());
}
