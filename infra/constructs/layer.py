"""What functions run on: their code and three layers, bundled on the machine that synthesizes, without Docker.

Each bundle's asset hash is taken from its inputs, so that the same inputs are never built or uploaded twice.
"""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import jsii
from aws_cdk import AssetHashType, Aws, BundlingOptions, DockerImage, ILocalBundling
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infra import bundling
from infra.operators_file import ROOT, agents_folder, gateway_file

ARCHITECTURE: Final = lambda_.Architecture.ARM_64
RUNTIME: Final = lambda_.Runtime.PYTHON_3_13


@jsii.implements(ILocalBundling)
class _Recipe:
    """Builds an asset by calling a function with the folder to fill."""

    def __init__(self, build: Callable[[Path], None]) -> None:
        self._build = build

    def try_bundle(self, output_dir: str, *_options: object, **_declared_options: object) -> bool:
        """Fill ``output_dir``; there is no other way to build it, so this either works or raises."""
        self._build(Path(output_dir))
        return True


def _asset(source: Path, inputs: Iterable[Path], build: Callable[[Path], None]) -> lambda_.AssetCode:
    digest = hashlib.sha256(f"{bundling.RECIPE_VERSION} {bundling.bytecode_interpreter()}".encode())
    for path in sorted(inputs):
        digest.update(f"\0{_name(path)}\0".encode() + path.read_bytes())
    return lambda_.Code.from_asset(
        str(source),
        asset_hash_type=AssetHashType.CUSTOM,
        asset_hash=digest.hexdigest(),
        bundling=BundlingOptions(image=DockerImage.from_registry("never-pulled"), local=_Recipe(build)),
    )


def _name(path: Path) -> str:
    """The same on every machine, also of an operator's file that lies elsewhere."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def function_code() -> lambda_.AssetCode:
    """``functions/`` and the library, which every function of a stack shares.

    It is small and changed by every commit, so it is no layer.
    """
    sources = [ROOT / "functions", ROOT / "shared" / "spass"]
    starter = ROOT / "infra" / "assets" / "run.sh"
    inputs = [starter, *(path for source in sources for path in source.rglob("*.py"))]
    return _asset(starter.parent, inputs, lambda output: bundling.function_code(output, sources=sources, starter=starter))


class Layers(Construct):
    """The layers all functions share.

    ``runtime`` is the pinned third-party packages, ``config`` the operator's ``gateway.yaml`` and agents, ``model`` the weights
    of the embedded model, for the functions that embed. ``web_adapter`` is AWS's own, by which a function streams.
    """

    # This version opens its own connection anew after SnapStart restores it, and offers hooks, which no app of ours has yet.
    _WEB_ADAPTER: Final = "arn:{partition}:lambda:{region}:753240598075:layer:LambdaAdapterLayerArm64:30"

    def __init__(self, scope: Construct, construct_id: str, *, region: str) -> None:
        super().__init__(scope, construct_id)
        requirements = ROOT / "requirements"
        runtime, model = requirements / "runtime.txt", requirements / "model.txt"
        gateway, agents = gateway_file(), agents_folder()
        # The folder an asset names is not what fills it, only where CDK looks when bundling is switched off, as tests do.
        assets = ROOT / "infra" / "assets"
        self.runtime = self._layer("Runtime", _asset(assets, [runtime], lambda output: bundling.runtime_layer(output, runtime)))
        self.model = self._layer("Model", _asset(assets, [model], lambda output: bundling.model_layer(output, model)))
        self.config = self._layer(
            "Config",
            _asset(
                assets,
                [gateway, *agents.glob("*.yaml")],
                lambda output: bundling.config_layer(output, gateway=gateway, agents=agents),
            ),
        )
        self.web_adapter: lambda_.ILayerVersion = lambda_.LayerVersion.from_layer_version_arn(
            self, "WebAdapter", self._WEB_ADAPTER.format(partition=Aws.PARTITION, region=region)
        )

    def _layer(self, construct_id: str, code: lambda_.AssetCode) -> lambda_.LayerVersion:
        return lambda_.LayerVersion(
            self, construct_id, code=code, compatible_architectures=[ARCHITECTURE], compatible_runtimes=[RUNTIME]
        )
