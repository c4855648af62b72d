//! Times the products of one model on this machine: `cargo run --release -p trunkline-kernels --example linear_bench`.
//!
//! The shapes are those of SmolLM2-135M, with one copy per layer. For each shape, number of rows and number of threads
//! it prints the milliseconds of a pass over all layers, the weight bandwidth and the multiply-adds per second. Then it
//! prints the same for all products of the model in order, whose weights exceed most caches. A pass is the sum of each
//! product's best time, so other load has little effect. A product includes quantising its input.
//!
//! The arguments are `[format] [threads,threads..] [rows,rows..]`; the default is `Q4_1 1,2 1,2,4,8,16,32,64,256`.
#![allow(clippy::print_stdout)] // a report is what it is for

use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use trunkline_kernels::aligned::AlignedBytes;
use trunkline_kernels::isa::Isa;
use trunkline_kernels::linear::{FloatRows, LinearInput, LinearOutput, linear};
use trunkline_kernels::linear::{QuantizedRows, QuantizedShape, quantize_rows, round_row};
use trunkline_kernels::pack::{Format, PackedWeight};
use trunkline_kernels::shared_mut::SharedMut;
use trunkline_kernels::threads::{ThreadPool, split};

const NUM_LAYERS: usize = 30;
const MAX_ROWS: usize = 4096;
/// Each case runs for at least this long and at least `MIN_PASSES` times.
const CASE_TIME: Duration = Duration::from_millis(700);
const MIN_PASSES: usize = 3;

struct Shape {
    name: &'static str,
    out_features: usize,
    in_features: usize,
    copies: usize,
    /// The output head multiplies only the sampled rows, at most this many.
    max_rows: usize,
}

const LAYER_SHAPES: [Shape; 4] = [
    Shape { name: "qkv", out_features: 960, in_features: 576, copies: NUM_LAYERS, max_rows: MAX_ROWS },
    Shape {
        name: "attention out",
        out_features: 576,
        in_features: 576,
        copies: NUM_LAYERS,
        max_rows: MAX_ROWS,
    },
    Shape { name: "gate, up", out_features: 3072, in_features: 576, copies: NUM_LAYERS, max_rows: MAX_ROWS },
    Shape { name: "down", out_features: 576, in_features: 1536, copies: NUM_LAYERS, max_rows: MAX_ROWS },
];
const HEAD: Shape = Shape { name: "head", out_features: 49152, in_features: 576, copies: 1, max_rows: 32 };

struct Case {
    shape: Shape,
    weights: Vec<PackedWeight>,
}

impl Case {
    fn new(shape: Shape, format: Format) -> Result<Self> {
        let num_bytes = format.row_bytes(shape.in_features)? * shape.out_features;
        // Any bytes would do, except that NaN or subnormal scales are slow or meaningless.
        let bytes: Vec<u8> = (0..num_bytes).map(|at| (at * 31 % 64) as u8).collect();
        let pack = |_| PackedWeight::pack(format, &bytes, shape.out_features, shape.in_features);
        let weights = (0..shape.copies).map(pack).collect::<Result<_, _>>()?;
        Ok(Self { shape, weights })
    }

    fn products(&self, num_rows: usize) -> Vec<Product<'_>> {
        let num_rows = num_rows.min(self.shape.max_rows);
        self.weights.iter().map(|weight| Product { weight, num_rows }).collect()
    }

    fn report(&self, isa: Isa, pool: &mut ThreadPool, num_rows: usize) {
        let num_rows = num_rows.min(self.shape.max_rows);
        let seconds = time(isa, pool, &self.products(num_rows)).as_secs_f64();
        let num_bytes: usize = self.weights.iter().map(PackedWeight::num_bytes).sum();
        let num_weights = self.shape.out_features * self.shape.in_features * self.shape.copies;
        println!(
            "{:14} {:6} {:4} rows {} threads {:9.3} ms {:7.1} GB/s {:8.1} GMAC/s",
            self.shape.name,
            self.weights[0].format(),
            num_rows,
            pool.num_threads(),
            seconds * 1e3,
            num_bytes as f64 / seconds / 1e9,
            (num_rows * num_weights) as f64 / seconds / 1e9,
        );
    }
}

struct Product<'a> {
    weight: &'a PackedWeight,
    num_rows: usize,
}

impl Product<'_> {
    fn quantized_shape(&self) -> Option<QuantizedShape> {
        let is_needed = self.weight.needs_quantized_input();
        is_needed.then(|| QuantizedShape::new(self.num_rows, self.weight.in_features()))
    }
}

