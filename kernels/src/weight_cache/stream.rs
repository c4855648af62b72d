//! Files of packed weights that exceed their memory: their weights are packed into the file, and streamed from it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use xxhash_rust::xxh3::xxh3_64;

use super::file::{self, Header};
use super::folder::{self, Identity, PartFile};
use super::{CacheState, CacheWriter, Miss, Packed, WeightCache};
use crate::direct_file::drop_cached;
use crate::program::{Packing, ProgramError, WeightImage};
use crate::threads::ThreadPool;
use crate::weight_stream::schedule::Schedule;
use crate::weight_stream::{ImageFile, StreamError, WeightStream, plan};

impl WeightCache {
    /// Plans the streaming of weights that exceed their memory. Returns `None` for others.
    pub(super) fn schedule(&self, packing: &Packing<'_>) -> Result<Option<Schedule>, ProgramError> {
        let Some(memory) = self.memory else { return Ok(None) };
        let memory = usize::try_from(memory).unwrap_or(usize::MAX);
        plan(&packing.table, &packing.uses, memory, packing.num_layers).map_err(image_error)
    }

    pub(super) fn streamed_image(
        &self,
        packing: &mut Packing<'_>,
        pool: &mut ThreadPool,
        schedule: Schedule,
    ) -> Result<(WeightImage, CacheState), ProgramError> {
        let miss = match self.open_stream(packing, schedule.clone()) {
            Ok((image, note)) => return Ok((image, CacheState::Mapped(note))),
            Err(miss) => miss,
        };
        let (part, checksums, image_offset) = self.pack_into_file(packing, pool)?;
        let image = image_of(
            packing,
            (part.temporary_path(), &self.path()),
            (image_offset, checksums.clone()),
            schedule,
        )
        .map_err(image_error)?;
        let table = Arc::clone(&packing.table);
        let packed = Packed::Part { table, checksums, file: Mutex::new(part) };
        let writer = CacheWriter { cache: self.clone(), packed };
        Ok((image, CacheState::Missed(miss, Box::new(writer))))
    }

    /// Opens the file of the key. An unusable one is removed.
    fn open_stream(&self, packing: &Packing<'_>, schedule: Schedule) -> Result<(WeightImage, String), Miss> {
        let path = self.path();
        let stored = self.look_up(file::open_header(&path, &self.key, &packing.table))?;
        let image = image_of(packing, (&path, &path), (stored.image_offset, stored.checksums), schedule);
        match image {
            Ok(image) => Ok((image, stored.note)),
            Err(StreamError::Damaged { .. }) => {
                let what = "has damaged bytes".to_owned();
                Err(Miss::Unusable { path, what })
            }
            Err(StreamError::System { source, .. }) => Err(Miss::Unreadable { path, source }),
            Err(other) => Err(Miss::Unreadable { path, source: io::Error::other(other.to_string()) }),
        }
    }

    /// Packs the weights into a file that has no header yet. Returns it with the checksums of the entries and the
    /// offset of the image.
    fn pack_into_file(
        &self,
        packing: &mut Packing<'_>,
        pool: &mut ThreadPool,
    ) -> Result<(PartFile, Vec<u64>, usize), ProgramError> {
        let table = Arc::clone(&packing.table);
        let mut checksums = vec![0; table.entries.len()];
        let header = Header::with_checksums(&table, &self.key, "", &checksums);
        let (path, image_offset) = (self.path(), header.image_offset());
        let mut part = PartFile::create(&self.folder, &path, self.max_bytes, header.file_bytes())
            .map_err(image_error)?;
        packing.pack_in_runs(pool, |run, bytes| {
            let begin = table.entries[run.start].offset;
            for index in run {
                let entry = &table.entries[index];
                checksums[index] = xxh3_64(&bytes[entry.offset - begin..][..entry.num_bytes]);
            }
            let offset = (image_offset + begin) as u64;
            let write = |out: &mut File| {
                out.write_all_at(bytes, offset)?;
                // Dirty pages would take the memory that the weights must not take.
                out.sync_data()?;
                drop_cached(out, offset, bytes.len());
                Ok(())
            };
            part.write(write).map_err(image_error)
        })?;
        Ok((part, checksums, image_offset))
    }
}

/// Opens the stream of an image. `at` and `path` are the present and the final name of its file.
fn image_of(
    packing: &Packing<'_>,
    (at, path): (&Path, &Path),
    (image_offset, checksums): (usize, Vec<u64>),
    schedule: Schedule,
) -> Result<WeightImage, StreamError> {
    let table = &packing.table;
    let identity: Option<Identity> = File::open(at).and_then(|file| folder::identity(&file)).ok();
    let name = path.to_owned();
    // The name may have become that of another file.
    let remove = move || identity.into_iter().for_each(|identity| folder::remove_if_same(&name, identity));
    let file = ImageFile { at, path, image_offset, table, checksums, remove: Box::new(remove) };
    let (stream, region) = WeightStream::open(file, schedule)?;
    Ok(WeightImage { table: Arc::clone(table), region: Arc::new(region), gate: Some(Arc::new(stream)) })
}

fn image_error(error: impl std::error::Error + Send + Sync + 'static) -> ProgramError {
    ProgramError::Image(Box::new(error))
}
