"""Several servers in one look: replicas, and pairs of a prefill and a decode server."""
