"""Run the emulated AWS as a child process: ministack, behind our front. Or use that of ``AWS_ENDPOINT_URL``."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError, WaiterError

from local.aws_front import FRONT_VARIABLE
from local.home import ROOT, Home, LocalError
from local.processes import child, free_port
from local.signatures import AccessKey, new_access_key

if TYPE_CHECKING:
    from mypy_boto3_cloudformation import CloudFormationClient

TEMPLATE: Final = ROOT / "local" / "template.json"
REGION: Final = "eu-central-1"
STACK: Final = "spass-local"
SCHEDULE_ROLE: Final = "arn:aws:iam::000000000000:role/nobody-checks"  # the emulator does not check roles
_DELETED: Final = frozenset({"DELETE_COMPLETE"})
_PROXY: Final = "MINISTACK_LAMBDA_PROXY_URL"  # a function's variable; ministack's process has one variable for each function
_STORAGE_TYPES: Final = ("AWS::DynamoDB::", "AWS::S3::")
_COMPLETE: Final = frozenset({"CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE"})
# These variables could direct a call to a real AWS account. So could the endpoint variable of a single service.
_REAL_ACCOUNT_VARIABLES: Final = (
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)


@dataclass(frozen=True, slots=True)
class StackOutputs:
    """The outputs of the stack: names, the queues' URLs, the ARNs of the state machine and of the queue of runs."""

    table: str
    bucket: str
    queue: str
    compaction_queue: str
    compaction_machine: str
    runs_queue: str
    runs_queue_arn: str
    schedule_group: str

    @property
    def queues(self) -> tuple[str, ...]:
        return self.queue, self.compaction_queue, self.runs_queue

    def variables(self) -> dict[str, str]:
        """Return the environment variables with which a deployed function finds these resources."""
        return {
            "SPASS_TABLE": self.table,
            "SPASS_BUCKET": self.bucket,
            "SPASS_QUEUE": self.queue,
            "SPASS_COMPACTION_QUEUE": self.compaction_queue,
            "SPASS_COMPACTION_MACHINE": self.compaction_machine,
            "SPASS_RUNS_QUEUE": self.runs_queue,
            "SPASS_RUNS_QUEUE_ARN": self.runs_queue_arn,
            "SPASS_SCHEDULE_GROUP": self.schedule_group,
            "SPASS_SCHEDULE_ROLE": SCHEDULE_ROLE,
        }


@contextmanager
def running_emulator(home: Home, lock: int, workers: Mapping[str, str], origins: Sequence[str]) -> Iterator[None]:
    """Direct every AWS client of this process to the emulator of ``AWS_ENDPOINT_URL``, else to ours, which runs during the block.

    Only for the latter, write the file of the operator's own clients: the key for another emulator may be that of a real account.
    """
    if external := os.environ.get("AWS_ENDPOINT_URL"):
        home.aws_config.unlink(missing_ok=True)
        point_to(external, environment_access_key())
        yield
        return
    key = new_access_key()
    with emulated_aws(home, lock, workers, key, origins) as endpoint:
        point_to(endpoint, key)
        home.write_aws_config(endpoint, REGION, key)
        yield


