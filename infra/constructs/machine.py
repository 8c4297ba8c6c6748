"""The state machine that ingests a large file: its parts side by side, as child executions of one map."""

from pathlib import Path
from typing import Final

from aws_cdk import ArnFormat, RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra.constructs.acknowledge import acknowledge
from infra.constructs.roles import wildcard_finding

DEFINITION: Final = Path(__file__).resolve().parents[1] / "ingest.asl.json"


class IngestMachine(Construct):
    """``ingest.asl.json`` with ``step`` as the function that all its steps call.

    Executions are named by the upload and told ids, so nothing of a tenant's text is in their history.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        step: lambda_.IFunction,
        log_retention: logs.RetentionDays,
        log_removal: RemovalPolicy,
    ) -> None:
        super().__init__(scope, construct_id)
        self.log_group = logs.LogGroup(self, "Logs", retention=log_retention, removal_policy=log_removal)
        self.resource = sfn.StateMachine(
            self,
            "Machine",
            definition_body=sfn.DefinitionBody.from_string(DEFINITION.read_text(encoding="utf-8")),
            definition_substitutions={"IngestStep": step.function_arn},
            state_machine_type=sfn.StateMachineType.STANDARD,
            logs=sfn.LogOptions(destination=self.log_group, level=sfn.LogLevel.ERROR, include_execution_data=False),
        )
        self.arn = self.resource.state_machine_arn
        self.resource.role.add_to_principal_policy(
            iam.PolicyStatement(actions=["lambda:InvokeFunction"], resources=[step.function_arn])
        )
        self._let_it_start_its_children()

    def _let_it_start_its_children(self) -> None:
        """A distributed map starts, follows and stops executions of its own machine.

        The policy names the machine, which waits for its role's other policy: so it is one of its own.
        (https://docs.aws.amazon.com/step-functions/latest/dg/iam-policies-eg-dist-map.html)
        """
        children = [self._executions(f"{self.resource.state_machine_name}{rest}") for rest in (":*", "/*")]
        policy = iam.Policy(
            self,
            "Children",
            statements=[
                iam.PolicyStatement(actions=["states:StartExecution"], resources=[self.arn]),
                iam.PolicyStatement(
                    actions=["states:DescribeExecution", "states:StopExecution", "states:RedriveExecution"], resources=children
                ),
            ],
        )
        policy.attach_to_role(self.resource.role)
        acknowledge(
            policy,
            {
                wildcard_finding(Stack.of(self), child): "Its own executions; Step Functions makes up the rest of their names."
                for child in children
            },
        )
        acknowledge(
            self.resource,
            {
                "AwsSolutions-IAM5[Resource::*]": "Delivery of logs is set up by actions that know no resources.",
                "AwsSolutions-SF1": "Errors are logged. A million documents would else log millions of steps that went well.",
                "AwsSolutions-SF2": "Traces bill by the step, and the upload's record says how far it is.",
            },
        )

    def _executions(self, name: str) -> str:
        return Stack.of(self).format_arn(
            service="states", resource="execution", resource_name=name, arn_format=ArnFormat.COLON_RESOURCE_NAME
        )
