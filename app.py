"""The CDK entry: environments in, stacks out. ``-c env=dev`` chooses one; without it, all of them."""

from aws_cdk import App

from infra.application import TenantMissing, add_stacks, require_tenant
from infra.bundling import BundlingFailed
from infra.config_files import environments_file, gateway_file
from infra.environments_file import EnvironmentsFileInvalid, load_environments

app = App(analytics_reporting=False)
try:
    known = load_environments(environments_file())
except EnvironmentsFileInvalid as error:
    raise SystemExit(str(error)) from None
chosen = app.node.try_get_context("env")
if chosen is not None and chosen not in known:
    raise SystemExit(f"-c env={chosen}: there is no such environment; there are {', '.join(known)}")
if app.node.try_get_context("api") is not None:
    raise SystemExit("-c api is a switch of earlier commits, not of this release: see 'Upgrade' in docs/deploying.md")
environments = [*known.values()] if chosen is None else [known[chosen]]
try:
    require_tenant(environments, gateway_file())
    add_stacks(app, environments)
except (BundlingFailed, TenantMissing) as error:
    raise SystemExit(str(error)) from None
app.synth()
