"""`python -m operate smoke --url URL`: try a gateway from outside, and remove what that made."""

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable
from typing import Final

import httpx

from operate.confirm import is_confirmed
from operate.gateway import Gateway, StepFailed
from operate.leftovers import Leftover, remove
from operate.smoke_steps import STEPS, Smoke, Step
from spass.cli.terminal import prepare, write
from spass.sdk.endpoint import Endpoint

HELP: Final = "try a gateway from outside with the token in SPASS_TOKEN, and remove what that made"
_DESCRIPTION: Final = f"""Try a gateway from outside with the token in SPASS_TOKEN, which needs no admin's rights. The steps are
{", ".join(step.name for step in STEPS)}. The first one that fails ends the test. Then what the test has made is removed: a
session, an index and a managed agent. What cannot be removed is named. Steps for which the token has no model are left out
and named. The test pays for four answers of models. Its file stays in the bucket for 30 days, and usage and audit keep the
calls. The exit status is 1 if a step failed or something remains."""
_USER: Final = "operate-smoke"
_REMOVAL_SECONDS: Final = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument("--url", required=True, help="the gateway, e.g. https://….amazonaws.com/dev")
    parser.add_argument("--agent", help="the agent that answers (default: one of the kind orchestrator with few tools)")
    parser.add_argument("--model", help="the model that answers in place of the agent's")
    parser.add_argument("--yes", action="store_true", help="do not ask before the test makes something")


def main(options: argparse.Namespace) -> int:
    """Ask, run the steps and return the exit status."""
    prepare()
    try:
        endpoint = Endpoint.resolve(options.url, None, _USER, os.environ)
    except ValueError as error:
        write(f"{error}\n")
        return 1
    if endpoint.token is None:
        write("Set SPASS_TOKEN to a token of the gateway.\n")
        return 1
    write(f"This makes a session, an index and a managed agent of the user {_USER} at {endpoint.url}, pays for four answers of\n")
    write("models, and removes what it made.\n")
    if not options.yes and not is_confirmed():
        return 1
    return asyncio.run(run(endpoint, options.agent, options.model))


async def run(
    endpoint: Endpoint,
    agent: str | None = None,
    model: str | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
    release: str | None = None,
) -> int:
    """Run the steps until one fails, remove what they made, and return the exit status. ``transport`` replaces the network, and
    ``release`` is what the gateway must say that it is."""
    failed, remains = "", []
    async with Gateway.connect(endpoint, transport) as gateway:
        smoke = Smoke(gateway, agent, model, release)
        try:
            for step in STEPS:
                if problem := await _take(smoke, step):
                    failed = f"The step '{step.name}' failed: {problem}"
                    break
        finally:
            remains = [problem for leftover in smoke.leftovers if (problem := await _clear(smoke, leftover))]
            for problem in remains:
                _say(smoke, f"This remains, of the user {_USER}: {problem}")
            if smoke.leftovers and not remains:
                _say(smoke, "What the test made is removed.")
        left_out = ", ".join(step.name for step in STEPS if step.needs in smoke.missing)
        _say(smoke, failed or f"All steps passed{f', but these were left out: {left_out}' if left_out else ''}.")
    return 1 if failed or remains else 0


async def _take(smoke: Smoke, step: Step) -> str | None:
    """Run a step unless there is nothing that it needs, and print what it has seen. Return the problem if it failed."""
    write(f"{step.name:<11} ")
    if step.needs in smoke.missing:
        _say(smoke, f"left out: {smoke.missing[step.needs]}")
        return None
    start = time.monotonic()
    seen, problem = await _attempt(step.act(smoke), step.seconds)
    _say(smoke, "failed" if problem else f"ok   {time.monotonic() - start:5.1f} s   {seen}")
    return problem


async def _clear(smoke: Smoke, leftover: Leftover) -> str | None:
    """Remove something that a step made. Return what remains or may remain."""
    _, problem = await _attempt(remove(smoke.gateway, leftover), _REMOVAL_SECONDS)
    if problem is None and leftover.is_settled:
        return None
    return f"{leftover.description}. {problem or 'Nothing was found yet, but the request that makes it may be in work.'}"


async def _attempt(work: Awaitable[str], seconds: int) -> tuple[str, str | None]:
    """Return what ``work`` has seen, and the problem if it failed."""
    try:
        async with asyncio.timeout(seconds):
            return await work, None
    except TimeoutError:
        return "", f"It did not end within {seconds} s."
    except StepFailed as error:
        return "", str(error)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return "", f"The connection failed ({type(error).__name__}). {error}"
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return "", f"The answer is not one of a gateway ({type(error).__name__})."


def _say(smoke: Smoke, text: str) -> None:
    """Print a line without the token, whatever a gateway or a proxy has answered."""
    token = smoke.gateway.endpoint.token
    write(f"{text.replace(token, '[token]') if token else text}\n")
