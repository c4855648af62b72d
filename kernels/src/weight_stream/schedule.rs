//! The choice of the pieces that stay in memory, and the order in which the others are read.

use std::ops::Range;

/// The least size of a piece: one huge page, and twice the size from which single reads reach a disk's full speed.
pub const MIN_PIECE_BYTES: usize = 2 << 20;
/// The most pieces of an image, which bounds the costs of planning.
const MAX_PIECES: usize = 8192;
/// The layers whose pieces are read ahead of the instruction that computes.
const LAYERS_AHEAD: usize = 2;
/// Reading ahead takes at most this share of the memory beside the pinned pieces. Pieces that are read ahead are not
/// resident, so each of their bytes is read once more in every pass.
const AHEAD_DIVISOR: usize = 8;
/// While one piece is computed with, one is being read, and the checksum of another is computed.
const MIN_AHEAD: usize = 2;

/// Bytes of the image that an instruction reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightUse {
    pub instruction: usize,
    pub bytes: Range<usize>,
    /// Few rows are read, which are known only when the instruction begins.
    pub is_by_row: bool,
}

/// The pieces for which an instruction waits, as positions in [`Schedule::order`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// No later instruction reads the pieces at earlier positions.
    pub first: usize,
    /// The pieces at earlier positions must have been read.
    pub end: usize,
}

/// The pieces of an image, divided into those that stay in memory and those that are read again in every pass.
///
/// A pass reads its weights in a fixed order, so a cache of the least recently used pieces would never hit. The pieces
/// that stay are a fixed subset instead, spread evenly over the pass so that reading and computing overlap everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    pub piece_bytes: usize,
    /// Pieces that stay in memory, in ascending order.
    pub resident: Vec<usize>,
    /// The other pieces that instructions read, in the order of a pass.
    pub order: Vec<usize>,
    /// The most pieces of `order` that are in memory at the same time.
    pub num_places: usize,
    /// The needs of instructions that read streamed pieces, by the index of the instruction.
    pub needs: Vec<Option<Need>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the weights that instructions need at the same time take {needed_bytes} bytes")]
pub struct TooLittleMemory {
    /// The least memory with which the weights can be streamed.
    pub needed_bytes: usize,
}

/// A piece that may be streamed, with the first and the last instruction that reads it.
#[derive(Clone, Copy)]
struct Candidate {
    piece: usize,
    first_use: usize,
    last_use: usize,
}

