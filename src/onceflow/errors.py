"""The one exception that every room's errors come from."""


class OnceflowError(Exception):
    """Something a user can act on, told in one sentence: what happened, with its values, and the remedy.

    Each room derives one class per thing that a caller can react to. They become exit codes, wire error codes
    or JSON only at the edge: in `cli`, in a broker's handler, in the page.
    """
