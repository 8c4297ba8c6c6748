"""The web ACL of an API: limits of requests by address and by token, and AWS's common rules, which only count."""

from typing import Final, TypeAlias

from aws_cdk import aws_wafv2 as wafv2
from constructs import Construct

_PER_ADDRESS: Final = 2_000
_PER_TOKEN: Final = 3_000
_WINDOW_SECONDS: Final = 300
# The headers with which a client may send its token. A rule counts only requests that have all of its headers, so each header has
# a rule of its own.
_TOKEN_HEADERS: Final = {"Authorization": "authorization", "ApiKey": "x-api-key"}

Rule: TypeAlias = wafv2.CfnWebACL.RuleProperty
Statement: TypeAlias = wafv2.CfnWebACL.StatementProperty
RateLimit: TypeAlias = wafv2.CfnWebACL.RateBasedStatementProperty


class WebAcl(Construct):
    """A web ACL for the stage with this ARN. It allows what no rule blocks.

    It keeps no samples of requests: they would show tokens.
    """

    def __init__(self, scope: Construct, construct_id: str, *, stage: str) -> None:
        super().__init__(scope, construct_id)
        limits = [
            RateLimit(limit=_PER_ADDRESS, aggregate_key_type="IP", evaluation_window_sec=_WINDOW_SECONDS),
            *(_limit_of_header(header) for header in _TOKEN_HEADERS.values()),
        ]
        names = ["PerAddress", *(f"Per{name}" for name in _TOKEN_HEADERS)]
        self.resource = wafv2.CfnWebACL(
            self,
            "Acl",
            scope="REGIONAL",
            default_action=wafv2.CfnWebACL.DefaultActionProperty(allow={}),
            visibility_config=_visibility("All"),
            rules=[
                *(_limit(name, number, limit) for number, (name, limit) in enumerate(zip(names, limits, strict=True))),
                _common(len(limits)),
            ],
        )
        wafv2.CfnWebACLAssociation(self, "Stage", resource_arn=stage, web_acl_arn=self.resource.attr_arn)


def _limit(name: str, priority: int, limit: RateLimit) -> Rule:
    return Rule(
        name=name,
        priority=priority,
        action=wafv2.CfnWebACL.RuleActionProperty(block={}),
        statement=Statement(rate_based_statement=limit),
        visibility_config=_visibility(name),
    )


def _limit_of_header(header: str) -> RateLimit:
    plain = wafv2.CfnWebACL.TextTransformationProperty(priority=0, type="NONE")
    return RateLimit(
        limit=_PER_TOKEN,
        aggregate_key_type="CUSTOM_KEYS",
        evaluation_window_sec=_WINDOW_SECONDS,
        custom_keys=[
            wafv2.CfnWebACL.RateBasedStatementCustomKeyProperty(
                header=wafv2.CfnWebACL.RateLimitHeaderProperty(name=header, text_transformations=[plain])
            )
        ],
    )


def _common(priority: int) -> Rule:
    """Return AWS's common rules, which count and never block: bodies hold code and prose, which look like attacks."""
    return Rule(
        name="Common",
        priority=priority,
        override_action=wafv2.CfnWebACL.OverrideActionProperty(count={}),
        statement=Statement(
            managed_rule_group_statement=wafv2.CfnWebACL.ManagedRuleGroupStatementProperty(
                vendor_name="AWS", name="AWSManagedRulesCommonRuleSet"
            )
        ),
        visibility_config=_visibility("Common"),
    )


def _visibility(name: str) -> wafv2.CfnWebACL.VisibilityConfigProperty:
    return wafv2.CfnWebACL.VisibilityConfigProperty(
        cloud_watch_metrics_enabled=True, metric_name=name, sampled_requests_enabled=False
    )