impl Schedule {
    /// Plans an image of `image_bytes` bytes within `memory_bytes`. Returns `None` if the whole image fits.
    ///
    /// `uses` are in the order of instructions. Bytes that several instructions read, that are read by row, or that are
    /// in `pinned` stay in memory.
    pub fn new(
        image_bytes: usize,
        uses: &[WeightUse],
        pinned: &[Range<usize>],
        memory_bytes: usize,
        num_layers: usize,
    ) -> Result<Option<Self>, TooLittleMemory> {
        if image_bytes <= memory_bytes {
            return Ok(None);
        }
        let piece_bytes = image_bytes.div_ceil(MAX_PIECES).next_power_of_two().max(MIN_PIECE_BYTES);
        let pieces = |bytes: &Range<usize>| bytes.start / piece_bytes..bytes.end.div_ceil(piece_bytes);
        let mut is_pinned = vec![false; image_bytes.div_ceil(piece_bytes)];
        for bytes in pinned.iter().chain(&read_more_than_once(uses)) {
            is_pinned[pieces(bytes)].fill(true);
        }
        let mut readers: Vec<Option<(usize, usize)>> = vec![None; is_pinned.len()];
        for each in uses {
            for reader in &mut readers[pieces(&each.bytes)] {
                let (first, _) = reader.unwrap_or((each.instruction, 0));
                *reader = Some((first, each.instruction));
            }
        }
        let mut candidates: Vec<Candidate> = Vec::new();
        for (piece, reader) in readers.iter().enumerate() {
            if let Some((first_use, last_use)) = reader.filter(|_| !is_pinned[piece]) {
                candidates.push(Candidate { piece, first_use, last_use });
            }
        }
        candidates.sort_by_key(|candidate| (candidate.first_use, candidate.piece));
        let num_pinned = is_pinned.iter().filter(|is_pinned| **is_pinned).count();
        let room = (memory_bytes / piece_bytes).saturating_sub(num_pinned);
        if candidates.len() <= room {
            return Ok(None);
        }
        let instructions: Vec<usize> = uses.iter().map(|each| each.instruction).collect();
        let plan = |num_places: usize| {
            let num_streamed = candidates.len() - (room - num_places);
            let is_streamed = spread(num_streamed, candidates.len());
            let streamed: Vec<Candidate> =
                candidates.iter().zip(is_streamed).filter(|(_, is)| *is).map(|(each, _)| *each).collect();
            let (needs, most) = needs_of(&streamed, &instructions);
            (streamed, needs, most)
        };
        let fits = |num_places: usize| {
            let (streamed, needs, most) = plan(num_places);
            let layers = (LAYERS_AHEAD * streamed.len()).div_ceil(num_layers.max(1));
            let ahead = layers.min(room / AHEAD_DIVISOR).max(MIN_AHEAD);
            (num_places >= most + ahead).then_some((num_places, streamed, needs))
        };
        let found = (1..=room).find_map(fits).or_else(|| {
            let (streamed, needs, most) = plan(room);
            (room > most).then_some((room, streamed, needs))
        });
        let Some((num_places, streamed, needs)) = found else {
            let (_, most) = needs_of(&candidates, &instructions);
            return Err(TooLittleMemory { needed_bytes: (num_pinned + most + 1) * piece_bytes });
        };
        let order: Vec<usize> = streamed.iter().map(|each| each.piece).collect();
        let mut is_resident = is_pinned;
        candidates.iter().for_each(|each| is_resident[each.piece] = true);
        order.iter().for_each(|piece| is_resident[*piece] = false);
        let resident = (0..is_resident.len()).filter(|piece| is_resident[*piece]).collect();
        Ok(Some(Self { piece_bytes, resident, order, num_places, needs }))
    }

    /// The bytes of a piece in an image of `image_bytes` bytes.
    pub fn bytes_of(&self, piece: usize, image_bytes: usize) -> Range<usize> {
        piece * self.piece_bytes..((piece + 1) * self.piece_bytes).min(image_bytes)
    }
}

/// The bytes that must stay because they are read by row, or by more than one instruction.
fn read_more_than_once(uses: &[WeightUse]) -> Vec<Range<usize>> {
    let mut sorted: Vec<&WeightUse> = uses.iter().collect();
    sorted.sort_by_key(|each| each.bytes.start);
    let mut found: Vec<Range<usize>> =
        uses.iter().filter(|each| each.is_by_row).map(|each| each.bytes.clone()).collect();
    let mut end = 0;
    for each in sorted {
        if each.bytes.start < end {
            found.push(each.bytes.start..each.bytes.end.min(end));
        }
        end = end.max(each.bytes.end);
    }
    found
}

/// Marks `count` of `all` places, as evenly as possible.
fn spread(count: usize, all: usize) -> impl Iterator<Item = bool> {
    (0..all).map(move |index| (index + 1) * count / all > index * count / all)
}

/// The needs of instructions, and the most pieces that one of them needs in memory.
fn needs_of(streamed: &[Candidate], instructions: &[usize]) -> (Vec<Option<Need>>, usize) {
    let mut needs = vec![None; instructions.last().map_or(0, |last| last + 1)];
    let (mut first, mut end, mut most) = (0, 0, 0);
    for &instruction in instructions {
        while streamed.get(first).is_some_and(|each| each.last_use < instruction) {
            first += 1;
        }
        let begun = end;
        while streamed.get(end).is_some_and(|each| each.first_use <= instruction) {
            end += 1;
        }
        if end > begun || first < end {
            needs[instruction] = Some(Need { first, end });
            most = most.max(end - first);
        }
    }
    (needs, most)
}
