"""What is wrong with a play, although nobody knows the failure yet."""
