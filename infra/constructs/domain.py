"""The API's own domain name."""

from aws_cdk import CfnOutput
from aws_cdk import aws_apigateway as apigateway
from aws_cdk import aws_route53 as route53
from constructs import Construct

from infra.environments import Domain


class DomainName(Construct):
    """A regional domain name that leads to the stage of an API, and its record if its zone is given.

    Without a zone, the output ``DomainTarget`` is the name to which the operator's record must point.
    """

    def __init__(self, scope: Construct, construct_id: str, *, domain: Domain, tls: str, api: str, stage: str) -> None:
        super().__init__(scope, construct_id)
        self.resource = apigateway.CfnDomainName(
            self,
            "Name",
            domain_name=domain.name,
            regional_certificate_arn=domain.certificate,
            endpoint_configuration=apigateway.CfnDomainName.EndpointConfigurationProperty(types=["REGIONAL"]),
            security_policy=tls,
            endpoint_access_mode="STRICT",
        )
        apigateway.CfnBasePathMapping(self, "Stage", domain_name=self.resource.ref, rest_api_id=api, stage=stage)
        CfnOutput(self, "Target", value=self.resource.attr_regional_domain_name).override_logical_id("DomainTarget")
        if domain.zone is not None:
            route53.CfnRecordSet(
                self,
                "Record",
                hosted_zone_id=domain.zone,
                name=f"{domain.name}.",
                type="A",
                alias_target=route53.CfnRecordSet.AliasTargetProperty(
                    dns_name=self.resource.attr_regional_domain_name, hosted_zone_id=self.resource.attr_regional_hosted_zone_id
                ),
            )