@contextmanager
def emulated_aws(
    home: Home,
    lock: int,
    workers: Mapping[str, str],
    key: AccessKey,
    origins: Sequence[str],
    template: Path = TEMPLATE,
) -> Iterator[str]:
    """Run ministack behind our front until the block ends. Yield its endpoint.

    ``workers`` maps each function's name to the URL that runs it. ``lock`` is the file descriptor of the home's lock, which
    ministack keeps open until it ends. The front accepts calls that are signed with ``key``, and presigned forms, also from the
    pages of ``origins``. The only stack that it lets be created is that of ``template``.
    """
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    hosts = [f"127.0.0.1:{port}", f"localhost:{port}"]
    front = {
        "key_id": key.id,
        "secret": key.secret,
        "hosts": hosts,
        "origins": list(origins),
        "region": REGION,
        "templates": [hashlib.sha256(text.encode()).hexdigest() for text in _template_texts(template)],
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | {
        **{f"{_PROXY.removesuffix('URL')}{name}": url for name, url in workers.items()},
        FRONT_VARIABLE: json.dumps(front),
        "MINISTACK_REGION": REGION,
        "PERSIST_STATE": "1",
        "STATE_DIR": str(home.emulator_state),
        "S3_PERSIST": "1",
        "S3_DATA_DIR": str(home.objects),
        # Not the real port. The URLs of the saved queues contain this port, so it must be the same at every start.
        "GATEWAY_PORT": "4566",
        "IOT_MTLS_ENABLED": "0",  # it would listen on a fixed port
        "LOG_LEVEL": "WARNING",
    }
    arguments = ["local.emulated_aws:app", "--bind", f"127.0.0.1:{port}", "--workers", "0", "--keep-alive", "75"]
    log = home.logs / "ministack.log"
    with child("ministack", "hypercorn", arguments, healthy=endpoint, log=log, environment=environment, keep_open=lock):
        yield endpoint


def environment_access_key() -> AccessKey:
    """Return the access key in the environment, for an emulator that checks it, as that of another gateway does."""
    key_id, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    return AccessKey(key_id, secret) if key_id and secret else AccessKey("local", "local")


def point_to(endpoint: str, key: AccessKey) -> None:
    """Direct every AWS client of this process to the emulator at ``endpoint``, with ``key``."""
    for name in [*_REAL_ACCOUNT_VARIABLES, *(name for name in os.environ if name.startswith("AWS_ENDPOINT_URL_"))]:
        os.environ.pop(name, None)
    os.environ |= {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": key.id,
        "AWS_SECRET_ACCESS_KEY": key.secret,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    os.environ.pop("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", None)


def provision(template: Path = TEMPLATE, *, damaged: bool = False) -> StackOutputs:
    """Create the resources of the CDK stacks with CloudFormation unless they exist, and return their names. If ``damaged`` state
    was moved aside and a worker or queue is missing, create all workers and queues again.

    Raises:
        LocalError: the emulator does not answer or does not create the stack.
    """
    config = Config(connect_timeout=5, read_timeout=60, retries={"total_max_attempts": 2})
    client = boto3.client("cloudformation", config=config)
    body, storage = _template_texts(template)
    try:
        if _status(client) not in _COMPLETE or not _storage_exists(_stores(client)):
            _create(client, body)
        elif damaged and not _workers_exist(_stores(client)):
            _update(client, storage)
            _update(client, body)
        elif client.get_template(StackName=STACK)["TemplateBody"] != json.loads(body):
            _update(client, body)
        return _stores(client)
    except EndpointConnectionError:
        raise LocalError(f"No AWS emulator answers at AWS_ENDPOINT_URL={os.environ['AWS_ENDPOINT_URL']}.") from None
    except (BotoCoreError, ClientError, WaiterError) as error:
        raise LocalError(
            f"The emulated AWS does not make the stack of {template.name}: {error}\n"
            "If its state is from another version, remove its folder (SPASS_HOME, by default .local) and start again."
        ) from error


def reconfigure_emulator(workers: Mapping[str, str]) -> str:
    """Set the workers' URLs in an emulator that we did not start. Return a note for the operator."""
    functions = boto3.client("lambda")
    try:
        for name, url in workers.items():
            functions.update_function_configuration(FunctionName=name, Environment={"Variables": {_PROXY: url}})
    except (BotoCoreError, ClientError) as error:
        return f"no file is ingested and no session compacted, as the emulator at AWS_ENDPOINT_URL has no workers: {error}"
    return "files are ingested and sessions compacted by request only if AWS_ENDPOINT_URL is a ministack on this machine"


def _storage_exists(stores: StackOutputs) -> bool:
    """Return whether the stack's table and bucket exist. The emulator saves them in other files than the stack."""
    try:
        boto3.client("dynamodb").describe_table(TableName=stores.table)
        boto3.client("s3").head_bucket(Bucket=stores.bucket)
    except ClientError as error:
        if error.response["Error"]["Code"] in {"ResourceNotFoundException", "404", "NoSuchBucket"}:
            return False
        raise
    return True


def _workers_exist(stores: StackOutputs) -> bool:
    """Return whether the stack's queues and workers exist."""
    functions = boto3.client("lambda")
    try:
        for queue in stores.queues:
            boto3.client("sqs").get_queue_attributes(QueueUrl=queue)
        boto3.client("stepfunctions").describe_state_machine(stateMachineArn=stores.compaction_machine)
        schedules = boto3.client("scheduler").list_schedules()["Schedules"]
        mappings = functions.list_event_source_mappings()["EventSourceMappings"]
    except ClientError:
        return False
    return bool(functions.list_functions()["Functions"] and schedules and mappings)


def _template_texts(template: Path) -> tuple[str, str]:
    """Return the texts that ``provision`` sends: the template, and only its resources with stored data."""
    text = template.read_text()
    return text, json.dumps(_storage_only_template(json.loads(text)))


def _storage_only_template(template: dict[str, Any]) -> dict[str, Any]:
    """Return only the resources with stored data, and no references to others."""
    storage = {name: one for name, one in template["Resources"].items() if one["Type"].startswith(_STORAGE_TYPES)}
    for resource in storage.values():
        resource["Properties"].pop("NotificationConfiguration", None)
        resource.pop("DependsOn", None)
    outputs = {name: one for name, one in template["Outputs"].items() if one["Value"].get("Ref") in storage}
    return {**template, "Resources": storage, "Outputs": outputs}


def _update(client: "CloudFormationClient", body: str) -> None:
    client.update_stack(StackName=STACK, TemplateBody=body, Capabilities=["CAPABILITY_NAMED_IAM"])
    client.get_waiter("stack_update_complete").wait(StackName=STACK, WaiterConfig={"Delay": 1, "MaxAttempts": 60})


def _status(client: "CloudFormationClient") -> str | None:
    try:
        status = client.describe_stacks(StackName=STACK)["Stacks"][0]["StackStatus"]
    except ClientError as error:
        if "does not exist" in str(error):
            return None
        raise
    return None if status in _DELETED else status


def _create(client: "CloudFormationClient", body: str) -> None:
    if _status(client) is not None:
        client.delete_stack(StackName=STACK)
    client.create_stack(StackName=STACK, TemplateBody=body, Capabilities=["CAPABILITY_NAMED_IAM"])
    try:
        client.get_waiter("stack_create_complete").wait(StackName=STACK, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
    except WaiterError as error:
        events = client.describe_stack_events(StackName=STACK)["StackEvents"]
        reasons = [event["ResourceStatusReason"] for event in events if "FAILED" in event.get("ResourceStatus", "")]
        raise LocalError(f"The emulated AWS could not make the stack: {'; '.join(reasons) or error}") from error


def _stores(client: "CloudFormationClient") -> StackOutputs:
    outputs = {
        output["OutputKey"]: output["OutputValue"]
        for output in client.describe_stacks(StackName=STACK)["Stacks"][0].get("Outputs", [])
    }
    resources = client.list_stack_resources(StackName=STACK)["StackResourceSummaries"]

    def name_of(kind: str, output: str) -> str:
        if output in outputs:
            return outputs[output]
        return next(resource["PhysicalResourceId"] for resource in resources if resource["ResourceType"] == kind)

    return StackOutputs(
        table=name_of("AWS::DynamoDB::Table", "TableName"),
        bucket=name_of("AWS::S3::Bucket", "BucketName"),
        queue=outputs.get("QueueUrl", ""),
        compaction_queue=outputs.get("CompactionQueueUrl", ""),
        compaction_machine=outputs.get("CompactionMachine", ""),
        runs_queue=outputs.get("RunQueueUrl", ""),
        runs_queue_arn=outputs.get("RunQueueArn", ""),
        schedule_group=outputs.get("ScheduleGroup", ""),
    )
