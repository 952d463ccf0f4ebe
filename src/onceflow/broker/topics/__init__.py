"""Topics, their configurations and the metadata log that remembers them."""
