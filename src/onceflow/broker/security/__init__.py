"""Security: certificates of listeners, SASL, credentials, the identity of clients, and what they may do."""
