"""Test the expiry of a presigned form: at the requested time or with the credentials that signed it, whichever is earlier."""

import asyncio
import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import botocore.session
import botocore.signers
import pytest
from botocore.credentials import Credentials, RefreshableCredentials

from spass.aws import bucket
from spass.aws.clients import Aws
from spass.core.ids import TenantId
from spass.store.bucket import PresignedPost

NOW = datetime(2026, 4, 30, 8, 14, 22, tzinfo=UTC)

Presign = Callable[[Credentials], PresignedPost]


@pytest.fixture
def presign(monkeypatch: pytest.MonkeyPatch) -> Presign:
    """Return a function that signs a form at ``NOW``, for an hour, with its argument."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setattr(botocore.signers, "get_current_datetime", lambda: NOW)
    monkeypatch.setattr(bucket, "now_s", lambda: int(NOW.timestamp()))

    def sign(credentials: Credentials) -> PresignedPost:
        monkeypatch.setattr(botocore.session.Session, "get_credentials", lambda _: credentials)
        store = Aws(table="table", bucket="bucket").for_tenant(TenantId("acme"))
        return asyncio.run(store.uploads.presign("i/a.md", size=10, content_type="text/markdown", seconds=3600))

    return sign


def seconds_valid(form: PresignedPost) -> float:
    """Return the seconds from ``NOW`` until the form expires. Check that its policy expires at the same time."""
    policy = json.loads(base64.b64decode(form.fields["policy"]))
    assert datetime.fromisoformat(policy["expiration"]).timestamp() == form.expires_at
    return form.expires_at - NOW.timestamp()


def temporary(*, seconds: int, renewed_for: int = 0, renew: Callable[[], dict[str, str]] | None = None) -> RefreshableCredentials:
    """Return credentials that expire ``seconds`` after ``NOW``. After a renewal they expire ``renewed_for`` seconds after it."""

    def default_renewal() -> dict[str, str]:
        expiry = (NOW + timedelta(seconds=renewed_for)).isoformat()
        return {"access_key": "AKIDRENEWED", "secret_key": "s", "token": "t", "expiry_time": expiry}

    expiry = NOW + timedelta(seconds=seconds)
    return RefreshableCredentials("AKID", "s", "t", expiry, renew or default_renewal, "test", time_fetcher=lambda: NOW)


def test_a_form_expires_after_the_requested_seconds_or_with_its_credentials(presign: Presign) -> None:
    assert seconds_valid(presign(temporary(seconds=12 * 3600))) == 3600
    assert seconds_valid(presign(temporary(seconds=20 * 60))) == 20 * 60


def test_credentials_that_expire_soon_are_renewed_before_they_sign(presign: Presign) -> None:
    form = presign(temporary(seconds=30, renewed_for=6 * 3600))
    assert form.fields["x-amz-credential"].startswith("AKIDRENEWED/")
    assert seconds_valid(form) == 3600


def test_credentials_that_cannot_be_renewed_sign_until_they_expire(presign: Presign) -> None:
    def renew() -> dict[str, str]:
        raise ConnectionError("no answer")

    assert seconds_valid(presign(temporary(seconds=12 * 60, renew=renew))) == 12 * 60


def test_session_credentials_without_an_expiry_sign_for_one_invocation(presign: Presign) -> None:
    assert seconds_valid(presign(Credentials("AKID", "s", "t"))) == 15 * 60


def test_credentials_of_a_user_do_not_expire(presign: Presign) -> None:
    assert seconds_valid(presign(Credentials("AKID", "s"))) == 3600
