"""Run the ``openai`` package's own tests of chat completions, embeddings and models against a running gateway.

They come from its source distribution (``make test`` fetches it, pinned by its hash). They run unchanged, in a separate process
with the settings of their own project. All tests in ``DEVIATIONS`` must fail, and all others must pass.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path
from typing import Final

from tests.e2e.conftest import running_site
from tests.e2e.scripted_gateway import scripted_site

SOURCE: Final = Path(sys.prefix) / "openai-tests"
FILES: Final = ("chat/test_completions.py", "test_embeddings.py", "test_models.py")
TOKEN: Final = "My API Key"  # the key that the tests send
CHAT: Final = "gpt-6-astra"
EMBEDDING: Final = "text-embedding-3-small"
SECONDS: Final = 240

_FORMS: Final = ("method", "raw_response", "streaming_response")

DEVIATIONS: Final[dict[str, str]] = {
    "completions: method_create_with_all_params_overload_1": "asks for audio, functions, logprobs and more, refused by name",
    "completions: method_create_with_all_params_overload_2": "asks for audio, functions, logprobs and more, refused by name",
    "completions: method_list_with_all_params": "nothing of a chat is stored",
    **{
        f"completions: {form}_{verb}": "nothing of a chat is stored"
        for form in _FORMS
        for verb in ("retrieve", "update", "list", "delete")
    },
    **{f"models: {form}_delete": "models are the operator's, in gateway.yaml" for form in _FORMS},
    **{
        f"embeddings: {form}_create[{strict}]": "the SDK asks for base64, which its strict reading refuses, OpenAI's too"
        for form in _FORMS
        for strict in ("strict", "aiohttp")
    },
    "embeddings: method_create_with_all_params": "asks for one dimension of a model that has others; vectors are never cut",
}
"""Tests that fail here, with reasons. An entry without a variant covers all variants. Sync and async tests share one."""


def test_the_suite_passes_except_for_the_listed_deviations(tmp_path: Path) -> None:
    outcomes = _run(tmp_path)
    assert len(outcomes) > len(DEVIATIONS)
    deviations = {name: {name, name.partition("[")[0]} & set(DEVIATIONS) for name in outcomes}
    assert {name for name, passed in outcomes.items() if not all(passed)} == {name for name in outcomes if deviations[name]}
    assert {name for name, passed in outcomes.items() if any(passed)} == {name for name in outcomes if not deviations[name]}
    assert set().union(*deviations.values()) == set(DEVIATIONS)


def _run(folder: Path) -> dict[str, list[bool]]:
    """Run the suite. Return for each test whether its sync and async forms passed."""
    assert SOURCE.is_dir(), f"{SOURCE} does not exist: run `make test`, which fetches it"
    report = folder / "report.xml"
    with running_site(folder, scripted_site("own", TOKEN, [CHAT], [EMBEDDING])) as gateway:
        result = subprocess.run(
            [sys.executable, "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:schemathesis",
             "-p", "no:langsmith_plugin", "--tb=no", f"--junitxml={report}", *(f"tests/api_resources/{file}" for file in FILES)],
            cwd=SOURCE,
            env={"PATH": os.environ["PATH"], "TEST_API_BASE_URL": f"{gateway.url}/v1"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )  # fmt: skip
    assert report.exists(), result.stdout + result.stderr
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for case in ET.parse(report).iter("testcase"):
        assert case.find("skipped") is None, f"{case.get('name')} was skipped"
        file = case.get("classname", "").split(".")[-2].removeprefix("test_")
        name = case.get("name", "").removeprefix("test_")
        outcomes[f"{file}: {name}"].append(case.find("failure") is None and case.find("error") is None)
    return outcomes
