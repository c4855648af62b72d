//! Prepares the inputs of products: quantises or rounds them once for all products that read them.

use super::Lowering;
use crate::aligned::ALIGNMENT_BYTES;
use crate::pack::Format;
use crate::program::graph::ValueId;
use crate::program::instruction::{BufferKind, Kernel, LinearSource, RowSet, View};

impl Lowering<'_> {
    /// Returns `rows` of `x` in the form that products with weights of `format` need.
    pub(super) fn source(&mut self, x: ValueId, rows: RowSet, format: Format) -> LinearSource {
        let view = self.operand(x, rows);
        if !format.needs_quantized_input() && !format.needs_rounded_input() {
            return LinearSource::Float(view);
        }
        let key = (x, rows, format.needs_rounded_input());
        if let Some(source) = self.sources.get(&key) {
            return *source;
        }
        let source = self.prepared(view, rows, format);
        self.sources.insert(key, source);
        source
    }

    /// Quantises or rounds rows for products with weights of `format`, if they need it.
    pub(super) fn prepared(&mut self, x: View, rows: RowSet, format: Format) -> LinearSource {
        if format.needs_quantized_input() {
            let out = self.new_buffer(BufferKind::Quantized { width: x.width }, rows);
            self.emit(Kernel::Quantize { x, out }, rows);
            return LinearSource::Quantized(out);
        }
        if format.needs_rounded_input() {
            return LinearSource::Rounded(self.rounded(x, x.width, rows));
        }
        LinearSource::Float(x)
    }

    /// Rounds rows for products whose inputs are parts of `width` elements.
    pub(super) fn rounded(&mut self, x: View, width: usize, rows: RowSet) -> View {
        let out = self.new_rounded_view(x.width, rows);
        self.emit(Kernel::Round { x, width, out }, rows);
        out
    }

    /// Rows that lie one cache line further apart than their width, so that 16 of them, which AMX loads at once, do not
    /// map to the same cache set.
    pub(super) fn new_rounded_view(&mut self, width: usize, rows: RowSet) -> View {
        let line = ALIGNMENT_BYTES / size_of::<f32>();
        View { width, ..self.new_view(width + line, rows) }
    }
}
