"""The live page: one ASGI app that shows what is counted, as it is counted.

`sources` asks Redis and the log, `board` keeps what they last said, `rates` turns finished micro-batches into a rate,
`feed` polls for all open pages at once, `app` answers HTTP, `server` listens. The page itself lies in `static/`.
"""