/// Returns the best time of a pass over `products`, including quantisation and barriers.
fn time(isa: Isa, pool: &mut ThreadPool, products: &[Product<'_>]) -> Duration {
    let most = |size: fn(&Product<'_>) -> usize| products.iter().map(size).max().unwrap_or(0);
    let num_inputs = most(|product| product.num_rows * product.weight.in_features());
    let x: Vec<f32> = (0..num_inputs).map(|at| (at * 7 % 23) as f32 - 11.0).collect();
    let mut y = vec![0.0f32; most(|product| product.num_rows * product.weight.out_features())];
    let y = SharedMut::new(&mut y);
    let num_bytes = most(|product| product.quantized_shape().map_or(0, |shape| shape.num_bytes()));
    let mut bytes = AlignedBytes::zeroed(num_bytes);
    let bytes = SharedMut::new(bytes.as_mut_slice());
    let mut rounded = vec![0.0f32; num_inputs];
    let rounded = SharedMut::new(&mut rounded);
    let num_threads = pool.num_threads();
    let best = Mutex::new(vec![Duration::MAX; products.len()]);
    let begin = Instant::now();
    let mut passes = 0;
    while passes < MIN_PASSES || begin.elapsed() < CASE_TIME {
        pool.run(|thread_idx, barrier| {
            barrier.wait();
            let mut start = Instant::now();
            for (index, product) in products.iter().enumerate() {
                let Product { weight, num_rows } = *product;
                let row_stride = weight.in_features();
                let input = match product.quantized_shape() {
                    Some(shape) => {
                        let rows = split(0..num_rows, num_threads, thread_idx);
                        // SAFETY: the rows are disjoint and read after the barrier.
                        unsafe {
                            quantize_rows(isa, shape, &x[rows.start * row_stride..], row_stride, rows, bytes);
                            barrier.wait();
                            LinearInput::Quantized(QuantizedRows::new(shape, bytes.slice(0..bytes.len())))
                        }
                    }
                    None if weight.needs_rounded_input() => {
                        for row in split(0..num_rows, num_threads, thread_idx) {
                            let places = row * row_stride..(row + 1) * row_stride;
                            // SAFETY: the rows are disjoint and read after the barrier.
                            round_row(isa, &x[places.clone()], unsafe { rounded.slice_mut(places) });
                        }
                        barrier.wait();
                        // SAFETY: nothing writes until the next barrier.
                        let values = unsafe { rounded.slice(0..num_rows * row_stride) };
                        LinearInput::Rounded(FloatRows { values, row_stride })
                    }
                    None => LinearInput::Float(FloatRows { values: &x, row_stride }),
                };
                let tiles = split(0..weight.num_tiles(), num_threads, thread_idx);
                let out = LinearOutput { values: y, row_stride: weight.out_features() };
                // SAFETY: threads compute disjoint tiles.
                unsafe { linear(isa, weight, input, 0..num_rows, tiles, out, None) };
                barrier.wait();
                if thread_idx == 0 {
                    let mut best = best.lock().expect("nobody panics with the lock held");
                    best[index] = best[index].min(start.elapsed());
                    start = Instant::now();
                }
            }
        });
        passes += 1;
    }
    best.into_inner().expect("nobody panics with the lock held").into_iter().sum()
}

fn report_model(isa: Isa, pool: &mut ThreadPool, num_rows: usize, layer_cases: &[Case], head: &Case) {
    let columns: Vec<Vec<Product<'_>>> = layer_cases.iter().map(|case| case.products(num_rows)).collect();
    let mut columns: Vec<_> = columns.into_iter().map(Vec::into_iter).collect();
    let mut products: Vec<Product<'_>> = (0..NUM_LAYERS)
        .flat_map(|_| columns.iter_mut().filter_map(Iterator::next).collect::<Vec<_>>())
        .collect();
    let layers = time(isa, pool, &products).as_secs_f64();
    products.extend(head.products(num_rows));
    let whole = time(isa, pool, &products).as_secs_f64();
    println!(
        "model          {num_rows} rows {} threads: {:.0} tokens/s without the head, {:.0} with it",
        pool.num_threads(),
        num_rows as f64 / layers,
        num_rows as f64 / whole,
    );
}

fn numbers(argument: Option<String>, default: &str) -> Result<Vec<usize>> {
    let argument = argument.unwrap_or_else(|| default.to_owned());
    argument.split(',').map(|number| number.parse().with_context(|| format!("number {number:?}"))).collect()
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let format: Format = arguments.next().unwrap_or_else(|| "Q4_1".to_owned()).parse()?;
    let threads = numbers(arguments.next(), "1,2")?;
    let rows = numbers(arguments.next(), "1,2,4,8,16,32,64,256")?;
    let isa = Isa::detect()?;
    println!("instruction set: {isa}");
    let start = Instant::now();
    let cases: Vec<Case> =
        LAYER_SHAPES.into_iter().map(|shape| Case::new(shape, format)).collect::<Result<_>>()?;
    let head = Case::new(HEAD, if format.block_elements() == 1 { format } else { Format::Q8_0 })?;
    println!("packed in {:.2} s", start.elapsed().as_secs_f64());
    for num_threads in threads {
        let mut pool = ThreadPool::new(num_threads)?;
        for &num_rows in &rows {
            for case in cases.iter().chain([&head]) {
                case.report(isa, &mut pool, num_rows);
            }
            report_model(isa, &mut pool, num_rows, &cases, &head);
        }
    }
    Ok(())
}
