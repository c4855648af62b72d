//! How long it takes until a path is asked for again, learned by class, and what keeping it is worth.
//!
//! A block of class `c` that was last used `a` requests ago is worth, if it is kept until age `T` at the longest,
//!
//! ```text
//!              P(asked for between a and T)                       hits
//! worth(a) =  max   ------------------------------------------   = ----------------
//!            T > a   E(requests until it is asked for, or T)        place × time
//! ```
//!
//! which is Gittins' index of a job that may end at any age (Gittins 1979), here the greatest rate of hits that this
//! block can give for its place; hit density (LHD, Beckmann et al., NSDI 2018) with the best time to give up. Where the
//! chance of reuse falls with age it orders as LRU does; where people think for a minute before they answer it keeps
//! what is due rather than what just came.
//!
//! The blocks of one prompt come back together or not at all, so that a long prompt says little more than a short one:
//! a block counts for less the more of its prompt there are of its class.

/// Ages are told apart by half-octaves: index 0 is [0, 1), index `i` is [√2^(i-1), √2^i) requests.
pub const NUM_AGES: usize = 41;
/// Indices that an octave of ages has.
const AGES_AN_OCTAVE: f64 = 2.0;
/// Before anything is seen, so many of a class's blocks are asked for again in each octave of age: the rate falls as
/// 1/age, which orders as LRU does.
const PRIOR_REUSE_AN_OCTAVE: f64 = 0.02;

/// At least this share of what reaches an age outlives it.
const MIN_LEFT: f64 = 0.02;

/// What is assumed before anything is seen weighs like so many blocks. It must be few: a share that is wrong for a
/// small group can look like the best of all rates, as that of an age just after use is divided by one request.
const PRIOR_WEIGHT: f64 = 2.5;
/// That a class is reused as much as its group, and a group as much as all, weighs like so many reused blocks: about
/// one request.
const LEVEL_WEIGHT: f64 = 5.0;
/// An age's share is smoothed over itself and its neighbours. The best time to give up is a maximum over ages: of noisy
/// shares it picks the noise.
const KERNEL: [f64; 3] = [0.25, 0.5, 0.25];

/// Which index an age in requests has.
pub fn age_index(age: u64) -> usize {
    let Some(octave) = age.checked_ilog2() else { return 0 };
    let is_upper_half = u128::from(age).pow(2) >= 1 << (2 * octave + 1);
    (1 + 2 * octave as usize + usize::from(is_upper_half)).min(NUM_AGES - 1)
}

/// Reuse by class and age, older observations weighing less.
#[derive(Debug)]
pub struct ReuseTimes {
    classes: Vec<ClassTimes>,
    /// Lower ends of the ages; the last is open.
    bounds: [f64; NUM_AGES],
    /// Consecutive classes that share when they are reused; how much is each one's own.
    group_size: usize,
    /// What the first so many groups have in common is assumed of every group.
    num_pooled_groups: usize,
    half_life: f64,
}

#[derive(Clone, Debug)]
struct ClassTimes {
    /// Blocks asked for again at this age.
    reused: [f64; NUM_AGES],
    /// Blocks whose last use is that old: what `reused` is out of, asked for before or not.
    reached: [f64; NUM_AGES],
    /// Blocks whose last use is of this age now. They move on by this share of their number a request: the width's
    /// reciprocal, so that nothing is kept of each.
    pending: [f64; NUM_AGES],
    worth: [f64; NUM_AGES],
}

impl ReuseTimes {
    /// Groups of classes, of which the first `num_pooled_groups` say what others may be like. `half_life`: requests
    /// after which an observation counts half.
    pub fn new(num_groups: usize, num_pooled_groups: usize, group_size: usize, half_life: f64) -> Self {
        let zeros = [0.0; NUM_AGES];
        let class = ClassTimes { reused: zeros, reached: zeros, pending: zeros, worth: zeros };
        let mut bounds = zeros;
        for (index, bound) in bounds.iter_mut().enumerate().skip(1) {
            *bound = ((index - 1) as f64 / AGES_AN_OCTAVE).exp2();
        }
        let classes = vec![class; num_groups * group_size];
        let mut times = Self { classes, bounds, group_size, num_pooled_groups, half_life };
        times.weigh();
        times
    }

    /// A block of `class` is used now, that counts for `weight` of one.
    pub fn used(&mut self, class: u8, weight: f64) {
        self.classes[usize::from(class)].pending[0] += weight;
    }

    /// One of `class`, last used `age` requests ago, was asked for.
    pub fn reused(&mut self, class: u8, age: u64, weight: f64) {
        self.classes[usize::from(class)].reused[age_index(age)] += weight;
    }

    /// What keeping a block is worth, in hits by place and request.
    pub fn worth(&self, class: usize, age_index: usize) -> f64 {
        self.classes[class].worth[age_index]
    }

    /// `num_requests` went by. Cost: O(classes · ages).
    pub fn pass(&mut self, num_requests: u64) {
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

    /// Works out anew what keeping is worth. Cost: O(classes · ages²).
    pub fn weigh(&mut self) {
        let prior = [PRIOR_REUSE_AN_OCTAVE / AGES_AN_OCTAVE; NUM_AGES];
        let pooled = shares(&self.classes[..self.num_pooled_groups * self.group_size], &prior);
        for group in self.classes.chunks_mut(self.group_size) {
            let level = level(group, &pooled);
            let of_group = shares(group, &pooled.map(|share| share * level));
            for class in group {
                class.weigh(&self.bounds, &of_group);
            }
        }
    }
}

/// Of all blocks of some classes, the share that is asked for again at each age; `prior` counts for
/// [`PRIOR_WEIGHT`] blocks.
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

/// How much more some classes are reused than `shares` say. It is one number: few blocks are enough to learn it.
fn level(classes: &[ClassTimes], shares: &[f64; NUM_AGES]) -> f64 {
    let (mut reused, mut expected) = (0.0, 0.0);
    for class in classes {
        reused += class.reused.iter().sum::<f64>();
        expected += class.reached.iter().zip(shares).map(|(reached, share)| reached * share).sum::<f64>();
    }
    (reused + LEVEL_WEIGHT) / (expected + LEVEL_WEIGHT)
}

impl ClassTimes {
    fn weigh(&mut self, bounds: &[f64; NUM_AGES], of_group: &[f64; NUM_AGES]) {
        let level = level(std::slice::from_ref(self), of_group);
        let mut left = [1.0; NUM_AGES + 1];
        for index in 0..NUM_AGES {
            // The shares are of different cohorts, so that their sum may pass one; somebody is always left.
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
