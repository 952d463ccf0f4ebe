"""Security: certificates of listeners, the identity of clients, and what they may do."""
