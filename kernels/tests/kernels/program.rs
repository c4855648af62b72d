mod memory;

use trunkline_kernels::kv_pool::{KvDtype, KvGeometry};
use trunkline_kernels::ops::route::Rule;
use trunkline_kernels::pack::Format;
use trunkline_kernels::program::{
    Experts, Instruction, Kernel, Program, ProgramBuilder, ProgramConfig, ProgramError, RowSet, ValueId,
    WeightId,
};

use crate::GEOMETRY;

fn builder() -> ProgramBuilder {
    builder_of(1)
}

fn builder_of(num_layers: usize) -> ProgramBuilder {
    let geometry = KvGeometry { num_layers, dtype: KvDtype::Int8, ..GEOMETRY };
    let config = ProgramConfig { max_step_tokens: 64, max_step_sequences: 4, num_blocks: 4, geometry };
    ProgramBuilder::new(config).unwrap()
}

fn weight(builder: &mut ProgramBuilder, format: Format, shape: &[usize]) -> WeightId {
    let elements: usize = shape.iter().product();
    let num_bytes = elements / format.block_elements() * format.block_bytes();
    builder.weight(format, vec![0; num_bytes], shape).unwrap()
}

/// Returns a program of two layers with these formats of q, k and v.
fn layers(formats: [Format; 3]) -> Program {
    let mut b = builder_of(2);
    let embedding = weight(&mut b, Format::Q8_0, &[10, 64]);
    let mut x = b.embedding(embedding).unwrap();
    for layer in 0..2 {
        let norm = weight(&mut b, Format::F32, &[64]);
        let h = b.rms_norm(x, norm, 1e-5).unwrap();
        let [q, k, v] = [(formats[0], 64), (formats[1], 32), (formats[2], 32)].map(|(format, rows)| {
            let weight = weight(&mut b, format, &[rows, 64]);
            b.linear(h, weight, None).unwrap()
        });
        let q = b.rope(q, &[1.0; 16], 1.0, 32).unwrap();
        let k = b.rope(k, &[1.0; 16], 1.0, 32).unwrap();
        b.write_kv(layer, k, Some(v)).unwrap();
        let a = b.paged_attention(layer, q, 1.0, None, None, None).unwrap();
        let out = weight(&mut b, Format::Q8_0, &[64, 64]);
        let a = b.linear(a, out, None).unwrap();
        x = b.add(x, a).unwrap();
    }
    b.logits(x, embedding, None).unwrap();
    b.lower().unwrap()
}

fn count(program: &Program, is_wanted: impl Fn(&Kernel) -> bool) -> usize {
    program.instructions.iter().filter(|instruction| is_wanted(&instruction.kernel)).count()
}

#[test]
fn products_of_one_input_and_format_are_joined_and_share_one_quantisation() {
    // Products: joined q, k, v and output; in the last layer q separately, because it needs other rows than k and v;
    // and the head. Each product quantises its own input.
    let joined = layers([Format::Q4_0; 3]);
    assert_eq!(count(&joined, |kernel| matches!(kernel, Kernel::Linear { .. })), 2 + 3 + 1);
    assert_eq!(count(&joined, |kernel| matches!(kernel, Kernel::Quantize { .. })), 2 + 3 + 1);
    assert_eq!(
        joined.weights.iter().map(|w| w.out_features()).collect::<Vec<_>>(),
        [10, 128, 64, 64, 64, 64]
    );
    // v is a separate product that reads the same quantised rows.
    let mixed = layers([Format::Q4_0, Format::Q4_0, Format::Q8_0]);
    assert_eq!(count(&mixed, |kernel| matches!(kernel, Kernel::Linear { .. })), 3 + 4 + 1);
    assert_eq!(count(&mixed, |kernel| matches!(kernel, Kernel::Quantize { .. })), 2 + 3 + 1);
    // A float weight reads the float rows.
    let float = layers([Format::Q4_0, Format::Q4_0, Format::F32]);
    assert_eq!(count(&float, |kernel| matches!(kernel, Kernel::Linear { .. })), 3 + 4 + 1);
    assert_eq!(count(&float, |kernel| matches!(kernel, Kernel::Quantize { .. })), 2 + 3 + 1);
}

#[test]
fn values_are_overwritten_at_their_last_use_and_the_last_layer_computes_only_sampled_rows() {
    let program = layers([Format::Q4_0; 3]);
    assert_eq!(count(&program, |kernel| matches!(kernel, Kernel::Copy { .. })), 0);
    assert_eq!(count(&program, |kernel| matches!(kernel, Kernel::RopeTable { .. })), 1);
    let write = |layer| {
        let is_write = |i: &Instruction| matches!(i.kernel, Kernel::WriteKv { layer: l, .. } if l == layer);
        program.instructions.iter().position(is_write).unwrap()
    };
    let is_for = |instructions: &[Instruction], rows| instructions.iter().all(|i| i.rows == rows);
    assert!(is_for(&program.instructions[..=write(0)], RowSet::Tokens));
    assert!(is_for(&program.instructions[write(1) + 1..], RowSet::Samples));
    let attentions: Vec<RowSet> = program
        .instructions
        .iter()
        .filter(|i| matches!(i.kernel, Kernel::Attention { .. }))
        .map(|i| i.rows)
        .collect();
    assert_eq!(attentions, [RowSet::Tokens, RowSet::Samples]);
}

