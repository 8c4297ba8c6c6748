"""``environments.yaml`` changes and adds environments, and a mistake in it stops the synthesis with its place."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from infra.config_files import ROOT, environments_file
from infra.environments import DEV, ENVIRONMENTS, PROD, Domain, Environment, Restored
from infra.environments_file import FIELDS, EnvironmentsFileInvalid, load_environments

from .conftest import ENVIRONMENTS_GUIDE

CERTIFICATE = "arn:aws:acm:eu-central-1:123456789012:certificate/0a1b2c3d"
XRAY = "https://xray.eu-central-1.amazonaws.com/v1/traces"


def load(folder: Path, text: str) -> dict[str, Environment]:
    file = folder / "environments.yaml"
    file.write_text(text, encoding="utf-8")
    return load_environments(file)


def test_the_file_overrides_settings_and_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    loaded = load(tmp_path, "prod:\n  followers: 40\n  region: eu-west-1\ndev:\n")
    assert loaded == {**ENVIRONMENTS, "prod": replace(PROD, followers=40, region="eu-west-1")}


def test_an_added_environment_has_the_settings_of_the_one_that_it_is_like(tmp_path: Path) -> None:
    loaded = load(tmp_path, "prod-us: {like: prod, region: us-east-1, compaction_steps: null}\nteam: {like: dev}\n")
    assert [*loaded] == [*ENVIRONMENTS, "prod-us", "team"]
    assert loaded["prod-us"] == replace(PROD, name="prod-us", region="us-east-1", compaction_steps=None)
    assert loaded["team"] == replace(DEV, name="team")


def test_the_mappings_of_a_domain_and_of_restored_names_are_read(tmp_path: Path) -> None:
    domain = f"domain: {{name: api.example.org, certificate: '{CERTIFICATE}', keep_endpoint: true}}"
    loaded = load(tmp_path, f"prod:\n  {domain}\n  restored: {{table: back, bucket: objects-of-back}}\n")
    assert loaded["prod"].domain == Domain(name="api.example.org", certificate=CERTIFICATE, keep_endpoint=True)
    assert loaded["prod"].restored == Restored(table="back", bucket="objects-of-back")


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "{}"])
def test_an_empty_file_changes_nothing(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text) == load_environments(None) == ENVIRONMENTS


WRONG = {
    # An unknown key or name.
    "prod: {folowers: 3}": "1: prod.folowers = 3: there is no such key, did you mean followers?; the keys are region, account,",
    "prod:\n  name: other": "2: prod.name = other: there is no such key; the keys are region,",
    "prod:\n  trace: {endpoint: x}": "2: prod.trace = this mapping: there is no such key",
    "dev:\n  rate: 5\nprdo:\n  rate: 6": "3: prdo = this mapping: there is no such environment, did you mean prod?; "
    "to add it, write like: one of dev, staging, prod",
    "prod: {like: dev}": "1: prod.like = dev: only an added environment has this key, and prod is not added",
    "team: {like: test}": "1: team.like = test: is not allowed; write one of dev, staging, prod",
    "team: {like: [dev]}": "1: team.like = this list: is not allowed; write one of dev, staging, prod",
    "Team: {like: dev}": "1: Team = this mapping: write 2 to 16 lower-case letters, digits and hyphens as its name, ",
    "a-name-of-17-long: {like: dev}": "1: a-name-of-17-long = this mapping: write 2 to 16 lower-case letters, digits and hyphens",
    # The form of the file.
    "dev:\n  rate: 5\nprod: {}\ndev:\n  rate: 6": "4: dev: it is in line 1 already; keep one of both",
    "dev:\n  rate: 5\n  rate: 6": "3: dev.rate: it is in line 2 already; keep one of both",
    "- dev": "1: this list: write a mapping from the name of an environment, one of dev, staging, prod, to its settings",
    "dev: 3": "1: dev = 3: write a mapping of settings: region, account,",
    "dev:\n  region: [": "2: not valid YAML: ",
    "dev: &a {rate: 5}\nprod: *a": "2: prod = this mapping: an alias is not allowed; write the value out",
    "dev: &a {region: *a}": "1: dev.region = this mapping: an alias is not allowed; write the value out",
    "dev: !!python/name:os.system {}": "1: dev = this mapping: the tag tag:yaml.org,2002:python/name:os.system is not "
    "allowed; write a plain value",
    "dev: {rate: !!python/name:os.system }": "1: not valid YAML: ",
    "dev:\n  contact: 2026-02-30": "2: dev.contact = 2026-02-30: is neither a number nor a date; write it in quotes",
    "dev: {rate: !!int five}": "1: dev.rate = five: is neither a number nor a date; write it in quotes",
    f"dev: {'[' * 2000}{']' * 2000}": " not valid YAML: maximum recursion depth exceeded",
    # A value that its key does not allow.
    "prod: {followers: 0}": "1: prod.followers = 0: is not allowed; write a whole number from 2 to 900, or null for no limit",
    "prod: {followers: 1}": "1: prod.followers = 1: is not allowed; write a whole number from 2 to 900",
    "prod: {followers: 901}": "1: prod.followers = 901: is not allowed; write a whole number from 2 to 900",
    "prod: {followers: '3'}": "1: prod.followers = 3: is not allowed; write a whole number from 2 to 900",
    "prod: {followers: 2.5}": "1: prod.followers = 2.5: is not allowed; write a whole number from 2 to 900",
    "prod: {compaction_steps: 900}": "1: prod.compaction_steps = 900: is not allowed; write a whole number from 1 to 899",
    "prod: {job_workers: 1000}": "1: prod.job_workers = 1000: is not allowed; write a whole number from 2 to 999",
    "prod: {run_workers: null}": "1: prod.run_workers = null: is not allowed; write a whole number from 2 to 999",
    "prod:\n  rate:": "2: prod.rate = null: is not allowed; write a whole number from 1 to 10000",
    "prod: {rate: true}": "1: prod.rate = true: is not allowed; write a whole number from 1 to 10000",
    "prod: {burst: 0}": "1: prod.burst = 0: is not allowed; write a whole number from 1 to 10000",
    "prod: {recovery_days: 36}": "1: prod.recovery_days = 36: is not allowed; write a whole number from 1 to 35",
    "prod: {audit_archive_days: 0}": "1: prod.audit_archive_days = 0: is not allowed; write a whole number from 1",
    "prod: {region: Frankfurt}": "1: prod.region = Frankfurt: is not allowed; write a region, e.g. eu-central-1",
    "prod: {account: 123456789012}": "1: prod.account = 123456789012: is not allowed; write the 12 digits of an account",
    "prod: {telemetry: 1}": "1: prod.telemetry = 1: is not allowed; write true or false",
    "prod: {waf: count}": "1: prod.waf = count: is not allowed; write true or false",
    "prod: {alarm_email: me}": "1: prod.alarm_email = me: is not allowed; write an e-mail address",
    'prod: {contact: "a\\nb"}': "1: prod.contact = a\nb: is not allowed; write an address or a page, in ASCII",
    "prod: {key: mine}": "1: prod.key = mine: is not allowed; write aws or customer",
    "prod: {tls: TLS_1_0}": "1: prod.tls = TLS_1_0: is not allowed; write one of SecurityPolicy_TLS13_1_2_PFS_PQ_2025_09, ",
    "prod: {tls: SecurityPolicy_TLS12_2018_EDGE}": "1: prod.tls = SecurityPolicy_TLS12_2018_EDGE: is not allowed; write one of ",
    "prod: {alarm_email: a@b.de, budget_usd: 0}": "1: prod.budget_usd = 0: is not allowed; write a number of dollars",
    "prod: {alarm_email: a@b.de, budget_usd: .inf}": "1: prod.budget_usd = .inf: is not allowed; write a number of dollars",
    "prod: {traces: {endpoint: 'http://a.de/v1/traces', sample: 1}}": "1: prod.traces.endpoint = http://a.de/v1/traces: is not "
    "allowed; write a URL with https and without a user",
    "prod: {traces: {endpoint: 'https://u:p@a.de/', sample: 1}}": "1: prod.traces.endpoint = https://u:p@a.de/: is not allowed",
    "prod: {traces: {endpoint: 'https://a.de:65536/', sample: 1}}": "1: prod.traces.endpoint = https://a.de:65536/: is not ",
    "prod: {traces: {endpoint: 'https://a.de/'}}": "1: prod.traces.sample: the key is missing; write a number from 0 to 1",
    "prod: {traces: {sample: 1}}": "1: prod.traces.endpoint: the key is missing; write a URL with https",
    "prod: {traces: {endpoint: 'https://a.de/', sample: 5}}": "1: prod.traces.sample = 5: is not allowed; write a number from 0",
    "prod: {traces: {endpoint: 'https://a.de/', sample: .nan}}": "1: prod.traces.sample = .nan: is not allowed; write a number",
    "prod: {traces: {endpoint: 'https://a.de/', sample: '1'}}": "1: prod.traces.sample = 1: is not allowed; write a number",
    "prod: {traces: {endpoint: 'https://a.de/', sample: 1, headers_parameter: headers}}": "1: prod.traces.headers_parameter = "
    "headers: is not allowed; write the name of a parameter in SSM",
    "prod: {traces: {endpoint: 'https://a.de/', sample: 1, sign: v4}}": "1: prod.traces.sign = v4: is not allowed; write xray",
    "prod: {traces: {endpoint: 'https://a.de/', sample: 1, header: a}}": "1: prod.traces.header = a: there is no such key; "
    "the keys are endpoint, sample, headers_parameter, sign",
    # A value that does not fit another.
    "dev:\n  rate: 5\n  alarms: true": "3: dev.alarms = true: alarms need metrics: true, because only a metric of the gateway's",
    "prod:\n  metrics: false": "2: prod.metrics = false: alarms need metrics: true",
    "prod:\n  alarms: true\n  metrics: false": "3: prod.metrics = false: alarms need metrics: true",
    "prod: {traces: {endpoint: 'https://a.de/', sample: 1, sign: xray}}": "1: prod.traces.endpoint = https://a.de/: requests are "
    "signed for X-Ray of the environment's region; write https://xray.eu-central-1.amazonaws.com/v1/traces",
    f"prod: {{traces: {{endpoint: '{XRAY}', sample: 1}}}}": f"1: prod.traces.endpoint = {XRAY}: X-Ray takes signed requests only",
    f"prod: {{traces: {{endpoint: '{XRAY}', sample: 1, sign: xray, headers_parameter: /a}}}}": "1: prod.traces.headers_parameter "
    "= /a: X-Ray reads no headers but the signature; remove this key",
    "prod: {budget_usd: 50}": "1: prod.budget_usd = 50: a budget needs alarm_email, the address that it writes to",
    "prod: {copy_to: eu-central-1}": "1: prod.copy_to = eu-central-1: eu-central-1 is the environment's own region",
    "prod:\n  region: eu-west-1\n  copy_to: eu-west-1": "3: prod.copy_to = eu-west-1: eu-west-1 is the environment's own region",
    "prod: {domain: api.example.org}": "1: prod.domain = api.example.org: is not allowed; write a mapping with name",
    "prod:\n  domain:\n    name: api.example.org": "2: prod.domain.certificate: the key is missing; write the ARN of a",
    f"prod:\n  domain:\n    name: api\n    certificate: {CERTIFICATE}": "3: prod.domain.name = api: is not allowed; write",
    "prod:\n  domain:\n    name: a.de\n    certificate: mine": "4: prod.domain.certificate = mine: is not allowed; write",
    f"prod:\n  domain:\n    name: a.de\n    certificate: {CERTIFICATE}\n    zone: a.de": "5: prod.domain.zone = a.de: is "
    "not allowed; write the id of a hosted zone",
    f"prod:\n  domain:\n    name: a.de\n    certificate: {CERTIFICATE}\n    zon: Z1": "5: prod.domain.zon = Z1: there is no such "
    "key, did you mean zone?; the keys are name, certificate, zone, keep_endpoint",
    f"prod:\n  domain:\n    name: a.de\n    certificate: {CERTIFICATE}\n  region: us-east-1": "4: prod.domain.certificate"
    f" = {CERTIFICATE}: a regional API needs a certificate of its own region, us-east-1",
    f"prod:\n  domain:\n    name: a.de\n    certificate: {CERTIFICATE}\n  account: '210987654321'": "4: prod.domain.certificate"
    f" = {CERTIFICATE}: an API needs a certificate of its own account, 210987654321",
    "prod: {restored: {}}": "1: prod.restored.table: the key is missing; write the name of a table",
    "prod: {restored: {table: a}}": "1: prod.restored.table = a: is not allowed; write the name of a table",
    "prod:\n  restored:\n    table: Spass-prod-Data-ItemsTableE2D1F4C3-X": "3: prod.restored.table = "
    "Spass-prod-Data-ItemsTableE2D1F4C3-X: this table is the environment's own; write the name of the table that a restore made",
    "us:\n  like: prod\n  restored: {table: Spass-us-Data-ItemsTableE2D1F4C3-X}": "3: us.restored.table = ",
    "prod:\n  restored: {table: back, bucket: spass-prod-data-objectsbucket5a707942-x}": "2: prod.restored.bucket = ",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_mistake_is_named_with_its_line_key_value_and_what_is_allowed(tmp_path: Path, text: str) -> None:
    with pytest.raises(EnvironmentsFileInvalid) as caught:
        load(tmp_path, text)
    (line,) = str(caught.value).split(f"\n{tmp_path}")
    assert line.startswith(f"{tmp_path / 'environments.yaml'}:{WRONG[text]}")


def test_the_table_of_another_environment_may_be_restored(tmp_path: Path) -> None:
    """E.g. a copy of the data of prod, under the name that it had there, in another region or account."""
    assert load(tmp_path, "team: {like: dev, restored: {table: Spass-prod-Data-ItemsTableE2D1F4C3-X}}")["team"].restored


def test_all_mistakes_are_listed_in_the_order_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentsFileInvalid) as caught:
        load(tmp_path, "dev:\n  rate: 0\n  burst: 0\nprod:\n  folowers: 7\n  rate: 0\nstaging: {recovery_days: 0}\n")
    starts = [line.removeprefix(f"{tmp_path / 'environments.yaml'}:").split(" =")[0] for line in str(caught.value).splitlines()]
    assert starts == ["2: dev.rate", "3: dev.burst", "5: prod.folowers", "6: prod.rate", "7: staging.recovery_days"]


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"dev: \x00"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "environments.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(EnvironmentsFileInvalid, match=r"environments\.yaml: (cannot read the file|not valid YAML)"):
        load_environments(file)


def test_the_variable_names_the_file_and_without_it_the_checkouts_own_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SPASS_ENVIRONMENTS", raising=False)
    own = ROOT / "environments.yaml"
    assert environments_file() == (own if own.exists() else None)
    monkeypatch.setenv("SPASS_ENVIRONMENTS", str(tmp_path / "mine.yaml"))
    assert environments_file() == tmp_path / "mine.yaml", "also if it does not exist: a wrong path must not be ignored"


@pytest.mark.parametrize("command", [["app.py"], ["-m", "infra.costs"]])
def test_a_mistake_stops_a_command_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str]
) -> None:
    file = tmp_path / "environments.yaml"
    file.write_text("prod:\n  followers: 0\n", encoding="utf-8")
    monkeypatch.setenv("SPASS_ENVIRONMENTS", str(file))
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{file}:2: prod.followers = 0: is not allowed; write a whole number from 2 to 900" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_setting_that_the_file_may_have_says_what_it_may_be() -> None:
    others = {"name", "log_retention", "log_removal", "needs_tenant"}
    assert {*FIELDS, *others} == {*Environment.__slots__}


def rows_of_the_guide() -> dict[str, str]:
    """Return the documented default by key."""
    table = re.findall(r"(?m)^\| `([a-z_]+)` \| (.*?) \| ", ENVIRONMENTS_GUIDE.read_text(encoding="utf-8"))
    return dict(table)


def test_the_table_of_the_guide_has_every_key_with_its_default_in_each_environment() -> None:
    words = {None: "none", True: "true", False: "false"}
    expected = {}
    for key in FIELDS:
        defaults = [getattr(environment, key) for environment in ENVIRONMENTS.values()]
        shown = [words.get(one, str(one)) if not isinstance(one, int) or isinstance(one, bool) else str(one) for one in defaults]
        expected[key] = ", ".join(shown if len(set(shown)) > 1 else shown[:1])
    assert {key: default.replace("`", "") for key, default in rows_of_the_guide().items()} == expected


def test_the_example_of_the_guide_sets_every_option_and_adds_an_environment(tmp_path: Path) -> None:
    guide = ENVIRONMENTS_GUIDE.read_text(encoding="utf-8")
    example, mistake = re.findall(r"```(?:yaml|text)\n(.*?)```", guide, re.DOTALL)
    loaded = load(tmp_path, example)
    changed = {key for key in FIELDS if getattr(loaded["prod"], key) != getattr(PROD, key)}
    as_today = {"region", "rate", "burst", "recovery_days", "alarms", "run_workers", "telemetry", "metrics", "audit_archive_days"}
    assert changed == FIELDS.keys() - as_today
    assert loaded["team"] == replace(DEV, name="team", rate=5)
    with pytest.raises(EnvironmentsFileInvalid) as caught:
        load(tmp_path, "prod:\n  followers: 0\n")
    assert str(caught.value) == f"{tmp_path}/{mistake}".rstrip()
