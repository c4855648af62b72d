// The answers of the routes that the view shows, as far as it does.

interface Tier {
  blocks: number;
  pinned: number;
}

export interface DeviceTier extends Tier {
  free: number;
  held: number;
  cached: number;
  bytes: number;
}

export interface StoreTier extends Tier {
  slots: number;
  restored: number;
}

export interface KvTotals {
  dtype: string;
  block_size: number;
  block_bytes: number;
  device: DeviceTier;
  host: StoreTier | null;
  disk: StoreTier | null;
  object_store: {
    put_blocks: number;
    put_bytes: number;
    got_blocks: number;
    waiting_blocks: number;
    failed: number;
  } | null;
  lanes: {
    lane: number;
    connected: boolean;
    running: number;
    blocks: number;
    held: number;
    cached: number;
    hit_tokens: number;
  }[];
  tenants: {
    tenant: string | null;
    device_blocks: number;
    device_share_blocks: number;
    device_pinned: number;
    disk_blocks: number | null;
  }[];
}

export interface AdapterRow {
  name: string;
  path: string;
  state: string;
  rank: number | null;
  num_bytes: number | null;
  problem: string | null;
}

export interface UsageRow {
  start_time: number;
  tenant: string | null;
  model?: string;
  requests: number;
  prompt_tokens: number;
  cached_tokens: number;
  output_tokens: number;
  device_seconds: number;
}
