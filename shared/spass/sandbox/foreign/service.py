"""Run foreign agents: in folders that the operator allows, with one key, and without leftovers."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from spass.core.effects import ForeignRun, ForeignRunner
from spass.core.errors import InvalidRequest, KindUnavailable, UpstreamError, UpstreamTimeout
from spass.core.messages import Json
from spass.redaction.detector import MIN_SECRET_LENGTH, SecretSet
from spass.redaction.stream import redact_secrets
from spass.redaction.text import REDACTED, redact_members
from spass.sandbox.child_process import ChildFailed
from spass.sandbox.foreign.claude_code import ClaudeCode
from spass.sandbox.foreign.openhands import OpenHands
from spass.sandbox.program import ChildTimedOut, run_child

WORKSPACE_PARAM: Final = "params.workspace"
_SUPERVISOR: Final = Path(__file__).with_name("supervisor.py")
_GRACE_SECONDS: Final = 5.0
# Both become arguments of a program, which would read what begins with a dash as an option.
_SESSION_ID: Final = re.compile(r"[0-9a-fA-F][0-9a-fA-F-]{7,63}")
_TOOL: Final = re.compile(r"[A-Za-z][^\x00-\x1f\x7f,]{0,199}")
_NO_ROOTS: Final = (
    "no folder is allowed for foreign agents. Add a line with the folders, as absolute paths, to gateway.yaml: "
    "harnesses: {roots: [FOLDER]}"
)


class ForeignAgents:
    """The foreign agents of a machine. They work in folders below ``roots``; None allows none.

    ``environment`` are the variables of this process. ``folder`` holds what is installed (default: ``~/.spass``).
    """

    def __init__(
        self, roots: Sequence[Path] | None, *, environment: Mapping[str, str] = os.environ, folder: Path | None = None
    ) -> None:
        self._roots = roots
        self._environment = environment
        self._folder = folder or Path.home() / ".spass"
        self._openhands = OpenHands(environment, self._folder)
        self._claude_code = ClaudeCode(environment, self._folder)

    def unavailable(self, runner: ForeignRunner, api_key: str = "") -> str | None:
        """Return why ``runner`` cannot run, for people, with the command that helps, or None if it can. Nothing is installed."""
        return self._find(runner, api_key)[1] or None

    def resolve_workspace(self, workspace: str) -> Path:
        """Return the folder that ``workspace`` names, without links and ``..``. Raise InvalidRequest if it is not a folder below
        one of the roots."""
        if not workspace.strip():
            raise _bad_workspace("This kind works in a folder of the gateway's machine. Name it in params.workspace.")
        if not Path(workspace).is_absolute() or "\0" in workspace:
            raise _bad_workspace("The workspace is not an absolute path. Write one, such as /home/me/project.")
        # The message does not show the path: it may be one of the operator's, from an agent's file.
        outside = "The workspace is not a folder below one of harnesses.roots in gateway.yaml."
        try:
            folder = Path(workspace).resolve()
            roots = [root.resolve() for root in self._roots or ()]
            if not any(folder.is_relative_to(root) for root in roots) or not folder.is_dir():
                raise _bad_workspace(outside)
        except (OSError, RuntimeError, ValueError):  # a loop of links; half of a surrogate pair
            raise _bad_workspace(outside) from None
        return folder

    def check(self, spec: ForeignRun) -> None:
        """Check whether ``spec`` can run, before any work.

        Raises:
            InvalidRequest: the workspace is not a folder below one of the roots, or an argument is not valid.
            KindUnavailable: something is missing. The message says what to do.
        """
        self._require(spec)
        self.resolve_workspace(spec.workspace)
        _check_arguments(spec)

    async def run(self, spec: ForeignRun, *, model: str, owner: str) -> Mapping[str, Json]:
        """Return what the runner answers: ``content``, ``tool_results`` and ``metadata``.

        ``model`` is the agent's. Sessions of one ``owner`` cannot be continued by another.

        Raises:
            InvalidRequest, KindUnavailable: as ``check``.
            UpstreamTimeout: the time is over.
            UpstreamError: the runner failed.
        """
        python_or_node = self._require(spec)
        folder = self.resolve_workspace(spec.workspace)
        _check_arguments(spec)
        program = self._program(spec.runner)
        key = self._key(program, spec.api_key)
        request: dict[str, Json] = {
            "prompt": spec.prompt,
            "api_key": key,
            "base_url": self._environment.get(program.base_url_variable) or None,
            "model": model,
            "workspace": str(folder),
            "allowed_tools": None if spec.allowed_tools is None else list(spec.allowed_tools),
            "system_prompt": spec.system_prompt,
            "session_id": spec.session_id,
        }
        if spec.runner == "openhands":
            request |= {"temperature": spec.temperature, "max_tokens": spec.max_tokens}
        try:
            await program.prepare()
            async with program.home(owner) as home:
                answer = await run_child(
                    (sys.executable, "-I", "-S", "-B", str(_SUPERVISOR), *program.command(python_or_node)),
                    request,
                    environment={"PATH": self._environment.get("PATH", ""), "HOME": str(home), program.key_variable: key},
                    folder=folder,
                    timeout=spec.timeout,
                    secrets=(key,),
                    grace=_GRACE_SECONDS,
                )
            return redact_members(answer, partial(_without_key, key))
        except ChildTimedOut as failure:
            raise UpstreamTimeout(_sentence(program.name, failure)) from None
        except ChildFailed as failure:
            raise UpstreamError(_sentence(program.name, failure)) from None

    def _require(self, spec: ForeignRun) -> str:
        """Return the interpreter of the runner, or raise KindUnavailable."""
        found, reason = self._find(spec.runner, spec.api_key)
        if reason:
            raise KindUnavailable(f"This gateway cannot run {self._program(spec.runner).name}: {reason}")
        return found

    def _find(self, runner: ForeignRunner, api_key: str) -> tuple[str, str]:
        """Return the interpreter of the runner and an empty reason, or the reason why it cannot run."""
        if self._roots is None:
            return "", _NO_ROOTS
        program = self._program(runner)
        found, reason = program.find()
        if found is not None and not self._key(program, api_key):
            name = program.key_variable
            reason = f"{name} is not set. Run: export {name}=…, or write it to .env, and start again"
        return found or "", reason

    def _program(self, runner: ForeignRunner) -> OpenHands | ClaudeCode:
        return self._openhands if runner == "openhands" else self._claude_code

    def _key(self, program: OpenHands | ClaudeCode, api_key: str) -> str:
        return api_key or self._environment.get(program.key_variable, "")


def _sentence(name: str, failure: ChildFailed) -> str:
    return f"{name} {str(failure).removesuffix('.')}."


def _without_key(key: str, text: str) -> str:
    """Return ``text`` without the key, which an agent may have printed."""
    whole = text.replace(key, REDACTED) if len(key) >= MIN_SECRET_LENGTH else text
    return redact_secrets(SecretSet((key,), ()), whole)


def _check_arguments(spec: ForeignRun) -> None:
    """Check what the runner passes on to a program."""
    if wrong := [name for name in spec.allowed_tools or () if not _TOOL.fullmatch(name)]:
        raise InvalidRequest(
            f"{_quote(wrong[0])} is not the name of a tool. Write a name such as Read or Bash.", param="params.allowed_tools"
        )
    if spec.session_id and not _SESSION_ID.fullmatch(spec.session_id):
        message = f"{_quote(spec.session_id)} is not the id of a session. Copy metadata.session_id of an earlier run."
        raise InvalidRequest(message, param="params.session_id")


def _quote(value: str) -> str:
    return repr(value[:80])


def _bad_workspace(message: str) -> InvalidRequest:
    return InvalidRequest(message, param=WORKSPACE_PARAM)
