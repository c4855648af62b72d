"""GLM-4: half of each head is rotated. GLM-4-0414 has norms before and behind attention and MLP."""
