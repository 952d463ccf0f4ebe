"""`onceflow log`: inspect log files."""
