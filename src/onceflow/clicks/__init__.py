"""The application: click events, where they come from, how they are counted, and whether the count is right.

`events` has the rules, `generator` and `replay` make events, `counting` and `pipeline` count them in Spark into Redis,
`results` reads the counts, `verify` recounts the log with code of its own (`recount`) and compares.
"""
