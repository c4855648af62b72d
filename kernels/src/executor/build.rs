//! Builds an executor from a recorded program: packs the weights or maps packed ones, and starts the threads.

use super::Executor;
use crate::isa::Isa;
use crate::kv_pool::KeyScaling;
use crate::program::{ProgramBuilder, ProgramError};
use crate::threads::{Pinning, ThreadPool};
use crate::weight_cache::{CacheState, WeightCache};

fn start_threads(threads: usize, pinning: Pinning) -> Result<ThreadPool, ProgramError> {
    const MAX_THREADS: usize = 1024;
    if threads == 0 || threads > MAX_THREADS {
        return Err(ProgramError::Limit { name: "threads", value: threads, most: MAX_THREADS });
    }
    ThreadPool::with_pinning(threads, pinning).map_err(|source| ProgramError::Threads { threads, source })
}

impl ProgramBuilder {
    /// Packs the weights, maps the memory and starts `threads` threads. Uses the instruction set of [`Isa::detect`].
    pub fn build(self, threads: usize, pinning: Pinning) -> Result<Executor, ProgramError> {
        let isa = Isa::detect()?;
        let mut pool = start_threads(threads, pinning)?;
        Executor::with_key_scaling(
            self.lower_on(&mut pool, &mut |packing, pool| packing.pack(pool))?,
            pool,
            isa,
            None,
        )
    }

    /// Like [`ProgramBuilder::build`], with the given instruction set and without pinning.
    pub fn build_for(self, threads: usize, isa: Isa) -> Result<Executor, ProgramError> {
        let mut pool = start_threads(threads, Pinning::Off)?;
        Executor::with_key_scaling(
            self.lower_on(&mut pool, &mut |packing, pool| packing.pack(pool))?,
            pool,
            isa,
            None,
        )
    }

    /// Like [`ProgramBuilder::build`], with the packed weights of `cache` if it has them. If not, the weights are
    /// packed, and the returned [`CacheState`] holds the writer that can store them.
    ///
    /// `key_scaling` is the result of [`Executor::key_scaling`] for the same weights; `None` measures it.
    pub fn build_cached(
        self,
        threads: usize,
        pinning: Pinning,
        cache: WeightCache,
        key_scaling: Option<KeyScaling>,
    ) -> Result<(Executor, CacheState), ProgramError> {
        let isa = Isa::detect()?;
        let mut pool = start_threads(threads, pinning)?;
        let mut state = None;
        let program = self.lower_on(&mut pool, &mut |packing, pool| {
            let (image, found) = cache.image(packing, pool)?;
            state = Some(found);
            Ok(image)
        })?;
        let state = state.expect("lowering asks for the image once");
        Ok((Executor::with_key_scaling(program, pool, isa, key_scaling)?, state))
    }
}
