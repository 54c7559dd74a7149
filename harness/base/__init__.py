"""What every folder may use: units, and the reader of processes."""
