"""The broker's metrics: traffic counted with each request, the rest gathered from the node at each scrape.

The package is loaded only with `metrics.port`; without it, no request is measured.
"""
