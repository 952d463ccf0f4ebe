"""The dashboard: one ASGI app that shows the counts live.

`sources` reads Redis and the log, `board` keeps the last results, `rates` computes rates from finished micro-batches,
`feed` polls for all open pages, `app` serves HTTP, `server` listens. The page itself is in `static/`.
"""
