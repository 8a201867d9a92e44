"""What every stage needs and no stage owns."""
