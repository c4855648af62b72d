//! The shard's description of itself.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use trunkline_object::BlockShape;
use trunkline_scheduler::message_size::MAX_VECTOR_SIZE;
use trunkline_scheduler::{Pooling, ShardLimits, Stats, WindowLimits};
use trunkline_settings::Answers;

use super::{CONTRACT_VERSION, ShardError, proto};

/// The shard's answer to `Describe`, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardInfo {
    pub architecture: String,
    /// The size of the vocabulary; token ids are below it.
    pub vocab_size: u32,
    /// The most positions that the model was trained for.
    pub max_position_embeddings: u32,
    pub block_size: u32,
    pub num_device_blocks: u32,
    pub max_step_tokens: u32,
    pub max_step_sequences: u32,
    /// The most drafts of a chunk; 0 if chunks may have none.
    pub max_draft_tokens: u32,
    /// The most drafts of the shard's draft model in a chunk; 0 without one.
    pub max_own_drafts: u32,
    /// A hash of weights, data types and kernels.
    pub numeric_fingerprint: String,
    /// The backend and its device, for people.
    pub device: String,
    pub kv_dtype: String,
    pub weight_bytes: u64,
    pub bytes_per_block: u64,
    /// The limits of window parts; `None` if blocks are in one piece.
    pub windows: Option<WindowLimits>,
    pub bytes_per_window_part: u64,
    /// The number of slots in the store; 0 if there is none.
    pub num_store_slots: u32,
    /// The folder of the store, if it is on disk. The object tier and the shards of other lanes read it.
    pub store_folder: Option<PathBuf>,
    /// True if the shard reads the stores of other lanes.
    pub reads_other_stores: bool,
    /// The adapters that the shard can have loaded at once; 0 if it takes none.
    pub num_adapter_slots: u32,
    /// The bytes that loaded adapters may take together.
    pub adapter_bytes: u64,
    /// The memory that the shard takes once all its buffers are in use; 0 if that is unknown.
    pub memory_bytes: u64,
    /// The vectors that the model makes, if it makes any.
    pub vectors: Option<Vectors>,
    /// False if the model has no output head and generates nothing.
    pub generates: bool,
}

/// The vectors of prompts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vectors {
    /// The positions that a vector depends on.
    pub pooling: Pooling,
    /// The number of elements.
    pub size: u32,
    /// The classes whose logits the elements are; empty if the vector is an embedding.
    pub labels: Vec<String>,
    /// True if pairs of texts are put into the model's prompt for them.
    pub asks_about_pairs: bool,
}

impl ShardInfo {
    /// Returns what a user is shown first.
    pub fn answers(&self) -> Answers {
        match &self.vectors {
            Some(vectors) if !self.generates => match vectors.labels.len() {
                0 => Answers::Embeddings,
                1 => Answers::Scores,
                _ => Answers::Classes,
            },
            _ => Answers::Text,
        }
    }

    /// Checks the shard's answer to `Describe`.
    pub fn from_proto(describe: proto::DescribeResponse) -> Result<Self, ShardError> {
        if describe.contract_version != CONTRACT_VERSION {
            return Err(ShardError::ContractVersion {
                found: describe.contract_version,
                expected: CONTRACT_VERSION,
            });
        }
        for (name, value) in [
            ("vocab_size", describe.vocab_size),
            ("max_position_embeddings", describe.max_position_embeddings),
            ("block_size", describe.block_size),
            ("num_device_blocks", describe.num_device_blocks),
            ("max_step_tokens", describe.max_step_tokens),
            ("max_step_sequences", describe.max_step_sequences),
        ] {
            if value == 0 {
                return Err(ShardError::InvalidMessage { detail: format!("`{name}` of Describe is 0") });
            }
        }
        let windows = windows_from_proto(&describe)?;
        let vectors = vectors_from_proto(&describe)?;
        if vectors.is_none() && describe.only_pools {
            return Err(ShardError::InvalidMessage {
                detail: "Describe has neither a head nor vectors".to_owned(),
            });
        }
        Ok(Self {
            architecture: describe.architecture,
            vocab_size: describe.vocab_size,
            max_position_embeddings: describe.max_position_embeddings,
            block_size: describe.block_size,
            num_device_blocks: describe.num_device_blocks,
            max_step_tokens: describe.max_step_tokens,
            max_step_sequences: describe.max_step_sequences,
            max_draft_tokens: describe.max_draft_tokens,
            max_own_drafts: describe.max_own_drafts,
            numeric_fingerprint: describe.numeric_fingerprint,
            device: describe.device,
            kv_dtype: describe.kv_dtype,
            weight_bytes: describe.weight_bytes,
            bytes_per_block: describe.bytes_per_block,
            windows,
            bytes_per_window_part: describe.bytes_per_window_part,
            num_store_slots: describe.num_store_slots,
            store_folder: (describe.num_store_slots > 0 && !describe.store_folder.is_empty())
                .then(|| PathBuf::from(describe.store_folder)),
            reads_other_stores: describe.reads_other_stores,
            num_adapter_slots: describe.num_adapter_slots,
            adapter_bytes: describe.adapter_bytes,
            memory_bytes: describe.memory_bytes,
            vectors,
            generates: !describe.only_pools,
        })
    }

