"""What every folder may use: units, options, and the reader of processes."""
