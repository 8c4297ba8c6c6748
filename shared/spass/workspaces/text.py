"""Tell text from other content."""


def decode_text(body: bytes) -> str | None:
    """Return ``body`` as text, or None if it is not UTF-8 or holds NUL, as git and grep decide."""
    if b"\0" in body:
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None
