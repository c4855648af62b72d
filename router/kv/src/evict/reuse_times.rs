//! Learns, for each class of blocks, how long it takes until a block is used again, and how much keeping it is worth.
//!
//! The worth of a block of some class that was last used `a` requests ago is
//!
//! ```text
//!              P(used again between a and T)                      hits
//! worth(a) =  max   ------------------------------------------   = ----------------
//!            T > a   E(requests until it is used again, or T)       space × time
//! ```
//!
//! where `T` is the age at which the block is evicted at the latest. This is the Gittins index of a job that may end at
//! any age (Gittins 1979): the highest rate of hits that the block can give for its space. It is also the hit density
//! of LHD (Beckmann et al., NSDI 2018) with the best time to give up.
//!
//! If the chance of reuse falls with age, the order is that of LRU. If people think for a minute before they answer,
//! the blocks that are due again are worth more than the latest ones.
//!
//! The blocks of one prompt are used again together or not at all, so a long prompt tells little more than a short one.
//! Therefore a block counts less the more blocks of its class its prompt has.

/// The number of age ranges. Index 0 is [0, 1) requests; index `i` is the half-octave [√2^(i-1), √2^i).
pub const NUM_AGES: usize = 41;
/// The number of age indices in an octave.
const AGES_AN_OCTAVE: f64 = 2.0;
/// The share of blocks assumed to be used again in each octave of age, before anything is learned. The rate falls as
/// 1/age, which gives the order of LRU.
const PRIOR_REUSE_AN_OCTAVE: f64 = 0.02;

/// The least share of the blocks that reach an age and are not used again at it.
const MIN_LEFT: f64 = 0.02;

/// The number of blocks that the assumption counts for.
///
/// It must be small. The rate just after a use is divided by one request only, so a share that is wrong for a small
/// group can look like the best rate of all.
const PRIOR_WEIGHT: f64 = 2.5;
/// The number of reused blocks that a level of 1 counts for, which is about one request. A level of 1 means that a
/// class is reused as much as its group, and a group as much as all groups.
const LEVEL_WEIGHT: f64 = 5.0;
/// The weights that smooth the share of an age over its neighbours. The best time to give up is a maximum over ages,
/// and a maximum over noisy shares would select the noise.
const KERNEL: [f64; 3] = [0.25, 0.5, 0.25];

/// Returns the index of an age in requests.
pub fn age_index(age: u64) -> usize {
    let Some(octave) = age.checked_ilog2() else { return 0 };
    let is_upper_half = u128::from(age).pow(2) >= 1 << (2 * octave + 1);
    (1 + 2 * octave as usize + usize::from(is_upper_half)).min(NUM_AGES - 1)
}

/// Reuse by class and age. Older observations count less.
#[derive(Debug)]
pub struct ReuseTimes {
    classes: Vec<ClassTimes>,
    /// The lower ends of the age ranges. The last range has no upper end.
    bounds: [f64; NUM_AGES],
    /// The number of consecutive classes that are reused at the same ages, though not to the same extent.
    group_size: usize,
    /// The number of leading groups whose common reuse is assumed for every group.
    num_pooled_groups: usize,
    half_life: f64,
}

#[derive(Clone, Debug)]
struct ClassTimes {
    /// Blocks that were used again at this age.
    reused: [f64; NUM_AGES],
    /// Blocks that reached this age, whether they were used again before or not. `reused` is a part of them.
    reached: [f64; NUM_AGES],
    /// Blocks whose last use has this age now. With each request, a share of them moves on to the next age: one divided
    /// by the width of the age range. So no single block is tracked.
    pending: [f64; NUM_AGES],
    worth: [f64; NUM_AGES],
}

impl ReuseTimes {
    /// Makes tables for `num_groups` groups of `group_size` classes.
    ///
    /// The first `num_pooled_groups` groups set the assumption for all. An observation counts half after `half_life`
    /// requests.
    pub fn new(num_groups: usize, num_pooled_groups: usize, group_size: usize, half_life: f64) -> Self {
        let zeros = [0.0; NUM_AGES];
        let class = ClassTimes { reused: zeros, reached: zeros, pending: zeros, worth: zeros };
        let mut bounds = zeros;
        for (index, bound) in bounds.iter_mut().enumerate().skip(1) {
            *bound = ((index - 1) as f64 / AGES_AN_OCTAVE).exp2();
        }
        let classes = vec![class; num_groups * group_size];
        let mut times = Self { classes, bounds, group_size, num_pooled_groups, half_life };
        times.update_worth();
        times
    }

