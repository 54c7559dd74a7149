"""One file a failure mode: its definition, its traffic, its signature. Nothing else."""
