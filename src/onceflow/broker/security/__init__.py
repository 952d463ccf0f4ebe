"""Security: certificates of listeners, and the identity of clients."""
