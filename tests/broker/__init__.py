"""The broker room."""
