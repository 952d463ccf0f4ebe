"""`onceflow sink`: show and reset the state of exactly-once sinks."""
