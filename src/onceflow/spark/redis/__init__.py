"""The Redis sink: data and marker written by one Lua script."""
