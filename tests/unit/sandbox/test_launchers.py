"""``SPASS_SANDBOX`` selects where code runs, without starting anything"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from spass.aws.functions import LambdaFunction
from spass.core.errors import SandboxUnavailable
from spass.sandbox import launchers
from spass.sandbox.launchers import UnknownSandbox, missing_for_processes, select_sandbox
from spass.web.services import Settings
from tests.process_starts import record_process_starts

FUNCTION = {"SPASS_SANDBOX_FUNCTION": "spass-code"}


@pytest.fixture
def without_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.sandbox.launchers.missing_for_processes", lambda: "the kernel has no Landlock")


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        (FUNCTION, "lambda"),
        ({**FUNCTION, "SPASS_SANDBOX": "auto"}, "lambda"),
        ({**FUNCTION, "SPASS_SANDBOX": "lambda"}, "lambda"),
        ({**FUNCTION, "SPASS_SANDBOX": "none"}, "none"),
        ({"SPASS_SANDBOX": "lambda"}, "none"),
        ({**FUNCTION, "SPASS_SANDBOX": "lambda", "AWS_ENDPOINT_URL": "http://127.0.0.1:4566"}, "none"),
        ({**FUNCTION, "SPASS_SANDBOX": "lambda", "AWS_ENDPOINT_URL_LAMBDA": "http://127.0.0.1:4566"}, "none"),
    ],
)
def test_the_environment_selects_the_launcher(environment: Mapping[str, str], name: str) -> None:
    with record_process_starts() as starts:
        sandbox = select_sandbox(environment, LambdaFunction)
    assert sandbox.name == name
    assert (sandbox.unavailable is None) == (name != "none")
    assert starts == []


def test_an_emulated_function_is_never_selected() -> None:
    emulated = {**FUNCTION, "AWS_ENDPOINT_URL": "http://127.0.0.1:4566"}
    assert select_sandbox(emulated, LambdaFunction).name != "lambda"
    assert "emulated" in (select_sandbox({**emulated, "SPASS_SANDBOX": "lambda"}, LambdaFunction).unavailable or "")


@pytest.mark.skipif(missing_for_processes() is not None, reason=str(missing_for_processes()))
def test_a_linux_with_landlock_runs_code_in_processes() -> None:
    assert select_sandbox({}).name == select_sandbox({"SPASS_SANDBOX": "process"}).name == "process"


@pytest.mark.usefixtures("without_landlock")
def test_without_anything_code_does_not_run_and_the_reason_says_why() -> None:
    sandbox = select_sandbox({}, LambdaFunction)
    assert sandbox.name == "none"
    for reason in ("SPASS_SANDBOX_FUNCTION names no function", "the kernel has no Landlock", "neither docker nor podman"):
        assert reason in (sandbox.unavailable or "")
    with pytest.raises(SandboxUnavailable, match="no Landlock"):
        sandbox.open("tenant", "owner")


@pytest.mark.usefixtures("without_landlock")
@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_without_landlock_containers_run_code(tmp_path: Path, runtime: str) -> None:
    (tmp_path / runtime).touch(mode=0o755)
    with record_process_starts() as starts:
        assert select_sandbox({"PATH": str(tmp_path)}).name == "container"
    assert starts == []


@pytest.mark.parametrize("name", ["proces", "docker", "NONE", " none", "process,lambda", "0"])
def test_an_unknown_name_stops_the_start(name: str) -> None:
    with pytest.raises(UnknownSandbox, match="Use one of: auto, lambda, process,"):
        Settings.from_environment({"SPASS_SANDBOX": name})
    with pytest.raises(UnknownSandbox):
        select_sandbox({"SPASS_SANDBOX": name})


def test_a_likely_name_is_suggested() -> None:
    message = (
        "SPASS_SANDBOX='proces' is not a sandbox; did you mean 'process'? Use one of: auto, lambda, process, container, none."
    )
    with pytest.raises(UnknownSandbox) as caught:
        select_sandbox({"SPASS_SANDBOX": "proces"})
    assert str(caught.value) == message


def test_an_empty_value_is_none_given() -> None:
    assert Settings.from_environment({"SPASS_SANDBOX": ""}) == Settings.from_environment({})
    assert launchers.chosen_launcher({"SPASS_SANDBOX": ""}) == "auto"
