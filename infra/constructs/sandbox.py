"""The function that runs code that models write, in a network without routes."""

from typing import Final

from aws_cdk import Duration, Stack, Tags
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infra.constructs.acknowledge import acknowledge
from infra.constructs.function import TAG
from infra.constructs.layer import ARCHITECTURE, RUNTIME, sandbox_code

NAME: Final = "sandbox"
# A child has 512 MiB, and the interpreter that starts it needs some more. With this memory Lambda gives one whole processor.
_MEMORY_MIB: Final = 1769
# The code of a turn may compute for two minutes, and one invocation may repeat all of it. The gateway waits for 240 seconds
# (`spass/aws/functions.py`), so it learns of a timeout.
_TIMEOUT: Final = Duration.seconds(220)
_NETWORK: Final = "10.0.0.0/24"
_SUBNET_PREFIX: Final = 26
_ZONES: Final = 2
# The actions of the managed policy AWSLambdaVPCAccessExecutionRole, without those that write logs.
_ATTACHMENT: Final = (
    "ec2:AssignPrivateIpAddresses",
    "ec2:CreateNetworkInterface",
    "ec2:DeleteNetworkInterface",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSubnets",
    "ec2:UnassignPrivateIpAddresses",
)


class Sandbox(Construct):
    """A function with one virtual machine for each tenant id of its callers, without network, permissions and logs.

    Lambda keeps the machines of different tenant ids apart, so the function may have neither snapshots nor event sources. Outside
    the VPC a function can reach the internet, so it is attached to one from which nothing can be reached. Lambda itself attaches
    it with the function's role, so the role denies everything to the function's own credentials, and to nothing else.
    """

    def __init__(self, scope: Construct, construct_id: str, *, description: str) -> None:
        super().__init__(scope, construct_id)
        Tags.of(self).add(TAG, NAME)
        self._vpc = self._create_vpc()
        self.resource = lambda_.Function(
            self,
            "Function",
            description=description,
            code=sandbox_code(self),
            handler="function.handler",
            runtime=RUNTIME,
            architecture=ARCHITECTURE,
            memory_size=_MEMORY_MIB,
            timeout=_TIMEOUT,
            tenancy_config=lambda_.TenancyConfig.PER_TENANT,
            role=self._create_role().without_policy_updates(),
            vpc=self._vpc,
            vpc_subnets=ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_ISOLATED),
            security_groups=[
                ec2.SecurityGroup(
                    self,
                    "Closed",
                    vpc=self._vpc,
                    description="Allows no traffic in either direction",
                    allow_all_outbound=False,
                )
            ],
        )
        self._acknowledge()

    def _create_vpc(self) -> ec2.Vpc:
        """Return a VPC without routes, gateways, endpoints and DNS, whose subnets drop every packet.

        The rules of the network ACL hold for every network interface, also for one in the default security group.
        """
        subnets = ec2.SubnetConfiguration(name="Isolated", subnet_type=ec2.SubnetType.PRIVATE_ISOLATED, cidr_mask=_SUBNET_PREFIX)
        vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr(_NETWORK),
            max_azs=_ZONES,
            subnet_configuration=[subnets],
            nat_gateways=0,
            enable_dns_hostnames=False,
            enable_dns_support=False,
            # Emptying the default security group would need a function with rights to change security groups.
            restrict_default_security_group=False,
        )
        ec2.NetworkAcl(self, "Silent", vpc=vpc, subnet_selection=ec2.SubnetSelection(subnets=vpc.isolated_subnets))
        return vpc

    def _create_role(self) -> iam.Role:
        """Return a role that lets Lambda attach the function to the VPC.

        Every request that is signed with the credentials of a function carries ``lambda:SourceFunctionArn``, and so do Lambda's
        own requests that write logs. Those that attach a function to a VPC do not.
        (https://docs.aws.amazon.com/lambda/latest/dg/permissions-source-function-arn.html)
        """
        stack = Stack.of(self)
        any_function = f"arn:{stack.partition}:lambda:*:*:function:*"
        attach = iam.PolicyStatement(actions=list(_ATTACHMENT), resources=["*"])
        deny = iam.PolicyStatement(
            effect=iam.Effect.DENY,
            actions=["*"],
            resources=["*"],
            conditions={"ArnLike": {"lambda:SourceFunctionArn": any_function}},
        )
        return iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
            # Inline, so that the role never exists without the statement that denies.
            inline_policies={"AttachOnly": iam.PolicyDocument(statements=[attach, deny])},
        )

    def _acknowledge(self) -> None:
        acknowledge(
            self,
            {
                "AwsSolutions-IAM5[Resource::*]": "Lambda attaches functions with these actions, which know no resources.",
                "AwsSolutions-L1": "Python 3.13 is what the gateway's functions run on; tests run the child on 3.11 to 3.13.",
                "AwsSolutions-VPC3": "The network ACL has no rules: it drops everything, whatever security groups allow.",
                "AwsSolutions-VPC7": "The network ACL drops all traffic, so a log would be empty.",
            },
        )
