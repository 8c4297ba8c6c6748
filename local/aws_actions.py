"""The services and actions of the emulated AWS that the gateway, its start and its operator use. The front refuses all others."""

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import parse_qs

# Scan and ListTables are for an operator who looks into the table.
_DYNAMODB: Final = "DeleteItem DescribeTable GetItem ListTables PutItem Query Scan TransactGetItems TransactWriteItems UpdateItem"
_SQS: Final = (
    "ChangeMessageVisibility DeleteMessage GetQueueAttributes GetQueueUrl ListQueues ReceiveMessage SendMessage SendMessageBatch"
)
_STATES: Final = "DescribeExecution DescribeStateMachine GetExecutionHistory ListExecutions StartExecution StopExecution"
_CLOUDFORMATION: Final = frozenset(["DeleteStack", "DescribeStackEvents", "DescribeStacks", "GetTemplate", "ListStackResources"])
_WITH_TEMPLATE: Final = frozenset({"CreateStack", "UpdateStack"})
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


def is_allowed(
    service: str, method: str, path: str, query: str, target: str | None, body: bytes, templates: Collection[str]
) -> bool:
    """Return whether the front passes this request on. ``target`` is the header X-Amz-Target. ``templates`` are the SHA-256 (hex)
    of the templates that CloudFormation may get."""
    if service in _TARGETS:
        prefix, actions = _TARGETS[service]
        name = (target or "").removeprefix(prefix)
        return (method, path, query, target) == ("POST", "/", "", f"{prefix}{name}") and name in actions
    if target is not None:
        return False
    if service == "cloudformation":
        return (method, path, query) == ("POST", "/", "") and _is_stack_action(body, templates)
    if service == "s3":
        names = parse_qs(query, keep_blank_values=True)
        return _OBJECTS.fullmatch(f"{method} {path}") is not None and names.keys() <= _OBJECT_QUERIES
    return service in _PATHS and _PATHS[service].fullmatch(f"{method} {path}") is not None


def _is_stack_action(body: bytes, templates: Collection[str]) -> bool:
    # Blank values count: the emulator takes the first value of a name, and a template from TemplateURL after a blank one.
    fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True)
    match fields.get("Action"), fields.get("TemplateBody"):
        case [action], None:
            return action in _CLOUDFORMATION
        case [action], [template]:
            return action in _WITH_TEMPLATE and hashlib.sha256(template.encode()).hexdigest() in templates
        case _:
            return False
