"""Live servers: ``diagnose`` one once, ``watch`` it for days."""
