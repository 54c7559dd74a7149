"""What runs inside an engine's environment, under another interpreter. Never imports the harness."""
