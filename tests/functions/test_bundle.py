"""The bundle of the functions, with the byte code of the interpreter at hand, works: each module is imported, and one answers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from infra import bundling
from tests.functions.gateway import BUCKET, TABLE, event, write_operators_files

ROOT: Final = Path(__file__).parents[2]
# The bundle's sources are gone, so that only its byte code can run. The module of shared functions reads which routes it serves.
IMPORT: Final = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
loaded = [module for name, module in sys.modules.items() if name.partition(".")[0] in ("spass", "functions")]
written_out = [one for module in loaded for one in vars(module).values() if isinstance(one, type)
               and one.__module__ == module.__name__ and type(vars(one).get("__dataclass_fields__")).__name__ == "Fields"]
print(json.dumps([len(loaded), len(written_out)]))
"""
ANSWER: Final = """
import json, sys
from moto import mock_aws
mock_aws().start()
import boto3
keys = {"pk": "HASH", "sk": "RANGE"}
boto3.client("dynamodb").create_table(
    TableName=sys.argv[1], BillingMode="PAY_PER_REQUEST",
    AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in keys],
    KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in keys.items()],
)
from functions.agents.list import handler
print(json.dumps(handler(json.load(sys.stdin), None)))
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the function code that a deployment would upload, if Lambda had this interpreter."""
    folder = tmp_path_factory.mktemp("bundle") / "code"
    bundling.function_code(
        folder,
        sources=[ROOT / "functions", ROOT / "shared" / "spass"],
        excluded=[ROOT / "shared" / "spass" / name for name in ("testing", "sandbox/foreign")],
        start_script=ROOT / "infra" / "assets" / "run.sh",
        compiler=Path(sys.executable),
    )
    for source in folder.rglob("*.py"):
        source.write_text("raise SystemExit('the byte code was not used')")
    return folder


def run(bundle: Path, program: str, *arguments: str, given: object = None, **environment: str) -> Any:
    path = {"PYTHONPATH": str(bundle), "PYTHONDONTWRITEBYTECODE": "1", "AWS_DEFAULT_REGION": "eu-central-1"}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(
        command,
        env=os.environ | path | environment,
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_function_is_imported_from_its_byte_code(bundle: Path) -> None:
    files = [file.relative_to(bundle) for file in (bundle / "functions").rglob("*.py")]
    names = [".".join(file.with_suffix("").parts) for file in files]
    loaded, written_out = run(bundle, IMPORT, *sorted(names), SPASS_ROUTES="functions.meta.health")
    assert loaded > len(names) > 60
    assert written_out > 200


def test_a_function_answers_from_its_byte_code(bundle: Path, tmp_path: Path) -> None:
    settings = write_operators_files(tmp_path)
    request = event("GET", "/a1/agents", "/a1/agents", {"Authorization": "Bearer demo-token", "SPASS-User-Id": "ann"}, b"")
    variables = {
        "SPASS_CONFIG": str(settings.config),
        "SPASS_AGENTS": str(settings.agents),
        "SPASS_TABLE": TABLE,
        "SPASS_BUCKET": BUCKET,
    }
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    answer = run(bundle, ANSWER, TABLE, given=request, **variables, **keys)
    assert answer["statusCode"] == 200, answer
    assert [agent["name"] for agent in json.loads(answer["body"])["agents"]] == ["costly", "counting", "plain", "reading"]
