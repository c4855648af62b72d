//! Adapters in the executor. `server/tests/adapters` compares their results with those of merged weights.

use std::sync::Arc;

use half::bf16;
use trunkline_kernels::adapter::{Adapter, SourceFactors};
use trunkline_kernels::executor::Executor;
use trunkline_kernels::isa::Isa;
use trunkline_kernels::pack::{Format, SourceRows};
use trunkline_kernels::program::WeightId;
use trunkline_kernels::sampling::SampledToken;

use super::model::{PLAIN, QWEN, Recipe, build};
use super::{ascending, chunk, observant, prompt};
use crate::best;
use crate::random::Random;

const MAX_RANK: usize = 40;

/// Returns the bytes of random numbers. A few are 0, and a few are 2^-`fall` times as large as others.
fn matrix(random: &mut Random, format: Format, num_elements: usize, fall: i32) -> Vec<u8> {
    let numbers = (0..num_elements).map(|index| {
        let number = bf16::from_f32(random.normal() * 0.2).to_f32();
        match index % 20 {
            0 => 0.0,
            1 => number * 2f32.powi(-fall),
            _ => number,
        }
    });
    match format {
        Format::F32 => numbers.flat_map(f32::to_le_bytes).collect(),
        Format::F16 => numbers.flat_map(|x| half::f16::from_f32(x).to_le_bytes()).collect(),
        Format::BF16 => numbers.flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect(),
        _ => unreachable!("adapters are floats"),
    }
}

/// Makes an adapter that changes the products of a program, except one weight of each.
fn adapter(executor: &Executor, seed: u64, kind: (Format, usize, bool), fall: i32) -> Arc<Adapter> {
    let (format, rank, is_dora) = kind;
    let mut random = Random::new(seed);
    let mut matrices = Vec::new();
    for product in &executor.program().adapted {
        for weight in product.weights.iter().skip(usize::from(product.weights.len() > 1)) {
            let (inputs, outputs) = (product.num_inputs, weight.width);
            let down = matrix(&mut random, format, rank * inputs, fall);
            let up = matrix(&mut random, format, outputs * rank, fall);
            let gain = is_dora.then(|| (0..outputs).map(|_| 1.0 + 0.2 * random.normal()).collect::<Vec<_>>());
            matrices.push((weight.weight, down, up, inputs, outputs, gain));
        }
    }
    let sources = matrices.iter().map(|(weight, down, up, inputs, outputs, gain)| SourceFactors {
        weight: *weight,
        down: (format, SourceRows::new(format, down, rank, *inputs).unwrap()),
        up: (format, SourceRows::new(format, up, *outputs, rank).unwrap()),
        num_inputs: *inputs,
        scale: 0.5,
        gain: gain.clone(),
    });
    Arc::new(Adapter::pack(&sources.collect::<Vec<_>>()).unwrap())
}

/// Runs sequences that use these slots side by side, and returns the tokens of each.
fn run(executor: &mut Executor, slots: &[usize]) -> Vec<Vec<SampledToken>> {
    let tokens = prompt(9, 70);
    for (id, &slot) in (1..).zip(slots) {
        executor.start(id, tokens.clone(), tokens.len(), observant()).unwrap();
        if slot > 0 {
            executor.use_adapter(id, slot, 1.0).unwrap();
        }
    }
    let mut sampled = vec![Vec::new(); slots.len()];
    for (first, end) in [(0, 3), (3, 70), (70, 71), (71, 72)] {
        let chunks: Vec<_> = (0..slots.len())
            .map(|index| {
                let blocks = &ascending(0)[5 * index..5 * (index + 1)];
                chunk(index as u64 + 1, first, end, if first == 0 { blocks } else { &[] }, end >= 70)
            })
            .collect();
        for result in executor.step(&chunks) {
            sampled[result.sequence_id as usize - 1].push(result.outcome.unwrap());
        }
    }
    (1..=slots.len() as u64).for_each(|id| executor.end(id).unwrap());
    sampled
}

