"""Pictures in tar archives, read in place: WebDataset's shards and ImageNet's own archives."""
