"""What training would see of a folder of shards, and what is wrong with it, found before a GPU is at work."""