#[test]
fn adapters_have_the_same_bits_on_all_instruction_sets_and_threads_and_beside_others() {
    let kinds = [
        (Format::F32, 5, false),
        (Format::F16, 16, false),
        (Format::BF16, 40, true),
        (Format::BF16, 32, false),
        (Format::BF16, 16, true),
    ];
    for recipe in [PLAIN, QWEN] {
        let recipe = Recipe { max_adapter_rank: MAX_RANK, ..recipe };
        let with_adapters = |threads, isa| {
            let mut executor = build(recipe, threads, isa);
            executor.set_num_adapter_slots(kinds.len());
            for (slot, kind) in (1..).zip(kinds) {
                let adapter = adapter(&executor, slot as u64, kind, 0);
                executor.set_adapter(slot, Some(adapter)).unwrap();
            }
            executor
        };
        let mut executor = with_adapters(2, best());
        let alone: Vec<_> = (0..=kinds.len()).map(|slot| run(&mut executor, &[slot]).remove(0)).collect();
        let plain = run(&mut build(Recipe { max_adapter_rank: 0, ..recipe }, 2, best()), &[0]);
        assert_eq!(alone[0], plain[0]);
        for one in 1..alone.len() {
            assert!(alone[..one].iter().all(|other| other[0].logprob != alone[one][0].logprob));
        }
        let slots = [1, 0, 2, 2, 3, 5, 1];
        let expected: Vec<_> = slots.iter().map(|&slot| alone[slot].clone()).collect();
        for (threads, isa) in (1..).zip(Isa::available()) {
            assert_eq!(run(&mut with_adapters(threads, isa), &slots), expected, "{isa} on {threads} threads");
        }
    }
}

#[test]
fn numbers_of_bfloat16_are_multiplied_as_they_are() {
    let recipe = Recipe { max_adapter_rank: MAX_RANK, ..PLAIN };
    // Half precision has them as normal numbers, as subnormal ones, some of which lose bits, and as none.
    for (fall, tolerance) in [(0, 0.0), (18, 0.0), (26, 1e-6), (60, 1e-6)] {
        let [wide, narrow] = [Format::F32, Format::BF16].map(|format| {
            let mut executor = build(recipe, 2, best());
            executor.set_num_adapter_slots(1);
            let adapter = adapter(&executor, 7, (format, 16, false), fall);
            executor.set_adapter(1, Some(adapter)).unwrap();
            run(&mut executor, &[1])
        });
        for (wide, narrow) in wide[0].iter().zip(&narrow[0]) {
            let difference = (wide.logprob - narrow.logprob).abs();
            assert!(difference <= tolerance, "numbers smaller by 2^-{fall}: {difference}");
        }
    }
}

#[test]
fn an_adapter_that_does_not_fit_is_refused() {
    let mut executor = build(Recipe { max_adapter_rank: 8, ..PLAIN }, 1, best());
    executor.set_num_adapter_slots(1);
    let mut check = |adapter: Adapter, message: &str| {
        let error = executor.set_adapter(1, Some(Arc::new(adapter))).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    };
    let bytes = vec![0; 4 * 64 * 64];
    let rows =
        |rows, columns| SourceRows::new(Format::F32, &bytes[..4 * rows * columns], rows, columns).unwrap();
    let made = |weight, rank: usize, inputs: usize, outputs: usize| {
        let (down, up) = ((Format::F32, rows(rank, inputs)), (Format::F32, rows(outputs, rank)));
        Adapter::pack(&[SourceFactors { weight, down, up, num_inputs: inputs, scale: 1.0, gain: None }])
            .unwrap()
    };
    let program = build(Recipe { max_adapter_rank: 8, ..PLAIN }, 1, best());
    let product = &program.program().adapted[0];
    let weight = product.weights[1];
    check(made(WeightId(0), 4, 64, 32), "weight 0 takes no adapter");
    check(
        made(weight.weight, 9, product.num_inputs, weight.width),
        "expected [R, 64] and [32, R] with R up to 8",
    );
    check(made(weight.weight, 4, 32, weight.width), "expected [R, 64]");
    check(made(weight.weight, 4, product.num_inputs, 16), "expected [R, 64] and [32, R]");
    let (down, up) = ((Format::F32, rows(4, product.num_inputs)), (Format::F32, rows(weight.width, 4)));
    let (num_inputs, gain) = (product.num_inputs, Some(vec![1.0; 3]));
    let gained = SourceFactors { weight: weight.weight, down, up, num_inputs, scale: 1.0, gain };
    check(Adapter::pack(&[gained]).unwrap(), "the adapter has 3 gains for weight");
}
