"""Security: who a client is."""
