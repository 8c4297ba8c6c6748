"""The services and actions of the emulated AWS that the gateway, its start and its operator use. The front refuses all others.

CloudFormation takes any template, so the holder of the key can create resources of other kinds too.
"""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs

# Scan and ListTables are for an operator who looks into the table.
_DYNAMODB: Final = "DeleteItem DescribeTable GetItem ListTables PutItem Query Scan TransactGetItems TransactWriteItems UpdateItem"
_SQS: Final = (
    "ChangeMessageVisibility DeleteMessage GetQueueAttributes GetQueueUrl ListQueues ReceiveMessage SendMessage SendMessageBatch"
)
_STATES: Final = "DescribeExecution DescribeStateMachine GetExecutionHistory ListExecutions StartExecution StopExecution"
_CLOUDFORMATION: Final = "CreateStack DeleteStack DescribeStackEvents DescribeStacks GetTemplate ListStackResources UpdateStack"
# The actions of these services are in the header X-Amz-Target, after the prefix.
_TARGETS: Final[Mapping[str, tuple[str, frozenset[str]]]] = {
    "dynamodb": ("DynamoDB_20120810.", frozenset(_DYNAMODB.split())),
    "sqs": ("AmazonSQS.", frozenset(_SQS.split())),
    "states": ("AWSStepFunctions.", frozenset(_STATES.split())),
}
# These services have a path for each action. A function's variables name the URL of its worker (`reconfigure_emulator`).
_PATHS: Final[Mapping[str, re.Pattern[str]]] = {
    "lambda": re.compile(
        r"GET /2015-03-31/(functions|event-source-mappings)/?"
        r"|PUT /2015-03-31/functions/[\w%:-]+/configuration"
        r"|POST /2015-03-31/functions/[\w%:-]+/invocations"
        r"|PUT /2015-03-31/event-source-mappings/[\w-]+/?"
    ),
    "scheduler": re.compile(r"GET /schedules|(GET|POST|PUT|DELETE) /schedules/[\w.%-]+"),
}
_BUCKET: Final = r"/spass-local-[a-z0-9.-]+"
_OBJECTS: Final = re.compile(rf"(GET|HEAD|PUT|POST|DELETE) {_BUCKET}/.+|(GET|HEAD|POST) {_BUCKET}/?|GET /")
_LISTING: Final = (
    "continuation-token delimiter encoding-type key-marker list-type marker max-keys prefix start-after version-id-marker"
)
_OBJECT: Final = "delete fetch-owner location max-uploads partNumber tagging uploadId uploads versionId versions x-id"
_OBJECT_QUERIES: Final = frozenset(f"{_LISTING} {_OBJECT}".split())
FORM_PATH: Final = re.compile(rf"{_BUCKET}/?")


def is_allowed(service: str, method: str, path: str, query: str, target: str | None, body: bytes | None) -> bool:
    """Return whether the front passes this request on. ``target`` is the header X-Amz-Target. ``body`` is None if it was not
    read, as with objects."""
    if service in _TARGETS:
        prefix, actions = _TARGETS[service]
        name = (target or "").removeprefix(prefix)
        return (method, path, query, target) == ("POST", "/", "", f"{prefix}{name}") and name in actions
    if target is not None:
        return False
    if service == "cloudformation":
        fields = parse_qs((body or b"").decode("latin-1"))
        return (method, path, query) == ("POST", "/", "") and " ".join(fields.get("Action", ())) in _CLOUDFORMATION.split()
    if service == "s3":
        names = parse_qs(query, keep_blank_values=True)
        return _OBJECTS.fullmatch(f"{method} {path}") is not None and names.keys() <= _OBJECT_QUERIES
    return service in _PATHS and _PATHS[service].fullmatch(f"{method} {path}") is not None
