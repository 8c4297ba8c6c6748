"""The page is served under every address of the API, with the headers under which a browser may run it."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from functions.page import asset, page, root
from infra.routes import MIN_COMPRESSED_BYTES
from local.edge import LambdaEdge
from local.page_build import build_page
from spass.web.app import create_app
from spass.web.http_function import LambdaFunction, lambda_handler
from tests.functions.gateway import Gateway, event

ROOT: Final = Path(__file__).parents[2]
BUILT: Final = ROOT / ".page"
MODULES: Final = {"/": root, "/ui": page, "/ui/{asset}": asset}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self' https://spass-test.s3.eu-central-1.amazonaws.com; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types lit-html dompurify"
)

FOR_EVER: Final = "public, max-age=31536000, immutable"

Answer = Mapping[str, Any]


@pytest.fixture(scope="module")
def manifest() -> Mapping[str, Any]:
    """Build the page, and return the manifest of the build."""
    build_page()
    found: Mapping[str, Any] = json.loads((BUILT / "manifest.json").read_text())
    return found


@pytest.fixture(scope="module")
def html(manifest: Mapping[str, Any]) -> str:
    return Path(BUILT, manifest["page"]).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def app(manifest: Mapping[str, Any]) -> Path:
    """Return the file in which the page starts."""
    return next(Path(BUILT, name) for name in manifest["files"] if name.startswith("app-"))


@pytest.fixture(autouse=True)
def bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("SPASS_BUCKET", "spass-test")


def invoke(gateway: Gateway, path: str, full_path: str, *, resource: str = "/ui", method: str = "GET", **headers: str) -> Answer:
    """Return the answer of the function to an event of API Gateway, whose stage or base path is in ``full_path``."""
    handler: LambdaFunction = lambda_handler(MODULES[resource].router, gateway.services)
    request = event(method, path, resource, headers, b"")
    request["requestContext"]["path"] = full_path
    answer: Answer = handler(request, None)  # type: ignore[arg-type]
    assert answer["isBase64Encoded"] is False, "API Gateway sends base64 as it is"
    return answer


@pytest.mark.parametrize(
    ("path", "full_path", "location"),
    [
        ("/", "/dev", "/dev/ui"),
        ("/", "/dev/", "/dev/ui"),
        ("/", "/", "/ui"),  # a custom domain
        ("/gw", "/gw", "/gw/ui"),  # and its base path
        ("/gw/", "/gw/", "/gw/ui"),
        ("/team/chat", "/team/chat", "/team/chat/ui"),
        ("//evil.example", "//evil.example", "/evil.example/ui"),  # never to another host
        ("/dev//evil.example", "/dev//evil.example", "/dev//evil.example/ui"),
    ],
)
def test_the_root_leads_to_the_page_behind_any_prefix(gateway: Gateway, path: str, full_path: str, location: str) -> None:
    for method in ("GET", "HEAD"):
        answer = invoke(gateway, path, full_path, resource="/", method=method)
        assert (answer["statusCode"], answer["headers"]["location"], answer["body"]) == (302, location, "")
        assert (answer["headers"]["cache-control"], answer["headers"]["referrer-policy"]) == ("no-cache", "no-referrer")


@pytest.mark.parametrize(("path", "full_path"), [("/ui", "/dev/ui"), ("/ui", "/ui"), ("/gw/ui", "/gw/ui")])
def test_the_page_is_the_file_with_the_exact_policy(gateway: Gateway, html: str, path: str, full_path: str) -> None:
    answer = invoke(gateway, path, full_path)
    assert (answer["statusCode"], answer["body"]) == (200, html)
    headers = answer["headers"]
    assert headers["content-security-policy"] == POLICY
    assert headers["content-type"] == "text/html; charset=utf-8"
    check_headers(answer, html.encode(), "no-cache")


def test_every_file_has_its_type_and_may_be_kept_for_ever(gateway: Gateway, manifest: Mapping[str, Any]) -> None:
    types = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    assert set(types) == {Path(name).suffix for name in manifest["files"]}
    for name in manifest["files"]:
        path = f"/ui/{name}"
        answer = invoke(gateway, path, f"/dev{path}", resource="/ui/{asset}")
        assert answer["headers"]["content-type"].partition(";")[0] == types[Path(name).suffix], name
        check_headers(answer, (BUILT / name).read_bytes(), FOR_EVER)
        head = invoke(gateway, path, f"/dev{path}", resource="/ui/{asset}", method="HEAD")
        assert (head["statusCode"], head["body"]) == (200, "")
        assert {**head["headers"], "spass-request-id": ""} == {**answer["headers"], "spass-request-id": ""}


def check_headers(answer: Answer, content: bytes, cached: str) -> None:
    headers = answer["headers"]
    assert (answer["statusCode"], answer["body"].encode()) == (200, content)
    assert headers["content-length"] == str(len(content))
    assert headers["etag"] == f'"{hashlib.sha256(content).hexdigest()}"'
    assert (headers["cache-control"], headers["vary"]) == (cached, "Accept-Encoding")
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")


@pytest.mark.parametrize(
    "name",
    [
        *("..", "%2e%2e", "..%2fREADME.md", "%2f", "a%2Fb", "..%5cREADME.md", "%00", "index.html", "index.html%00.js"),
        *("app", "app.js", "APP.JS", "manifest.json", "lock", "%ff", "x" * 5000),
    ],
)
def test_other_names_are_unknown_routes_in_the_envelope(gateway: Gateway, manifest: Mapping[str, Any], name: str) -> None:
    reply = gateway.send("GET", f"/ui/{name}", token=None)
    assert (reply.status, reply.code) == (404, "route_not_found"), manifest


def test_the_page_itself_and_source_maps_are_not_files_of_the_page(
    gateway: Gateway, manifest: Mapping[str, Any], app: Path
) -> None:
    assert (BUILT / f"{app.name}.map").is_file()
    for name in (manifest["page"], f"{app.name}.map", f"{app.name}/"):
        assert gateway.send("GET", f"/ui/{name}", token=None).code == "route_not_found", name


def test_the_page_is_not_served_where_its_files_cannot_be_found(gateway: Gateway) -> None:
    reply = gateway.send("GET", "/ui/", token=None)
    assert (reply.status, reply.code) == (404, "route_not_found")
    assert "GET /ui shows the page" in reply.json["error"]["message"]


@pytest.mark.parametrize("template", ["{0}", "W/{0}", '"x", {0}', '"x",W/{0} , "y"', "*", " {0} "])
def test_an_unchanged_file_is_not_sent_again(gateway: Gateway, app: Path, template: str) -> None:
    first = gateway.send("GET", f"/ui/{app.name}", token=None)
    headers = {"If-None-Match": template.format(first.headers["etag"])}
    again = gateway.send("GET", f"/ui/{app.name}", token=None, headers=headers)
    assert (again.status, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert again.headers["cache-control"] == FOR_EVER
    page_again = gateway.send("GET", "/ui", token=None, headers={"If-None-Match": "*"})
    assert (page_again.status, page_again.headers["content-security-policy"]) == (304, POLICY)
    assert page_again.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("template", ['"x"', 'W/"x", "y"', '"{0}', '""', '"x{0}"'])
def test_a_changed_page_is_sent(gateway: Gateway, html: str, template: str) -> None:
    tag = gateway.send("GET", "/ui", token=None).headers["etag"].strip('"')
    reply = gateway.send(
        "GET", "/ui", token=None, headers={"If-None-Match": template.format(tag[:-1]) + '"' * template.startswith('"{')}
    )
    assert (reply.status, reply.content) == (200, html.encode())


@pytest.mark.usefixtures("manifest")
def test_the_page_needs_no_token_and_takes_no_notice_of_one(gateway: Gateway) -> None:
    for token in (None, "demo-token", "no such token"):
        assert gateway.send("GET", "/ui", token=token).status == 200


@pytest.mark.usefixtures("manifest")
@pytest.mark.parametrize("path", ["/", "/ui", "/ui/app.js"])
def test_other_methods_are_refused(gateway: Gateway, path: str) -> None:
    client = TestClient(LambdaEdge(create_app([module.router for module in MODULES.values()], gateway.services)))
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
        assert answer.json()["error"]["code"] == "method_not_allowed"


def _addresses(text: str) -> list[str]:
    return re.findall(r'(?:src|href)="([^"#]+)"', text)


@pytest.mark.parametrize("prefix", ["", "/dev", "/team/chat"])
def test_behind_a_prefix_the_local_edge_serves_the_page_and_all_that_it_names(
    gateway: Gateway, manifest: Mapping[str, Any], prefix: str
) -> None:
    edge = LambdaEdge(create_app([module.router for module in MODULES.values()], gateway.services))
    app = Starlette(routes=[Mount(prefix, edge)]) if prefix else edge
    client = TestClient(app, base_url="http://gateway.test")
    found = client.get(f"{prefix}/")
    assert [answer.headers["location"] for answer in found.history] == [f"{prefix}/ui"]
    assert found.url.path == f"{prefix}/ui"
    addresses = _addresses(found.text)
    assert {"app", "page", "icon", "chat"} <= {Path(address).name.partition("-")[0] for address in addresses}
    for address in addresses:
        answer = client.get(str(found.url.join(address)))
        assert answer.status_code == 200, address
        file = manifest["page"] if address == "ui" else Path(address).name
        assert answer.content == (BUILT / file).read_bytes()
        compressed = len(answer.content) >= MIN_COMPRESSED_BYTES
        assert (answer.headers.get("content-encoding") == "gzip") is compressed, address


def test_the_page_and_its_modules_load_only_files_of_the_build(html: str, manifest: Mapping[str, Any]) -> None:
    assert not [one for one in _addresses(html) if one.startswith(("/", "http"))]
    for name in manifest["files"]:
        if name.endswith(".js"):
            loaded = re.findall(r'(?:from|import)\(?"([./h][^"\s]+)"', (BUILT / name).read_text(encoding="utf-8"))
            assert set(loaded) <= {f"./{file}" for file in manifest["files"]}, name
