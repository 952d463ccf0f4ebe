"""The transaction coordinator: KIP-98 as a plain 3.x broker speaks it (transaction version 0)."""
