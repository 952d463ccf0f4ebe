"""The application: producing, counting, archiving and verifying click events.

`events` has the rules, `ingest` writes events to a topic, `columns` and `pipeline` count them in Spark into Redis.
`results` reads the counts. `archive` keeps events as Parquet files, written by `archive_job` in Spark; `queries` and
`report` read them. `verify` recounts the log with independent code (`recount`) and compares.
"""
