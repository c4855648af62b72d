//! The recorder of a model's step, as Python sees it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use trunkline_kernels::kv_pool::{KeyScaling, KvGeometry};
use trunkline_kernels::ops::recurrence::Recurrence;
use trunkline_kernels::ops::route::Rule;
use trunkline_kernels::ops::silu_mul::SwigluClamp;
use trunkline_kernels::pack::{Format, InterleavedHeads, ReadBytes, SourceBytes};
use trunkline_kernels::program::{
    Experts, PooledRows, ProgramBuilder, ProgramConfig, ProgramError, RecurOperands, RowIndex, SpillOptions,
    ValueId, WeightId,
};
use trunkline_kernels::threads::{Pinning, UnknownPinning, default_num_threads};

use crate::PyExecutor;
use crate::buffers::{buffer_of, bytes_of};
use crate::failure::{Failure, pack_failure};
use crate::weight_cache::PyWeightCache;

pub(super) fn parse_format(name: &str, format: &str) -> PyResult<Format> {
    format.parse().map_err(|error| PyValueError::new_err(format!("`{name}` is {format:?}: {error}")))
}

/// Records the operations of a model's step. Each method returns the id of its result.
#[pyclass(name = "ProgramBuilder", module = "trunkline_server._kernels")]
pub(super) struct PyProgramBuilder {
    /// `None` once the program is built.
    builder: Option<ProgramBuilder>,
    /// The buffers that the builder's weights borrow. They are dropped after the builder, while the GIL is held.
    held: Vec<PyUntypedBuffer>,
    /// The names of the weights, for errors.
    names: Vec<String>,
    /// The exception of a weight whose bytes could not be read.
    raised: Arc<Mutex<Option<PyErr>>>,
}

impl PyProgramBuilder {
    fn builder(&mut self) -> PyResult<&mut ProgramBuilder> {
        self.builder.as_mut().ok_or_else(|| PyValueError::new_err("the program is already built"))
    }

    /// Returns a function that calls `data` and copies the buffer that it returns.
    fn reader(&self, data: Py<PyAny>) -> ReadBytes {
        let raised = Arc::clone(&self.raised);
        Box::new(move || {
            Python::attach(|py| {
                let read = || Ok(bytes_of(&buffer_of(&data.bind(py).call0()?)?).to_vec());
                read()
                    .map_err(|error| *raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error))
                    .ok()
            })
        })
    }

    /// Names the weight of an error that has one.
    fn named(&self, error: ProgramError) -> Failure {
        if let Some(error) = self.raised.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return error.into();
        }
        match error {
            ProgramError::Weight { weight, source } if !self.names[weight].is_empty() => {
                pack_failure(&source, format!("weight `{}`: {source}", self.names[weight])).into()
            }
            error => error.into(),
        }
    }
}

#[pymethods]
impl PyProgramBuilder {
    #[new]
    #[pyo3(signature = (*, max_step_tokens, max_step_sequences, block_size, num_blocks, num_layers, num_kv_heads, head_size, kv_dtype, latent_size=None))]
    #[allow(clippy::too_many_arguments, reason = "keyword-only in Python")]
    fn new(
        max_step_tokens: usize,
        max_step_sequences: usize,
        block_size: usize,
        num_blocks: usize,
        num_layers: usize,
        num_kv_heads: usize,
        head_size: usize,
        kv_dtype: &str,
        latent_size: Option<usize>,
    ) -> Result<Self, Failure> {
        let dtype = kv_dtype.parse().map_err(ProgramError::KvPool)?;
        let geometry = KvGeometry { num_layers, num_kv_heads, head_size, block_size, dtype, latent_size };
        let config = ProgramConfig { max_step_tokens, max_step_sequences, num_blocks, geometry };
        Ok(Self {
            builder: Some(ProgramBuilder::new(config)?),
            held: Vec::new(),
            names: Vec::new(),
            raised: Arc::default(),
        })
    }

