"""Transactions: the coordinator, its records, and the wire."""
