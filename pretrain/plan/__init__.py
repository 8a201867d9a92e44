"""What a launch would do, before it does it: sizes, memory, traffic, time, and everything that is wrong with it."""
