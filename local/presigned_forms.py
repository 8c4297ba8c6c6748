"""Verify the signature of a presigned form, the one request to the emulated AWS that needs no signed header.

The emulator checks the rest: whether the form meets the conditions of its policy, and whether the policy has expired.
(https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-HTTPPOSTForms.html)
"""

import hmac
import re
from typing import Final

from local.signatures import ALGORITHM, AccessKey, BadSignature, sign

MAX_FIELDS_BYTES: Final = 65_536
_CONTENT_TYPE: Final = re.compile(r'multipart/form-data; ?boundary=("?)([A-Za-z0-9\'()+_,./:=?-]{1,70})\1', re.IGNORECASE)
_NAME: Final = re.compile(r'form-data; ?name="([^"]*)"(; ?filename="[^"]*")?', re.IGNORECASE)
_CREDENTIAL: Final = re.compile(r"([A-Za-z0-9]+)/(\d{8})/([a-z0-9-]+)/s3/aws4_request")


def delimiter(content_type: str) -> bytes:
    """Return what begins each part of a form.

    Raises:
        BadSignature: the content is not a form.
    """
    match = _CONTENT_TYPE.fullmatch(content_type)
    if match is None:
        raise BadSignature("An unsigned request must be a presigned form: multipart/form-data.")
    return b"--" + match[2].encode()


def file_start(start: bytes, delimiter: bytes, key: AccessKey) -> int | None:
    """Return where the content of the form's file begins, or None if ``start``, the form's first bytes, ends before that.

    Raises:
        BadSignature: the form is malformed, or is not signed with ``key``.
    """
    fields: dict[str, str] = {}
    at = 0
    while True:
        end = start.find(b"\r\n\r\n", at)
        if end < 0:
            return None
        head = start[at:end]
        if not head.startswith(delimiter + b"\r\n") or head.count(delimiter) > 1:
            raise BadSignature("The form is malformed.")
        name, value = _name(head.decode("latin-1")), end + 4
        if name == "file":
            _verify(fields, key)
            return value
        at = start.find(delimiter, value)
        if at < 0:
            return None
        # The emulator would use the last of two fields.
        if name in fields:
            raise BadSignature(f"The form has the field {name} twice.")
        fields[name] = start[value:at].removesuffix(b"\r\n").decode("latin-1")


def check_end(form: bytes, start: int, delimiter: bytes) -> None:
    """Check that the file, whose content begins at ``start``, is the last field: the emulator would take a later one too.

    Raises:
        BadSignature: another field follows.
    """
    end = form.find(delimiter, start)
    if end < 0 or form[end + len(delimiter) :].strip(b"\r\n") != b"--":
        raise BadSignature("The file must be the last field of the form.")


def _name(head: str) -> str:
    dispositions = [line.partition(":")[2] for line in head.split("\r\n") if line.lower().startswith("content-disposition")]
    match = _NAME.fullmatch(dispositions[0].strip()) if len(dispositions) == 1 else None
    if match is None:
        raise BadSignature("A field of the form has no name.")
    return match[1].lower()


def _verify(fields: dict[str, str], key: AccessKey) -> None:
    credential = _CREDENTIAL.fullmatch(fields.get("x-amz-credential", ""))
    if credential is None or fields.get("x-amz-algorithm") != ALGORITHM:
        raise BadSignature("The form is not signed.")
    key_id, date, region = credential.groups()
    expected = sign(fields.get("policy", ""), key, date, region, "s3")
    given = fields.get("x-amz-signature", "")
    if not hmac.compare_digest(f"{key.id}/{expected}".encode(), f"{key_id}/{given}".encode()):
        raise BadSignature("The form is not signed with the access key of this start.")
