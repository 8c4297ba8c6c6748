"""Resume the executions of the state machine that ended when the emulator stopped."""

import re
from contextlib import suppress
from typing import Final

import boto3
from botocore.exceptions import BotoCoreError, ClientError

# The emulator's error for such an execution. AWS does not have it, and the emulator cannot redrive an execution.
_RESTART_ERROR: Final = "States.ServiceRestart"


def resume_executions(machine: str) -> None:
    """Start a new execution, under the next name, for each one that ended. Its steps continue where the last attempt stopped."""
    client = boto3.client("stepfunctions")
    with suppress(BotoCoreError, ClientError):
        pages = client.get_paginator("list_executions").paginate(stateMachineArn=machine, statusFilter="FAILED")
        for failed in [execution for page in pages for execution in page["executions"]]:
            execution = client.describe_execution(executionArn=failed["executionArn"])
            if execution.get("error") == _RESTART_ERROR:
                with suppress(client.exceptions.ExecutionAlreadyExists):  # an earlier start of the gateway resumed it
                    client.start_execution(stateMachineArn=machine, name=next_name(execution["name"]), input=execution["input"])


def next_name(name: str) -> str:
    """Return the name of an execution's next attempt: ``job_1``, ``job_1-2``, ``job_1-3``."""
    numbered = re.fullmatch(r"(?P<first>.+)-(?P<number>[0-9]+)", name)
    return f"{numbered['first']}-{int(numbered['number']) + 1}" if numbered else f"{name}-2"
