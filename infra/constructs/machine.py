"""A state machine: a definition beside this folder, and one function that all its steps call."""

from pathlib import Path
from typing import Final

from aws_cdk import Aws, RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra.constructs.acknowledge import acknowledge

_DEFINITIONS: Final = Path(__file__).resolve().parents[1]
COMPACTION: Final = _DEFINITIONS / "compaction.asl.json"


class Machine(Construct):
    """The state machine of the file ``definition``. All its steps call the function ``step``.

    The name of an execution is the job's id and its input has only ids, so its history contains no text of a tenant.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        definition: Path,
        step: lambda_.IFunction,
        log_retention: logs.RetentionDays,
        log_removal: RemovalPolicy,
    ) -> None:
        super().__init__(scope, construct_id)
        # Step Functions adds each log group to a resource policy of the account, which is limited to 5,120 characters, unless the
        # group's name has this prefix. The nested stack's name ends in a random suffix, so a retained group causes no conflict.
        # (https://docs.aws.amazon.com/step-functions/latest/dg/bp-cwl.html)
        name = f"/aws/vendedlogs/states/{Aws.STACK_NAME}/{construct_id}"
        self.log_group = logs.LogGroup(self, "Logs", log_group_name=name, retention=log_retention, removal_policy=log_removal)
        self.resource = sfn.StateMachine(
            self,
            "Machine",
            definition_body=sfn.DefinitionBody.from_string(definition.read_text(encoding="utf-8")),
            definition_substitutions={"Step": step.function_arn},
            state_machine_type=sfn.StateMachineType.STANDARD,
            logs=sfn.LogOptions(destination=self.log_group, level=sfn.LogLevel.ERROR, include_execution_data=False),
        )
        self.arn = self.resource.state_machine_arn
        self.resource.role.add_to_principal_policy(
            iam.PolicyStatement(actions=["lambda:InvokeFunction"], resources=[step.function_arn])
        )
        acknowledge(
            self.resource,
            {
                "AwsSolutions-IAM5[Resource::*]": "Delivery of logs is set up by actions that know no resources.",
                "AwsSolutions-SF1": "Errors are logged. Steps that went well are not.",
                "AwsSolutions-SF2": "Traces bill by the step, and the record of a job says how far it is.",
            },
        )