    /// Records that a block of `class` is used now. It counts as `weight` blocks.
    pub fn used(&mut self, class: u8, weight: f64) {
        self.classes[usize::from(class)].pending[0] += weight;
    }

    /// Records that a block of `class` is used again, `age` requests after its last use.
    pub fn reused(&mut self, class: u8, age: u64, weight: f64) {
        self.classes[usize::from(class)].reused[age_index(age)] += weight;
    }

    /// Returns the worth of keeping a block, in hits per block and request.
    pub fn worth(&self, class: usize, age_index: usize) -> f64 {
        self.classes[class].worth[age_index]
    }

    /// Advances the clock by `num_requests` requests. The cost is O(classes · ages).
    pub fn advance(&mut self, num_requests: u64) {
        let requests = num_requests as f64;
        let keep = (-requests / self.half_life).exp2();
        for class in &mut self.classes {
            for index in (0..NUM_AGES).rev() {
                let share = (requests / width(&self.bounds, index)).min(1.0);
                let moved = class.pending[index] * share;
                class.pending[index] -= moved;
                if let Some(next) = class.pending.get_mut(index + 1) {
                    *next += moved;
                }
                class.reached[index] = class.reached[index] * keep + moved;
                class.reused[index] *= keep;
            }
        }
    }

    /// Computes the worth of every class and age from the observations. The cost is O(classes · ages²).
    pub fn update_worth(&mut self) {
        let prior = [PRIOR_REUSE_AN_OCTAVE / AGES_AN_OCTAVE; NUM_AGES];
        let pooled = shares(&self.classes[..self.num_pooled_groups * self.group_size], &prior);
        for group in self.classes.chunks_mut(self.group_size) {
            let level = level(group, &pooled);
            let of_group = shares(group, &pooled.map(|share| share * level));
            for class in group {
                class.update_worth(&self.bounds, &of_group);
            }
        }
    }
}

/// Returns the share of the blocks of some classes that is used again at each age. `prior` counts as [`PRIOR_WEIGHT`]
/// blocks.
fn shares(classes: &[ClassTimes], prior: &[f64; NUM_AGES]) -> [f64; NUM_AGES] {
    let (mut reused, mut reached) = ([0.0; NUM_AGES], [0.0; NUM_AGES]);
    for class in classes {
        for index in 0..NUM_AGES {
            reused[index] += class.reused[index];
            reached[index] += class.reached[index];
        }
    }
    std::array::from_fn(|index| {
        let of_prior = PRIOR_WEIGHT * prior[index];
        (smoothed(&reused, index) + of_prior) / (smoothed(&reached, index) + PRIOR_WEIGHT)
    })
}

pub fn smoothed(of_ages: &[f64; NUM_AGES], index: usize) -> f64 {
    let neighbours = [index.saturating_sub(1), index, (index + 1).min(NUM_AGES - 1)];
    neighbours.into_iter().zip(KERNEL).map(|(index, share)| of_ages[index] * share).sum()
}

/// Returns how much more some classes are reused than `shares` predict. Few blocks are enough to learn one number.
fn level(classes: &[ClassTimes], shares: &[f64; NUM_AGES]) -> f64 {
    let (mut reused, mut expected) = (0.0, 0.0);
    for class in classes {
        reused += class.reused.iter().sum::<f64>();
        expected += class.reached.iter().zip(shares).map(|(reached, share)| reached * share).sum::<f64>();
    }
    (reused + LEVEL_WEIGHT) / (expected + LEVEL_WEIGHT)
}

impl ClassTimes {
    fn update_worth(&mut self, bounds: &[f64; NUM_AGES], of_group: &[f64; NUM_AGES]) {
        let level = level(std::slice::from_ref(self), of_group);
        let mut left = [1.0; NUM_AGES + 1];
        for index in 0..NUM_AGES {
            // Shares of different ages come from different blocks, so their sum can exceed one.
            left[index + 1] = (left[index] - level * of_group[index]).max(left[index] * MIN_LEFT);
        }
        for from in 0..NUM_AGES {
            let (mut hits, mut time, mut best) = (0.0, 0.0, 0.0_f64);
            for index in from..NUM_AGES {
                hits += left[index] - left[index + 1];
                time += width(bounds, index) * (left[index] + left[index + 1]) / 2.0;
                best = best.max(hits / time);
            }
            self.worth[from] = best;
        }
    }
}

fn width(bounds: &[f64; NUM_AGES], index: usize) -> f64 {
    match bounds.get(index + 1) {
        Some(end) => end - bounds[index],
        None => bounds[index],
    }
}
