"""The emulator does not do by itself what `infra.rehearsal.emulated` adds."""

import inspect

from ministack.services import apigateway_v1, lambda_svc  # type: ignore[import-untyped]


def test_the_emulator_alone_does_not_stream() -> None:
    assert "StreamingResponse" not in inspect.getsource(apigateway_v1)


def test_the_emulator_alone_does_not_have_the_web_adapter() -> None:
    layer = "arn:aws:lambda:eu-central-1:753240598075:layer:LambdaAdapterLayerArm64:30"
    assert lambda_svc._resolve_layer_zip(layer) is None
