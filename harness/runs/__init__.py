"""One run, from what was asked for to the verdict and the incident."""