#[test]
fn a_value_that_is_read_again_is_not_overwritten() {
    let mut b = builder();
    let embedding = weight(&mut b, Format::F32, &[10, 32]);
    let x = b.embedding(embedding).unwrap();
    let q = b.rope(x, &[1.0; 4], 1.0, 32).unwrap();
    b.write_kv(0, q, Some(x)).unwrap();
    let a = b.paged_attention(0, q, 1.0, None, None, None).unwrap();
    let twice = b.add(a, a).unwrap();
    b.logits(twice, embedding, None).unwrap();
    let program = b.lower().unwrap();
    // Copies are needed before rope, because x is also written to V, and before a + a.
    assert_eq!(count(&program, |kernel| matches!(kernel, Kernel::Copy { .. })), 2);
    for instruction in &program.instructions {
        if let Kernel::Add { x, y } = instruction.kernel {
            assert_ne!(x, y);
        }
    }
}

#[test]
fn dead_operations_are_removed() {
    let mut b = builder();
    let embedding = weight(&mut b, Format::F32, &[10, 32]);
    let x = b.embedding(embedding).unwrap();
    let unused = weight(&mut b, Format::F32, &[999, 32]);
    b.linear(x, unused, None).unwrap();
    b.write_kv(0, x, Some(x)).unwrap();
    b.logits(x, embedding, None).unwrap();
    let program = b.lower().unwrap();
    assert_eq!(program.weights.len(), 1);
    assert_eq!(count(&program, |kernel| matches!(kernel, Kernel::Linear { .. })), 1);
}

#[test]
fn sinks_and_biases_of_another_size_are_refused() {
    let mut b = builder();
    let embedding = weight(&mut b, Format::F32, &[10, 64]);
    let square = weight(&mut b, Format::F32, &[64, 64]);
    let [narrow, five, wide] = [32, 5, 64].map(|width| weight(&mut b, Format::F32, &[width]));
    let x = b.embedding(embedding).unwrap();
    let message = |result: Result<ValueId, ProgramError>| result.unwrap_err().to_string();
    let attention = b.paged_attention(0, x, 1.0, None, None, Some(five));
    assert_eq!(message(attention), "`paged_attention`: shape of the weight is [5], expected [2]");
    let logits = b.linear(x, embedding, None).unwrap();
    let experts = |bias: Vec<WeightId>| {
        let [gate, up, down] = std::array::from_fn(|_| vec![square; 10]);
        let biases = Some([vec![wide; 10], vec![wide; 10], bias]);
        Experts {
            gate,
            up,
            down,
            num_used: 2,
            rule: Rule::softmax(true),
            choice_bias: None,
            biases,
            clamp: None,
        }
    };
    assert_eq!(
        message(b.experts(x, logits, experts(vec![wide; 9]))),
        "`experts`: number of biases is 9, expected 10"
    );
    assert_eq!(
        message(b.experts(x, logits, experts(vec![narrow; 10]))),
        "`experts`: shape of the weight is [32], expected [64]"
    );
}

#[test]
fn misuse_is_refused_with_a_reason() {
    let mut b = builder();
    let embedding = weight(&mut b, Format::F32, &[10, 64]);
    let norm = weight(&mut b, Format::F32, &[32]);
    let x = b.embedding(embedding).unwrap();
    let message = |result: Result<ValueId, ProgramError>| result.unwrap_err().to_string();
    let [head, other] = [[16, 32], [16, 16]].map(|shape| weight(&mut b, Format::F32, &shape));
    for (result, expected) in [
        (b.rms_norm(x, norm, 1e-5), "`rms_norm`: shape of the weight is [32], expected [64]"),
        (b.add(x, ValueId(9)), "`add`: there is no value 9"),
        (b.embedding(WeightId(7)), "`embedding`: there is no weight 7"),
        (b.write_kv(1, x, Some(x)), "`write_kv`: layer is 1, expected 0 to 0"),
        (b.write_kv(0, x, Some(x)), "`write_kv`: width of key is 64, expected 32"),
        (
            b.paged_attention(0, x, 1.0, None, None, None),
            "the program reads K and V of layer 0 before `write_kv`",
        ),
        (b.rope(x, &[1.0; 17], 1.0, 32), "`rope`: number of frequencies is 17, expected 1 to 16"),
        (
            b.write_kv(0, x, None),
            "`write_kv`: number of values is 0, expected one, unless it is a part of the key",
        ),
        (b.head_linear(x, vec![head; 3]), "`head_linear`: width of the input is 64, expected 96"),
        (b.head_linear(x, vec![]), "`head_linear`: number of weights is 0, expected at least 1"),
        (b.join_heads(x, x, 3), "`join_heads`: width is 64, expected a multiple of 3 heads"),
    ] {
        assert_eq!(message(result), expected);
    }
    assert!(
        message(b.head_linear(x, vec![head, other])).starts_with("`head_linear`: an expert's weight is ")
    );
    let error = b.weight(Format::Q8_0, vec![0; 33], &[1, 32]).unwrap_err().to_string();
    assert!(error.starts_with("weight 4: "), "{error}");
    assert_eq!(b.lower().unwrap_err().to_string(), "the program does not end with `logits` or `pooled`");
    let mut b = builder();
    let embedding = weight(&mut b, Format::F32, &[10, 64]);
    let x = b.embedding(embedding).unwrap();
    b.logits(x, embedding, None).unwrap();
    assert_eq!(
        b.lower().unwrap_err().to_string(),
        "the program writes K and V of layer 0 0 times, expected once"
    );
}
