"""The application: producing, counting and verifying click events.

`events` has the rules, `ingest` writes events to a topic, `counting` and `pipeline` count them in Spark into Redis.
`results` reads the counts. `verify` recounts the log with independent code (`recount`) and compares.
"""
