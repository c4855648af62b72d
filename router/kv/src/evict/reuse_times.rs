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

/// The number of age ranges. Index 0 is [0, 1) requests; index `i` is the half-octave [√2^(i-1), √2^i).
pub const NUM_AGES: usize = 41;
/// The share of blocks assumed to be used again at each age, before anything is learned. The rate falls as 1/age, which
/// gives the order of LRU.
const PRIOR_REUSE: f64 = 0.01;
/// The number of blocks that an assumption counts for.
///
/// It must be small. The rate just after a use is divided by one request only, so a share that is wrong for a small
/// class can look like the best rate of all.
const PRIOR_WEIGHT: f64 = 2.5;
/// The least share of the blocks that reach an age and are not used again at it.
const MIN_LEFT: f64 = 0.02;
/// The weights that smooth the share of an age over its neighbours. The best time to give up is a maximum over ages,
/// and a maximum over noisy shares would select the noise.
const KERNEL: [f64; 3] = [0.25, 0.5, 0.25];
/// The number of requests after which an observation counts half.
const HALF_LIFE: f64 = 8_192.0;

type Ages = [f64; NUM_AGES];

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
    /// The number of leading classes whose common reuse is assumed for every class.
    num_pooled: usize,
    /// The widths of the age ranges in requests. The last range has no upper end, and counts as twice its lower end.
    widths: Ages,
}

#[derive(Clone, Debug)]
struct ClassTimes {
    /// Blocks that were used again at this age.
    reused: Ages,
    /// Blocks that reached this age, whether they were used again before or not. `reused` is a part of them.
    reached: Ages,
    /// Blocks whose last use has this age now. With each request, a share of them moves on to the next age: one divided
    /// by the width of the age range. So no single block is tracked.
    pending: Ages,
    worth: Ages,
}

impl ReuseTimes {
    /// Creates the times of `num_classes` classes. While a class has few observations, it has the worth of the first
    /// `num_pooled` classes together.
    pub fn new(num_classes: usize, num_pooled: usize) -> Self {
        let zeros = [0.0; NUM_AGES];
        let class = ClassTimes { reused: zeros, reached: zeros, pending: zeros, worth: zeros };
        let bound = |index: usize| if index == 0 { 0.0 } else { ((index - 1) as f64 / 2.0).exp2() };
        let mut widths = std::array::from_fn(|index| bound(index + 1) - bound(index));
        widths[NUM_AGES - 1] = bound(NUM_AGES - 1);
        let mut times = Self { classes: vec![class; num_classes], num_pooled, widths };
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
    pub fn worth(&self, class: u8, age_index: usize) -> f64 {
        self.classes[usize::from(class)].worth[age_index]
    }

    /// Advances the clock by `num_requests` requests. The cost is O(classes · ages).
    pub fn advance(&mut self, num_requests: u64) {
        let requests = num_requests as f64;
        let keep = (-requests / HALF_LIFE).exp2();
        for class in &mut self.classes {
            for index in (0..NUM_AGES).rev() {
                let moved = class.pending[index] * (requests / self.widths[index]).min(1.0);
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
        let pooled = shares(&self.classes[..self.num_pooled], &[PRIOR_REUSE; NUM_AGES]);
        for class in &mut self.classes {
            let shares = shares(std::slice::from_ref(class), &pooled);
            let mut left = [1.0; NUM_AGES + 1];
            for index in 0..NUM_AGES {
                // Shares of different ages come from different blocks, so their sum can exceed one.
                left[index + 1] = (left[index] - shares[index]).max(left[index] * MIN_LEFT);
            }
            for from in 0..NUM_AGES {
                let (mut hits, mut time, mut best) = (0.0, 0.0, 0.0_f64);
                for index in from..NUM_AGES {
                    hits += left[index] - left[index + 1];
                    time += self.widths[index] * (left[index] + left[index + 1]) / 2.0;
                    best = best.max(hits / time);
                }
                class.worth[from] = best;
            }
        }
    }
}

/// Returns the share of the blocks of some classes that is used again at each age. `prior` counts as [`PRIOR_WEIGHT`]
/// blocks.
fn shares(classes: &[ClassTimes], prior: &Ages) -> Ages {
    let sum = |of_class: fn(&ClassTimes) -> &Ages| -> Ages {
        std::array::from_fn(|index| classes.iter().map(|class| of_class(class)[index]).sum())
    };
    let (reused, reached) = (sum(|class| &class.reused), sum(|class| &class.reached));
    std::array::from_fn(|index| {
        (smoothed(&reused, index) + PRIOR_WEIGHT * prior[index]) / (smoothed(&reached, index) + PRIOR_WEIGHT)
    })
}

/// Returns the value at `index`, smoothed over the neighbouring ages.
pub fn smoothed(of_ages: &Ages, index: usize) -> f64 {
    let neighbours = [index.saturating_sub(1), index, (index + 1).min(NUM_AGES - 1)];
    neighbours.into_iter().zip(KERNEL).map(|(index, share)| of_ages[index] * share).sum()
}
