"""Verify a presigned form, the one request to the emulated AWS that needs no signed header, and write it anew.

The emulator would read the form by other rules than ours. So it gets a form that we write from the fields that we verified.
(https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-HTTPPOSTForms.html)
"""

import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from local.post_policies import check_policy
from local.signatures import ALGORITHM, AccessKey, BadSignature, sign

MAX_FIELDS_BYTES: Final = 65_536  # until the content of the file
_CONTENT_TYPE: Final = re.compile(r'multipart/form-data; ?boundary=("?)([A-Za-z0-9\'()+_,./:=?-]{1,70})\1', re.IGNORECASE)
_DISPOSITION: Final = re.compile(
    rb'content-disposition: ?form-data; ?name="([A-Za-z0-9_.-]+)"(?:; ?filename="[^"\x00-\x1f\x7f]*")?', re.IGNORECASE
)
_PART_TYPE: Final = re.compile(rb"content-type: ?[\x20-\x7e]*", re.IGNORECASE)
_CREDENTIAL: Final = re.compile(r"([A-Za-z0-9]+)/(\d{8})/([a-z0-9-]+)/s3/aws4_request")
_FILENAME_VARIABLE: Final = "${filename}"


@dataclass(frozen=True, slots=True)
class VerifiedForm:
    """The fields of a form whose signature and policy allow it. The content of its file begins at ``start``, and has at least
    ``smallest`` and at most ``largest`` bytes. ``end`` ends it."""

    fields: Mapping[str, str]
    start: int
    end: bytes
    smallest: int
    largest: int

    @property
    def longest(self) -> int:
        """Return how many bytes a form with the largest file has."""
        return self.start + self.largest + len(self.end) + len(b"--\r\n")


def boundary(content_type: str) -> bytes:
    """Return the boundary of a form's parts.

    Raises:
        BadSignature: the content is not a form.
    """
    match = _CONTENT_TYPE.fullmatch(content_type)
    if match is None:
        raise BadSignature("An unsigned request must be a presigned form: multipart/form-data.")
    return match[2].encode()


def verify_form(start: bytes, boundary: bytes, bucket: str, key: AccessKey) -> VerifiedForm:
    """Verify the fields of a form to ``bucket``. ``start`` is its first ``MAX_FIELDS_BYTES``, or all of it.

    Raises:
        BadSignature: the form is malformed, is not signed with ``key``, or does not meet its policy.
    """
    opening, end = b"--" + boundary + b"\r\n", b"\r\n--" + boundary
    fields: dict[str, str] = {}
    at = 0
    while True:
        if not start.startswith(opening, at):
            raise BadSignature("The form is malformed.")
        head_end = start.find(b"\r\n\r\n", at)
        value = head_end + 4
        if head_end < 0:
            raise BadSignature("The form has no file, or its fields are too long.")
        name = _name(start[at + len(opening) : head_end])
        if name == "file":
            smallest, largest = _verify(fields, bucket, key)
            return VerifiedForm(fields, value, end, smallest, largest)
        value_end = start.find(end, value)
        if value_end < 0:
            raise BadSignature("The form has no file, or its fields are too long.")
        if name in fields:
            raise BadSignature(f"The form has the field {name} twice.")
        fields[name] = _text(start[value:value_end])
        at = value_end + len(b"\r\n")


def cut_file(form: bytearray, verified: VerifiedForm) -> None:
    """Reduce ``form`` to the content of its file.

    Raises:
        BadSignature: the file is not the last field.
    """
    end = form.find(verified.end, verified.start)
    if end < 0 or bytes(form[end + len(verified.end) :]) not in {b"--", b"--\r\n"}:
        raise BadSignature("The file must be the last field of the form.")
    del form[end:]
    del form[: verified.start]


def write_form(fields: Mapping[str, str], file: bytearray) -> tuple[str, bytes]:
    """Return the content type of a form with ``fields`` and then ``file``, and the form."""
    # Nobody can guess it, so no value contains it.
    own = secrets.token_hex(20)
    parts = [f'--{own}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
    head = "".join([*parts, f'--{own}\r\nContent-Disposition: form-data; name="file"; filename="file"\r\n\r\n'])
    return f"multipart/form-data; boundary={own}", b"".join([head.encode(), file, f"\r\n--{own}--\r\n".encode()])


def _name(head: bytes) -> str:
    """Return the name in the headers of a part: its disposition, and perhaps its type, each in one line."""
    lines = head.split(b"\r\n")
    names = [match[1] for line in lines if (match := _DISPOSITION.fullmatch(line))]
    types = [line for line in lines if _PART_TYPE.fullmatch(line)]
    if len(names) != 1 or len(types) > 1 or len(names) + len(types) != len(lines):
        raise BadSignature("A part of the form has other headers than Content-Disposition with a name, and Content-Type.")
    return names[0].decode().lower()


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise BadSignature("A field of the form is not UTF-8.") from None


def _verify(fields: Mapping[str, str], bucket: str, key: AccessKey) -> tuple[int, int]:
    """Check the signature and the policy, and return the smallest and the largest size of the file."""
    credential = _CREDENTIAL.fullmatch(fields.get("x-amz-credential", ""))
    if credential is None or fields.get("x-amz-algorithm") != ALGORITHM:
        raise BadSignature("The form is not signed.")
    key_id, date, region = credential.groups()
    expected = sign(fields.get("policy", ""), key, date, region, "s3")
    given = fields.get("x-amz-signature", "")
    if not hmac.compare_digest(f"{key.id}/{expected}".encode(), f"{key_id}/{given}".encode()):
        raise BadSignature("The form is not signed with the access key of this start.")
    # The emulator would fill it in after our check.
    if any(_FILENAME_VARIABLE in value for value in fields.values()):
        raise BadSignature(f"The emulated AWS takes no forms with {_FILENAME_VARIABLE}.")
    return check_policy(fields, bucket)
