"""Handlers, one module for each API or family of APIs: a request in, a response out."""
