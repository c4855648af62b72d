//! Random numbers from a seed, the same on every machine and in every release, so that a seed names a workload.

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(mix(seed ^ 0x6265_6e63_6800_0001))
    }

    /// Returns the generator of one item of many, such as a request, independent of the others.
    pub fn of_item(seed: u64, item: u64) -> Self {
        Self::new(mix(seed).wrapping_add(mix(item ^ 0x9e37_79b9_7f4a_7c15)))
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.bits() % (high - low + 1)
    }

    /// Returns a number between 0 and 1, and neither of them.
    pub fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Returns a number of the exponential distribution with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -self.unit().ln()
    }

    /// Returns a number of the standard normal distribution (Box and Muller 1958).
    pub fn normal(&mut self) -> f64 {
        (2.0 * self.exponential()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Returns a number of the gamma distribution with this shape and mean 1 (Marsaglia and Tsang: A simple method for
    /// generating gamma variables, 2000).
    pub fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            // A variable of shape + 1 times a power of a uniform one; both means are divided out.
            let boost = self.unit().powf(1.0 / shape);
            return self.gamma(shape + 1.0) * (shape + 1.0) * boost / shape;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && self.unit().ln() < 0.5 * x * x + d * (1.0 - v + v.ln()) {
                return d * v / shape;
            }
        }
    }
}

/// The finalizer of SplitMix64, a bijection that looks random.
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
