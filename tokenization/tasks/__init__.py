"""How tasks run: processes of this machine, Ray, Slurm; completion markers; nothing done twice."""
