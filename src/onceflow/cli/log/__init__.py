"""`onceflow log`: look into the files of a log."""
