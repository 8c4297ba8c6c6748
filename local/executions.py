"""Executions of the state machine that the last stop of the emulator has cut off."""

import re
from contextlib import suppress
from typing import Final

import boto3
from botocore.exceptions import BotoCoreError, ClientError

# What the emulator says of them. AWS has no such stop, and the emulator cannot redrive them.
_CUT_OFF: Final = "States.ServiceRestart"


def resume_executions(machine: str) -> None:
    """Start each of them again, under the next name: a step takes up where the last one stopped."""
    client = boto3.client("stepfunctions")
    with suppress(BotoCoreError, ClientError):
        pages = client.get_paginator("list_executions").paginate(stateMachineArn=machine, statusFilter="FAILED")
        for failed in [execution for page in pages for execution in page["executions"]]:
            found = client.describe_execution(executionArn=failed["executionArn"])
            if found.get("error") == _CUT_OFF:
                with suppress(client.exceptions.ExecutionAlreadyExists):  # that was resumed by an earlier start
                    client.start_execution(stateMachineArn=machine, name=next_name(found["name"]), input=found["input"])


def next_name(name: str) -> str:
    """The name of an execution's next try: ``job_1``, ``job_1-2``, ``job_1-3``."""
    tried = re.fullmatch(r"(?P<first>.+)-(?P<number>[0-9]+)", name)
    return f"{tried['first']}-{int(tried['number']) + 1}" if tried else f"{name}-2"