    /// `data`: a buffer, or a callable without arguments that returns one and is called only if the weight is not in
    /// the cache. `quantize`: Q8_0 or Q4_1, to which a matrix of floats is quantised while it is packed. `name`: for
    /// errors.
    #[pyo3(signature = (format, data, shape, *, name="", interleaved_heads=None, is_mapped=false, quantize=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn weight(
        &mut self,
        format: &str,
        data: &Bound<'_, PyAny>,
        shape: Vec<usize>,
        name: &str,
        interleaved_heads: Option<(usize, usize)>,
        is_mapped: bool,
        quantize: Option<&str>,
    ) -> Result<usize, Failure> {
        let format = parse_format("format", format)?;
        let quantize = quantize.map(|format| parse_format("quantize", format)).transpose()?;
        let buffer = if data.is_callable() { None } else { Some(buffer_of(data)?) };
        let bytes = match &buffer {
            // SAFETY: `held` keeps the buffer longer than the builder lives, and the caller states whether it is
            // mapped. The caller must not write to it.
            Some(buffer) => unsafe { SourceBytes::borrow(bytes_of(buffer), is_mapped) },
            None => SourceBytes::Later(self.reader(data.clone().unbind())),
        };
        let interleaved_heads =
            interleaved_heads.map(|(head_size, rotary_size)| InterleavedHeads { head_size, rotary_size });
        self.names.push(name.to_owned());
        let builder = self.builder()?;
        let weight = builder
            .weight_from(format, bytes, &shape, interleaved_heads)
            .and_then(|weight| quantize.map_or(Ok(()), |to| builder.quantize(weight, to)).map(|()| weight));
        // Held even after an error, because the builder may have the weight already.
        self.held.extend(buffer);
        let weight = weight.map_err(|error| self.named(error))?;
        Ok(weight.0)
    }

    /// Limits the memory of the KV pool. The rest of it is in a file without a name in `folder`.
    fn spill_kv(&mut self, memory_bytes: usize, folder: PathBuf) -> Result<(), Failure> {
        self.builder()?.spill_kv(SpillOptions { memory_bytes, folder });
        Ok(())
    }

    fn keep_windows(&mut self, num_window_parts: usize) -> Result<(), Failure> {
        self.builder()?.keep_windows(num_window_parts);
        Ok(())
    }

    fn take_adapters(&mut self, max_rank: usize) -> Result<(), Failure> {
        self.builder()?.take_adapters(max_rank);
        Ok(())
    }

    fn embedding(&mut self, w: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.embedding(WeightId(w))?.0)
    }

    /// The rows of `w` for the positions of tokens, behind the first `offset` rows.
    fn position_embedding(&mut self, w: usize, offset: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.embedding_by(WeightId(w), RowIndex::Position { offset })?.0)
    }

    /// The rows of `w` for the text that tokens belong to, 0 or 1.
    fn text_embedding(&mut self, w: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.embedding_by(WeightId(w), RowIndex::Text)?.0)
    }

    fn see_all(&mut self) -> Result<(), Failure> {
        self.builder()?.see_all();
        Ok(())
    }

    fn gelu_erf(&mut self, x: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.gelu_erf(ValueId(x))?.0)
    }

    fn tanh(&mut self, x: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.tanh(ValueId(x))?.0)
    }

    fn mul(&mut self, x: usize, y: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.mul(ValueId(x), ValueId(y))?.0)
    }

    fn mean(&mut self, x: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.mean(ValueId(x))?.0)
    }

    fn rms_norm(&mut self, x: usize, w: usize, eps: f32) -> Result<usize, Failure> {
        Ok(self.builder()?.rms_norm(ValueId(x), WeightId(w), eps)?.0)
    }

    fn layer_norm(&mut self, x: usize, w: usize, bias: Option<usize>, eps: f32) -> Result<usize, Failure> {
        Ok(self.builder()?.layer_norm(ValueId(x), WeightId(w), bias.map(WeightId), eps)?.0)
    }

    fn head_rms_norm(&mut self, x: usize, w: usize, eps: f32, head_size: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.head_rms_norm(ValueId(x), WeightId(w), eps, head_size)?.0)
    }

    #[pyo3(signature = (x, w, bias=None))]
    fn linear(&mut self, x: usize, w: usize, bias: Option<usize>) -> Result<usize, Failure> {
        Ok(self.builder()?.linear(ValueId(x), WeightId(w), bias.map(WeightId))?.0)
    }

    fn head_linear(&mut self, x: usize, w: Vec<usize>) -> Result<usize, Failure> {
        Ok(self.builder()?.head_linear(ValueId(x), w.into_iter().map(WeightId).collect())?.0)
    }

    fn join_heads(&mut self, x: usize, y: usize, num_heads: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.join_heads(ValueId(x), ValueId(y), num_heads)?.0)
    }

    fn rope(
        &mut self,
        x: usize,
        inv_freq: Vec<f64>,
        attention_factor: f64,
        head_size: usize,
    ) -> Result<usize, Failure> {
        Ok(self.builder()?.rope(ValueId(x), &inv_freq, attention_factor, head_size)?.0)
    }

    #[pyo3(signature = (layer, k, v=None))]
    fn write_kv(&mut self, layer: usize, k: usize, v: Option<usize>) -> Result<(), Failure> {
        self.builder()?.write_kv(layer, ValueId(k), v.map(ValueId))?;
        Ok(())
    }

    #[pyo3(signature = (layer, q, scale, window=None, soft_cap=None, sinks=None))]
    fn paged_attention(
        &mut self,
        layer: usize,
        q: usize,
        scale: f32,
        window: Option<usize>,
        soft_cap: Option<f32>,
        sinks: Option<usize>,
    ) -> Result<usize, Failure> {
        let (q, sinks) = (ValueId(q), sinks.map(WeightId));
        Ok(self.builder()?.paged_attention(layer, q, scale, window, soft_cap, sinks)?.0)
    }

    fn silu_mul(&mut self, g: usize, u: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.silu_mul(ValueId(g), ValueId(u))?.0)
    }

    fn gelu_mul(&mut self, g: usize, u: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.gelu_mul(ValueId(g), ValueId(u))?.0)
    }

    fn gelu(&mut self, x: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.gelu(ValueId(x))?.0)
    }

    fn relu_squared(&mut self, x: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.relu_squared(ValueId(x))?.0)
    }

    #[allow(clippy::too_many_arguments, reason = "keyword-only in Python")]
    #[pyo3(signature = (
        x, logits, *, gate, up, down, num_used, renormalise, sigmoid=false, choice_bias=None, num_groups=1,
        num_used_groups=1, biases=None, clamp=None
    ))]
    fn experts(
        &mut self,
        x: usize,
        logits: usize,
        gate: Vec<usize>,
        up: Vec<usize>,
        down: Vec<usize>,
        num_used: usize,
        renormalise: bool,
        sigmoid: bool,
        choice_bias: Option<usize>,
        num_groups: usize,
        num_used_groups: usize,
        biases: Option<[Vec<usize>; 3]>,
        clamp: Option<(f32, f32)>,
    ) -> Result<usize, Failure> {
        let ids = |weights: [Vec<usize>; 3]| {
            weights.map(|weights| weights.into_iter().map(WeightId).collect::<Vec<_>>())
        };
        let [gate, up, down] = ids([gate, up, down]);
        let rule = Rule { renormalise, is_sigmoid: sigmoid, num_groups, num_used_groups };
        let choice_bias = choice_bias.map(WeightId);
        let clamp = clamp.map(|(alpha, limit)| SwigluClamp { alpha, limit });
        let experts = Experts { gate, up, down, num_used, rule, choice_bias, biases: biases.map(ids), clamp };
        Ok(self.builder()?.experts(ValueId(x), ValueId(logits), experts)?.0)
    }

    fn columns(&mut self, x: usize, begin: usize, width: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.columns(ValueId(x), begin, width)?.0)
    }

    fn silu(&mut self, x: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.silu(ValueId(x))?.0)
    }

    fn sigmoid(&mut self, x: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.sigmoid(ValueId(x))?.0)
    }

    fn head_l2_norm(&mut self, x: usize, eps: f32, head_size: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.head_l2_norm(ValueId(x), eps, head_size)?.0)
    }

    fn softplus(&mut self, x: usize, bias: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.softplus(ValueId(x), WeightId(bias))?.0)
    }

    fn decay(&mut self, x: usize, log_rate: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.decay(ValueId(x), WeightId(log_rate))?.0)
    }

    #[pyo3(signature = (x, w, bias=None))]
    fn short_conv(&mut self, x: usize, w: usize, bias: Option<usize>) -> Result<usize, Failure> {
        Ok(self.builder()?.short_conv(ValueId(x), WeightId(w), bias.map(WeightId))?.0)
    }

    /// `rule`: `scan` or `delta`.
    #[pyo3(signature = (rule, value, key, query, decay, strength, *, num_heads, key_size, skip=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn recur(
        &mut self,
        rule: &str,
        value: usize,
        key: usize,
        query: usize,
        decay: usize,
        strength: usize,
        num_heads: usize,
        key_size: usize,
        skip: Option<usize>,
    ) -> Result<usize, Failure> {
        let rule = match rule {
            "scan" => Recurrence::Scan,
            "delta" => Recurrence::Delta,
            _ => return Err(PyValueError::new_err(format!("`rule` is {rule:?}")).into()),
        };
        let [value, key, query, decay, strength] = [value, key, query, decay, strength].map(ValueId);
        let operands = RecurOperands { value, key, query, decay, strength, skip: skip.map(WeightId) };
        Ok(self.builder()?.recur(rule, operands, num_heads, key_size)?.0)
    }

    fn sigmoid_scale(&mut self, x: usize, gate: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.sigmoid_scale(ValueId(x), ValueId(gate))?.0)
    }

    fn scale(&mut self, x: usize, factor: f32) -> Result<usize, Failure> {
        Ok(self.builder()?.scale(ValueId(x), factor)?.0)
    }

    fn add(&mut self, x: usize, y: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.add(ValueId(x), ValueId(y))?.0)
    }

    /// `rows`: `first`, `last` or `all`.
    fn pooled(&mut self, x: usize, rows: &str) -> Result<usize, Failure> {
        let rows = match rows {
            "first" => PooledRows::First,
            "last" => PooledRows::Last,
            "all" => PooledRows::All,
            _ => return Err(PyValueError::new_err(format!("`rows` is {rows:?}")).into()),
        };
        Ok(self.builder()?.pooled(ValueId(x), rows)?.0)
    }

    #[pyo3(signature = (x, w, soft_cap=None))]
    fn logits(&mut self, x: usize, w: usize, soft_cap: Option<f32>) -> Result<usize, Failure> {
        Ok(self.builder()?.logits(ValueId(x), WeightId(w), soft_cap)?.0)
    }

    /// Packs the weights or maps them from the cache, maps the memory and starts the threads. The builder cannot be
    /// used again, even after an error.
    ///
    /// `threads` is [`default_num_threads`] if None. `pinning` is `auto`, `on` or `off`. `key_scaling` is the attribute
    /// of an executor with the same weights; it is used only with a cache. `progress` is called every `interval_s`
    /// seconds while weights are packed, with the share that is done.
    #[pyo3(signature = (threads=None, pinning="off", *, cache=None, key_scaling=None, progress=None, interval_s=5.0))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn build(
        &mut self,
        py: Python<'_>,
        threads: Option<usize>,
        pinning: &str,
        cache: Option<&PyWeightCache>,
        key_scaling: Option<&[u8]>,
        progress: Option<Py<PyAny>>,
        interval_s: f64,
    ) -> Result<PyExecutor, Failure> {
        let geometry = self.builder()?.geometry();
        // A key scaling that does not match the geometry is measured again.
        let key_scaling = key_scaling.and_then(|bytes| {
            let values = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            KeyScaling::from_values(&geometry, values)
        });
        let pinning: Pinning =
            pinning.parse().map_err(|error: UnknownPinning| PyValueError::new_err(error.to_string()))?;
        let threads = threads.unwrap_or_else(default_num_threads);
        let interval = Duration::try_from_secs_f64(interval_s)
            .map_err(|error| PyValueError::new_err(format!("`interval_s` is {interval_s}: {error}")))?;
        let mut builder =
            self.builder.take().ok_or_else(|| PyValueError::new_err("the program is already built"))?;
        if let Some(progress) = progress {
            builder.on_progress(interval, move |done| {
                Python::attach(|py| {
                    if let Err(error) = progress.call1(py, (done,)) {
                        error.write_unraisable(py, Some(progress.bind(py)));
                    }
                });
            });
        }
        let cache = cache.map(|cache| cache.cache.clone());
        let built = py.detach(|| match cache {
            Some(cache) => builder
                .build_cached(threads, pinning, cache, key_scaling)
                .map(|(executor, state)| (executor, Some(state))),
            None => Ok((builder.build(threads, pinning)?, None)),
        });
        self.held.clear();
        let (executor, cache) = built.map_err(|error| self.named(error))?;
        Ok(PyExecutor { executor, results: Vec::new(), cache })
    }
}
