//! Causal depthwise convolutions over a few positions. Their state is the inputs of the positions before.

use std::ops::Range;

use crate::vector::{LANES, Lanes, simd_entry};

/// The positions that a convolution may cover, its own included.
pub const WIDTHS: std::ops::RangeInclusive<usize> = 2..=4;

/// A run of consecutive positions of one sequence.
///
/// Row `i` of the input is at `x + i * x_stride`, that of the result at `out + i * out_stride`; both have
/// `num_channels` elements. The state `[width - 1][num_channels]` has the inputs before the run, the oldest first, and
/// afterwards those before the next one.
#[derive(Clone, Copy, Debug)]
pub struct ConvRun<'a> {
    pub x: *const f32,
    pub x_stride: usize,
    pub out: *mut f32,
    pub out_stride: usize,
    pub num_rows: usize,
    /// `[num_channels][width]`, the tap of the oldest position first.
    pub weight: &'a [f32],
    pub bias: Option<&'a [f32]>,
    pub state: *mut f32,
    pub num_channels: usize,
}

#[inline(always)]
unsafe fn short_conv_generic<L: Lanes>(run: ConvRun<'_>, channels: Range<usize>) {
    assert!(channels.end <= run.num_channels);
    assert!(run.bias.is_none_or(|bias| bias.len() == run.num_channels));
    // SAFETY: under this function's own condition.
    unsafe {
        match run.weight.len() / run.num_channels {
            2 => convolve::<L, 2>(run, channels),
            3 => convolve::<L, 3>(run, channels),
            4 => convolve::<L, 4>(run, channels),
            width => unreachable!("a convolution of {width} positions"),
        }
    }
}

#[inline(always)]
unsafe fn convolve<L: Lanes, const WIDTH: usize>(run: ConvRun<'_>, channels: Range<usize>) {
    assert_eq!(run.weight.len(), WIDTH * run.num_channels);
    let mut first = channels.start;
    while first < channels.end {
        let lanes = LANES.min(channels.end - first);
        let mut columns = [[0.0; LANES]; WIDTH];
        for (lane, taps) in run.weight[first * WIDTH..(first + lanes) * WIDTH].chunks_exact(WIDTH).enumerate()
        {
            taps.iter().zip(&mut columns).for_each(|(tap, column)| column[lane] = *tap);
        }
        // SAFETY: the caller states that rows and state have `num_channels` elements, and first + lanes is no more.
        unsafe {
            let taps: [L; WIDTH] = std::array::from_fn(|i| L::load(columns[i].as_ptr()));
            let bias = run.bias.map_or(L::splat(0.0), |bias| L::load_first(bias.as_ptr().add(first), lanes));
            let state = |i: usize| run.state.add(i * run.num_channels + first);
            // The inputs under the taps, the oldest first. The last one is that of the row.
            let mut inputs: [L; WIDTH] = std::array::from_fn(|i| match i {
                _ if i + 1 < WIDTH => L::load_first(state(i), lanes),
                _ => L::splat(0.0),
            });
            for row in 0..run.num_rows {
                inputs[WIDTH - 1] = L::load_first(run.x.add(row * run.x_stride + first), lanes);
                let mut sum = bias;
                for (input, tap) in inputs.iter().zip(&taps) {
                    sum = input.fma(*tap, sum);
                }
                sum.store_first(run.out.add(row * run.out_stride + first), lanes);
                inputs.rotate_left(1);
            }
            // After the rotation the newest input is before the last.
            for (i, input) in inputs[..WIDTH - 1].iter().enumerate() {
                input.store_first(state(i), lanes);
            }
        }
        first += lanes;
    }
}

simd_entry! {
    /// Computes `channels` of a run. The bits do not depend on where a sequence is cut into runs.
    ///
    /// # Safety
    /// The pointers of `run` are valid as [`ConvRun`] says, `x` and `out` do not overlap, and no other thread uses
    /// these channels of the result and of the state.
    pub unsafe fn short_conv = short_conv_generic(run: ConvRun<'_>, channels: Range<usize>);
}