    /// Returns the first property of which the values differ from those of another lane's shard, though they must not,
    /// with both values.
    pub fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let fields = |info: &Self| {
            [
                ("fingerprint", info.numeric_fingerprint.clone()),
                ("architecture", info.architecture.clone()),
                ("vocabulary size", info.vocab_size.to_string()),
                ("longest context", info.max_position_embeddings.to_string()),
                ("block size", info.block_size.to_string()),
                ("vectors", format!("{:?}", info.vectors)),
            ]
        };
        let mut pairs = fields(self).into_iter().zip(fields(other));
        pairs.find_map(|((name, own), (_, its))| (own != its).then_some((name, own, its)))
    }

    /// Returns the number of elements of a vector; 0 if the model makes none.
    pub fn vector_size(&self) -> usize {
        self.vectors.as_ref().map_or(0, |vectors| vectors.size as usize)
    }

    /// Returns true if the store is in the shard's memory and ends with it.
    pub fn has_store_in_memory(&self) -> bool {
        self.num_store_slots > 0 && self.store_folder.is_none()
    }

    /// Returns the bytes of a block in the store, which has it in one piece.
    pub fn bytes_per_stored_block(&self) -> u64 {
        self.bytes_per_block + self.bytes_per_window_part
    }

    /// Returns the bytes of the block pool, window parts included.
    pub fn pool_bytes(&self, stats: &Stats) -> u64 {
        stats.blocks_total * self.bytes_per_block + stats.window_parts_total * self.bytes_per_window_part
    }

    /// Returns the shape of the blocks in the object store.
    pub fn block_shape(&self) -> BlockShape {
        BlockShape {
            fingerprint: self.numeric_fingerprint.clone(),
            block_size: self.block_size,
            block_bytes: self.bytes_per_stored_block(),
        }
    }

    /// Returns the limits that the scheduler needs.
    pub fn limits(&self) -> ShardLimits {
        ShardLimits {
            block_size: self.block_size,
            num_blocks: self.num_device_blocks,
            max_step_tokens: self.max_step_tokens,
            max_step_sequences: self.max_step_sequences,
            vocab_size: self.vocab_size,
            vector_size: self.vectors.as_ref().map_or(0, |vectors| vectors.size),
            windows: self.windows,
            numerics: self.numerics(),
            max_draft_tokens: self.max_draft_tokens,
            max_own_drafts: self.max_own_drafts,
            num_adapter_slots: self.num_adapter_slots,
            adapter_bytes: self.adapter_bytes,
        }
    }

    /// Returns a hash of the fingerprint.
    fn numerics(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.numeric_fingerprint.hash(&mut hasher);
        hasher.finish()
    }

    /// Returns the most tokens of one sequence that the pool can hold.
    pub fn pool_tokens(&self) -> u64 {
        u64::from(self.block_size) * u64::from(self.num_device_blocks)
    }
}

fn vectors_from_proto(describe: &proto::DescribeResponse) -> Result<Option<Vectors>, ShardError> {
    let pooling = match describe.pooling() {
        proto::Pooling::Unspecified => return Ok(None),
        _ if describe.whole_prompts => Pooling::Whole,
        proto::Pooling::Mean => Pooling::All,
        proto::Pooling::Last => Pooling::Last,
        proto::Pooling::First => Pooling::Whole,
    };
    let (size, labels) = (describe.vector_size, describe.labels.clone());
    if size == 0 || !labels.is_empty() && labels.len() != size as usize {
        let detail = format!("`vector_size` of Describe is {size}, with {} `labels`", labels.len());
        return Err(ShardError::InvalidMessage { detail });
    }
    if size > MAX_VECTOR_SIZE {
        let detail = format!("`vector_size` of Describe is {size}, expected at most {MAX_VECTOR_SIZE}");
        return Err(ShardError::InvalidMessage { detail });
    }
    Ok(Some(Vectors { pooling, size, labels, asks_about_pairs: describe.asks_about_pairs }))
}

fn windows_from_proto(describe: &proto::DescribeResponse) -> Result<Option<WindowLimits>, ShardError> {
    let invalid = |detail: String| Err(ShardError::InvalidMessage { detail });
    let limits = WindowLimits {
        num_parts: describe.num_window_parts,
        window_size: describe.window_size,
        is_recurrent: describe.recurrent,
    };
    if limits.is_recurrent {
        for (name, value, expected) in [
            ("window_size", limits.window_size, 2),
            ("num_store_slots", describe.num_store_slots, 0),
            ("max_draft_tokens", describe.max_draft_tokens, 0),
            ("max_own_drafts", describe.max_own_drafts, 0),
        ] {
            if value != expected {
                return invalid(format!(
                    "`{name}` of Describe is {value}, expected {expected} for recurrent layers"
                ));
            }
        }
    } else if limits.num_parts == 0 {
        return Ok(None);
    }
    if limits.window_size == 0 {
        return invalid("`window_size` of Describe is 0, though there are window parts".to_owned());
    }
    let least = limits.least_parts(describe.block_size);
    if limits.num_parts < least {
        return invalid(format!(
            "`num_window_parts` of Describe is {}, expected at least {least} for a window of {}",
            limits.num_parts, limits.window_size
        ));
    }
    Ok(Some(limits))
}
