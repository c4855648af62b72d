// Where the cached part of a prompt was found.

import type { TierTokens } from "../../api/types";
import type { Stats } from "../../history/tree";

const WHERE: Record<keyof TierTokens, string> = {
  device: "device memory",
  host: "host memory",
  disk: "the disk",
  object: "the object store",
};

export interface TierPart {
  tier: keyof TierTokens;
  tokens: number;
  /** As in `read from the disk`. */
  where: string;
}

/** Returns the cached tokens by the tier that had them, the nearest first. Those of which nothing is told were near. */
export function cachedParts({ cachedTokens, cachedTiers }: Stats): TierPart[] {
  const tiers = cachedTiers ?? { device: cachedTokens, host: 0, disk: 0, object: 0 };
  return (Object.keys(WHERE) as (keyof TierTokens)[])
    .map((tier) => ({ tier, tokens: tiers[tier], where: WHERE[tier] }))
    .filter(({ tokens }) => tokens > 0);
}
