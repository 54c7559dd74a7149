"""What runs inside an engine's environment: another interpreter. Never imports the harness."""
