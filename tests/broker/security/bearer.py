"""A validator of tokens for tests: `user` is valid until 2100, `user:SECONDS` until then."""

END_OF_TIME = 4_102_444_800.0


def validate(token: str) -> tuple[str, float]:
    """Return user and end. Raises ValueError for tokens that begin with a dash."""
    user, _, end = token.partition(":")
    if user.startswith("-"):
        raise ValueError("it is signed by another issuer")
    if user == "broken":
        raise RuntimeError("the validator is broken")
    return user, float(end) if end else END_OF_TIME


NOT_A_FUNCTION = 1
