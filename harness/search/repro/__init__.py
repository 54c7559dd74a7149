"""A bug report, tested: its server's command and its client, on a fresh server of that
release."""
