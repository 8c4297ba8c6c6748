"""Bundle the code and the layers of the functions on the machine that synthesizes, without Docker.

Each bundle's asset hash is computed from its inputs, so the same inputs are never built or uploaded twice. Code and packages
contain byte code, except with the context ``-c bytecode=none``.
"""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import jsii
from aws_cdk import AssetHashType, Aws, BundlingOptions, DockerImage, ILocalBundling, Stack
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infra import bundling, byte_code
from infra.config_files import ROOT, agents_folder, gateway_file

ARCHITECTURE: Final = lambda_.Architecture.ARM_64
RUNTIME: Final = lambda_.Runtime.PYTHON_3_13

SOURCES: Final = (ROOT / "functions", ROOT / "shared" / "spass")
# What the page is built from, and how.
_PAGE_BUILD: Final = (ROOT / "local" / "page_build.py", ROOT / "package-lock.json")
START_SCRIPT: Final = ROOT / "infra" / "assets" / "run.sh"
SANDBOX: Final = ROOT / "shared" / "spass" / "sandbox"
# Only tests import the first package, and foreign agents run on machines of the operator's own.
EXCLUDED: Final = (ROOT / "shared" / "spass" / "testing", SANDBOX / "foreign")
# Code.from_asset needs a folder, but bundling replaces its contents. Only tests switch bundling off and use the folder itself.
_ASSETS: Final = START_SCRIPT.parent
_COMPILER: Final = (*Path(byte_code.__file__).parent.glob("*.py"),)


@jsii.implements(ILocalBundling)
class _LocalBundling:
    """Build an asset by calling ``build`` with the folder to fill."""

    def __init__(self, build: Callable[[Path], None]) -> None:
        self._build = build

    def try_bundle(self, output_dir: str, *_options: object, **_declared_options: object) -> bool:
        """Build the layer into ``output_dir``. On failure raise an exception, so that the CDK does not build it with Docker."""
        self._build(Path(output_dir))
        return True


def _asset(inputs: Iterable[Path], build: Callable[[Path], None], *, variant: str = "") -> lambda_.AssetCode:
    digest = hashlib.sha256(f"{bundling.RECIPE_VERSION} {variant}".encode())
    for path in sorted(inputs):
        digest.update(f"\0{_name(path)}\0".encode() + path.read_bytes())
    return lambda_.Code.from_asset(
        str(_ASSETS),
        asset_hash_type=AssetHashType.CUSTOM,
        asset_hash=digest.hexdigest(),
        bundling=BundlingOptions(image=DockerImage.from_registry("never-pulled"), local=_LocalBundling(build)),
    )


def _compiled_asset(scope: Construct, inputs: Iterable[Path], build: Callable[[Path, Path | None], None]) -> lambda_.AssetCode:
    """Return an asset. ``build`` also gets the interpreter that adds byte code, or None without byte code.

    Raises:
        BundlingFailed: the asset must be built here and no interpreter fits.
    """
    with_bytecode = _has_bytecode(scope)
    needs_compiler = Stack.of(scope).bundling_required and with_bytecode
    compiler = bundling.find_compiler() if needs_compiler else None
    return _asset(inputs, lambda output: build(output, compiler), variant="byte code" if with_bytecode else "no byte code")


def _has_bytecode(scope: Construct) -> bool:
    value = scope.node.try_get_context("bytecode")
    if value not in (None, "none"):
        raise bundling.BundlingFailed(
            f"-c bytecode={value}: the only value is 'none', which leaves byte code out of the bundles."
        )
    return value is None


def _name(path: Path) -> str:
    """Return a name that is the same on every machine, also for an operator's file outside the repository."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def function_code(scope: Construct, *, page: bool = False) -> lambda_.AssetCode:
    """Return the asset with ``functions/``, the library, and the operator's ``gateway.yaml`` and agents, which all functions of a
    stack share, and with the built ``page`` for the function that serves it.

    It is small and every commit changes it, so it is not a layer.
    """
    files = (path for source in SOURCES for path in source.rglob("*.py"))
    deployed = (path for path in files if not any(path.is_relative_to(folder) for folder in EXCLUDED))
    page_sources = [*_PAGE_BUILD, *(ROOT / "ui").iterdir()] if page else []
    gateway, agents = gateway_file(), agents_folder()

    def build(output: Path, compiler: Path | None) -> None:
        bundling.function_code(output, sources=SOURCES, excluded=EXCLUDED, start_script=START_SCRIPT, compiler=compiler)
        bundling.operators_files(output, gateway=gateway, agents=agents)
        if page:
            bundling.page(output, ROOT)

    inputs = [START_SCRIPT, *deployed, *page_sources, gateway, *agents.glob("*.yaml"), *_COMPILER]
    return _compiled_asset(scope, inputs, build)


def sandbox_code(scope: Construct) -> lambda_.AssetCode:
    """Return the asset of the function that runs the code of models: its handler, and the program that runs the code."""
    inputs = [SANDBOX / "function.py", *(SANDBOX / "child").rglob("*.py")]
    return _compiled_asset(
        scope, inputs, lambda output, compiler: bundling.sandbox_code(output, source=SANDBOX, compiler=compiler)
    )


class Layers(Construct):
    """The layers that the functions share.

    ``runtime`` is the pinned third-party packages, ``model`` the weights of the embedded model, for the functions that embed,
    ``swagger_ui`` the files of the page at /docs, ``editor`` the packages of the editor, for the functions that run agents.
    ``web_adapter`` is the AWS Lambda Web Adapter, by which a function streams.
    """

    # This is the first version that calls the app after SnapStart has restored it.
    _WEB_ADAPTER: Final = "arn:{partition}:lambda:{region}:753240598075:layer:LambdaAdapterLayerArm64:30"

    def __init__(self, scope: Construct, construct_id: str, *, region: str) -> None:
        super().__init__(scope, construct_id)
        requirements = ROOT / "requirements"
        runtime, model, page = requirements / "runtime.txt", requirements / "model.txt", requirements / "swagger-ui.txt"
        editor = requirements / "editor.txt"
        self.runtime = self._layer(
            "Runtime",
            _compiled_asset(
                self,
                [runtime, *_COMPILER],
                lambda output, compiler: bundling.runtime_layer(output, runtime, compiler=compiler),
            ),
        )
        self.model = self._layer("Model", _asset([model], lambda output: bundling.model_layer(output, model)))
        self.editor = self._layer(
            "Editor",
            _compiled_asset(self, [editor], lambda output, compiler: bundling.editor_layer(output, editor, compiler=compiler)),
        )
        self.swagger_ui = self._layer("SwaggerUi", _asset([page], lambda output: bundling.swagger_ui_layer(output, page)))
        self.web_adapter: lambda_.ILayerVersion = lambda_.LayerVersion.from_layer_version_arn(
            self, "WebAdapter", self._WEB_ADAPTER.format(partition=Aws.PARTITION, region=region)
        )

    def _layer(self, construct_id: str, code: lambda_.AssetCode) -> lambda_.LayerVersion:
        return lambda_.LayerVersion(
            self, construct_id, code=code, compatible_architectures=[ARCHITECTURE], compatible_runtimes=[RUNTIME]
        )
