"""A stand-in for AWS's command line, for commands of the documentation: each option has one value, as in a request of the API.

python aws_cli.py SERVICE OPERATION [--OPTION VALUE]... [--query PATH] [--output text]
"""

import json
import re
import sys
from typing import Any

import boto3


def main(service: str, operation: str, *arguments: str) -> str:
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    client = boto3.client({"s3api": "s3"}.get(service, service))  # type: ignore[call-overload]
    shape = client.meta.service_model.operation_model("".join(part.title() for part in operation.split("-"))).input_shape
    members = {"--" + re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name[0].upper() + name[1:]).lower(): name for name in shape.members}
    given = {members[option]: _value(shape.members[members[option]].type_name, value) for option, value in options.items()}
    return json.dumps(getattr(client, operation.replace("-", "_"))(**given), default=str)


def _value(kind: str, text: str) -> Any:
    if kind in ("list", "structure"):
        return json.loads(text)
    return int(text) if kind in ("integer", "long", "timestamp") else text


if __name__ == "__main__":
    sys.stdout.write(main(*sys.argv[1:]))
