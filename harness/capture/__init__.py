"""From what was recorded elsewhere (HAR, batch files, engines' request logs) to a case."""
