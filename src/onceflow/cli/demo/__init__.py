"""`onceflow demo` and `onceflow reset`: the whole pipeline on one machine."""
