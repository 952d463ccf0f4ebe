"""Generator of docs/api.md from the table of routes: `python -m onceflow.dashboard.api.reference > docs/api.md`."""

from onceflow.dashboard.api.refusals import REFUSALS
from onceflow.dashboard.api.routes import PREFIX, ROUTES
from onceflow.dashboard.api.table import Route

INTRODUCTION = """\
# HTTP API

This page is generated from the server's table of routes (`python -m onceflow.dashboard.api.reference > docs/api.md`).
`onceflow dashboard` serves the same at `/api`, and as OpenAPI 3.1 at `/api/openapi.json`.

```console
$ onceflow dashboard --archive .onceflow/archive
$ curl 'http://127.0.0.1:8080/api/v1/series?per=hour&by=os&from=-24h'
$ curl 'http://127.0.0.1:8080/api/v1/top?dimension=page&where=os%3DiOS&format=csv'
```

- **Requests** are GETs that only read. An unknown or a repeated parameter is refused; only `where` may be repeated.
- **Responses** are JSON: a list of objects, or one object. `format=csv` returns the same rows as CSV; text that a
  spreadsheet would take for a formula begins with an apostrophe there. A count above 2^53 - 1 is decimal text in JSON.
- **Times** are ms since 1970, also in parameters, which take ISO 8601, `-24h` before now, and `now`, too. A range
  includes its start and excludes its end; its default is the 24 hours up to the newest event.
- **Sources**: the header `Onceflow-Source` is `counts` (Redis, as of the last micro-batch), `archive` (archive and log,
  as of the request), `live` (counts and log) or `log`. Without filters the numbers are the counts. With `where`, before
  the retention of the counts, and for what the job does not count, they come from the archive.
- **Pages**: if there may be more rows, the header `Link` has the next page with `rel="next"`. A page of `users` with
  `search` may have few rows, or none, and still a next page.
- **Limits**: a query that would read too much is refused before any work. At most two queries read the archive at
  a time, and 16 wait; one is cancelled after 20 s, or when its client disconnects.

## Routes
"""

ERRORS = """\
## Errors

An error is `{"error": MESSAGE, "code": CODE}`, and for a parameter that is not valid its name as `parameter`.
"""


def page() -> str:
    """Return the page."""
    rows = [f"| {status} | `{code}` | {meaning} |" for _, status, code, meaning in REFUSALS]
    errors = "\n".join(["| status | code | when |", "|---|---|---|", *dict.fromkeys(rows)])
    return "\n".join([INTRODUCTION, *map(_section, ROUTES), f"{ERRORS}\n{errors}\n"])


def _section(route: Route) -> str:
    parameters = [
        f"| `{one.name}` | {one.shown_value} | {one.help} |".replace("DIMENSION=VALUE", "`DIMENSION=VALUE`")
        for one in route.parameters
    ]
    table = ["| parameter | value | meaning |", "|---|---|---|", *parameters, ""] if parameters else []
    names = ", ".join(f"`{field.name}`" for field in route.fields)
    kind = "A list of" if route.is_list else "One object with"
    return "\n".join([f"### {PREFIX}{route.path}", "", route.summary, "", *table, f"{kind} {names}.", ""])


if __name__ == "__main__":
    print(page(), end="")
