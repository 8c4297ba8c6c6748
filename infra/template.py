"""Writes ``local/template.json``: the stateful stack as the CDK defines it, for the laptop's emulator to provision.

Run as ``python -m infra.template``. A test compares the file with a fresh synthesis.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from aws_cdk import App

from infra.environments import DEV
from infra.stacks.data import DataStack

PATH: Final = Path(__file__).resolve().parents[1] / "local" / "template.json"

# What only a deployment by the CDK itself needs: the version of its bootstrap stack, and where its metadata lies.
_PARAMETERS: Final = "BootstrapVersion"
_RULES: Final = "CheckBootstrapVersion"


def local_template() -> str:
    """The template of the stateful stack, without anything that depends on who synthesizes it or when."""
    with TemporaryDirectory() as scratch:
        app = App(analytics_reporting=False, outdir=scratch)
        stack = DataStack(app, "Spass-local-Data", environment=DEV)
        template: dict[str, Any] = app.synth().get_stack_by_name(stack.stack_name).template
    template["Parameters"].pop(_PARAMETERS)
    template["Rules"].pop(_RULES)
    for resource in template["Resources"].values():
        resource.pop("Metadata", None)
    for output in template["Outputs"].values():
        output.pop("Export")
    template["Description"] = "Spass on the laptop: what is stored. Written by `make template`; do not edit."
    return json.dumps({name: part for name, part in template.items() if part}, indent=2) + "\n"


if __name__ == "__main__":
    PATH.write_text(local_template(), encoding="utf-8")
