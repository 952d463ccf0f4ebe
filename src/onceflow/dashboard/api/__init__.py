"""The HTTP API of the numbers: `/api/v1/…`, its description, and the threads that compute it.

`table` has the types of the one table of routes, `routes` the table, from which requests are checked and served and
`openapi` describes them. `service` asks the read model, the archive and the log, in the bounded threads of `workers`.
`rows` writes JSON and CSV, `refusals` maps errors to statuses.
"""
