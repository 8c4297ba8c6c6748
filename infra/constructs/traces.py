"""The export of spans by the functions: their variables, and what their roles may do for it."""

from aws_cdk import Stack
from aws_cdk import aws_iam as iam

from infra.environments import Environment, Traces


def export_variables(environment: Environment) -> dict[str, str | None]:
    """Return the variables of every function that exports spans, or none."""
    traces = environment.traces
    if traces is None:
        return {}
    return {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": traces.endpoint,
        "OTEL_TRACES_SAMPLER_ARG": str(traces.sample),
        "OTEL_RESOURCE_ATTRIBUTES": f"deployment.environment.name={environment.name}",
        "SPASS_TRACES_HEADERS_PARAMETER": traces.headers_parameter,
        "SPASS_TRACES_SIGN": traces.sign,
    }


def export_statements(stack: Stack, traces: Traces | None) -> list[iam.PolicyStatement]:
    """Return what the role of a function needs to export spans: to send them to X-Ray, or to read the headers."""
    if traces is None:
        return []
    statements: list[iam.PolicyStatement] = []
    if traces.sign:
        # X-Ray has no resource for it in IAM.
        statements.append(iam.PolicyStatement(actions=["xray:PutTraceSegments"], resources=["*"]))
    if traces.headers_parameter:
        parameter = stack.format_arn(service="ssm", resource="parameter", resource_name=traces.headers_parameter.strip("/"))
        statements.append(iam.PolicyStatement(actions=["ssm:GetParameters"], resources=[parameter]))
    return statements
