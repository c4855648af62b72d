//! Static layout of the working memory. Buffers whose lifetimes do not overlap share memory.

/// Every buffer starts at a multiple of this many elements, which is whole cache lines for both bytes and f32.
pub const ALIGNMENT: usize = 64;

/// Size and lifetime of one buffer.
///
/// Lifetimes are measured in phases, the intervals between two barriers. Threads within a phase are not ordered, so
/// buffers that live in the same phase never share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    pub num_elements: usize,
    pub first_phase: usize,
    pub last_phase: usize,
}

/// Returns the offset of each buffer and the total number of elements.
///
/// Greedy by size (Pisarchyk and Lee, arXiv:2001.03288, section 5.2): places the largest buffer first, each at the
/// lowest offset that is free during its lifetime. Costs O(n^2 log n) for n buffers.
pub fn lay_out(demands: &[Demand]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(demands[*i].num_elements), *i));
    let mut offsets = vec![0; demands.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(demands.len());
    let mut total = 0;
    for i in order {
        let demand = &demands[i];
        let meets = |j: &&usize| {
            demands[**j].first_phase <= demand.last_phase && demand.first_phase <= demands[**j].last_phase
        };
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .filter(meets)
            .map(|j| (offsets[*j], offsets[*j] + demands[*j].num_elements))
            .collect();
        taken.sort_unstable();
        let mut offset = 0usize;
        for (start, end) in taken {
            if offset + demand.num_elements <= start {
                break;
            }
            offset = offset.max(end.next_multiple_of(ALIGNMENT));
        }
        offsets[i] = offset;
        total = total.max(offset + demand.num_elements);
        placed.push(i);
    }
    (offsets, total)
}
