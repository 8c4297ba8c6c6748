"""`python -m operate release --env ENV`: check, keep, deploy and try a commit. `release back` deploys a kept one again."""

import argparse
import asyncio
import os
from collections.abc import Sequence
from tarfile import TarError
from typing import Final

from botocore.exceptions import BotoCoreError, ClientError

from operate import check, check_back, make, smoke
from operate.account import Account, AccountUnreadable
from operate.assembly import Assembly, AssemblyMissing, read_assembly
from operate.checkout import ROOT, UNKNOWN, read_checkout
from operate.checks import Check, run_checks
from operate.confirm import is_confirmed
from operate.deployment import WATCHED, WATCHED_MINUTES, Triggers, deploy, read_release, read_triggers, read_url
from operate.kept import ASSEMBLY, Release, Releases
from spass.cli.terminal import prepare, write
from spass.sdk.endpoint import Endpoint

HELP: Final = "check, keep, deploy and try the commit that is checked out; `release back` deploys a kept one again"
_DESCRIPTION: Final = f"""Deploy the commit that is checked out: synthesise it, check the account, rehearse it in an emulator,
keep the assembly as releases/ENV/COMMIT.tar, deploy it, and run `operate smoke` with the token in SPASS_TOKEN. CloudFormation
undoes the deployment if {", ".join(WATCHED[:-1])} or {WATCHED[-1]} is raised during it or within {WATCHED_MINUTES} minutes.
With `back`: deploy the functions and the API of a kept release, and build nothing."""
_USER: Final = "operate-smoke"
_ANY_URL: Final = "https://gateway.example"
"""In place of the URL, which is known after the deployment only."""
_FOLDER: Final = ROOT / "releases"
_SHOWN_FILES: Final = 10


class ReleaseFailed(Exception):
    """A step of the release has failed. The message says why and what to do next."""

    def __init__(self, step: str, problem: str) -> None:
        super().__init__(f"The step '{step}' failed: {problem}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument("back", nargs="?", choices=["back"], help="go back to a kept release")
    parser.add_argument("--env", required=True, help="the environment, e.g. prod")
    parser.add_argument("--to", metavar="COMMIT", help="with back: the release (default: the one before that which runs)")
    parser.add_argument("--yes", action="store_true", help="do not ask before something is changed")


def main(options: argparse.Namespace) -> int:
    """Run the steps and return the exit status: 1 if one has failed or nothing was changed."""
    prepare()
    releases = Releases(_FOLDER / options.env)
    try:
        if options.back:
            return _go_back(releases, options.env, options.to, yes=options.yes)
        if options.to:
            raise ReleaseFailed("arguments", "--to belongs to `release back`. A release is the commit that is checked out.")
        return _release(releases, options.env, yes=options.yes)
    except (ReleaseFailed, AssemblyMissing, AccountUnreadable) as error:
        write(f"{error}\n")
    except (ClientError, BotoCoreError) as error:
        write(f"AWS did not answer: {error}\nAllow it to these credentials, and try again.\n")
    except (OSError, TarError) as error:
        write(f"The kept release could not be written or read: {error}\n")
    return 1


def _release(releases: Releases, environment: str, *, yes: bool) -> int:
    commit = _commit()
    if _endpoint(_ANY_URL).token is None:
        raise ReleaseFailed("token", "Set SPASS_TOKEN to a token of the gateway, with which the release is tried.")
    if make.run("synth", ["-c", f"env={environment}"]):
        raise ReleaseFailed("synth", "Nothing was deployed. Mend what is named above, commit it, and release again.")
    folder = ROOT / ASSEMBLY
    assembly = read_assembly(folder, environment)
    if assembly.release != commit:
        raise ReleaseFailed(
            "synth", f"The assembly is of {assembly.release}, not of {commit}: the checkout has changed meanwhile."
        )
    account = Account.of_region(assembly.region)
    _check(check.CHECKS, assembly, account)
    if make.run("rehearse", []):
        raise ReleaseFailed("rehearse", "Nothing was deployed. Mend the step that is named above, commit it, and release again.")
    running, triggers = read_release(account, assembly.api.name), read_triggers(account, assembly.api.name)
    releases.settle(running)
    if not _ask(assembly, account, running, triggers, yes=yes):
        return 1
    kept = releases.add(folder, commit)
    with kept.unpack() as unpacked:
        others = [stack.name for stack in assembly.others]
        deployed = deploy(unpacked, others) and deploy(unpacked, [assembly.api.name], triggers)
    now = read_release(account, assembly.api.name)
    releases.settle(commit if deployed or now == commit != running else None)
    if not deployed:
        raise ReleaseFailed(
            "deploy", f"{assembly.environment} runs {now}. Mend what CloudFormation names above, and release again."
        )
    write(f"{commit} is deployed and kept as {releases.folder / commit}.tar.\n")
    return _try(assembly, account, commit)


def _go_back(releases: Releases, environment: str, start: str | None, *, yes: bool) -> int:
    _endpoint(_ANY_URL)
    if not (kept := releases.kept()):
        raise ReleaseFailed("kept", f"{releases.folder} has no release. Check out the commit to go back to, and release it.")
    with kept[-1].unpack() as folder:  # only to learn which region and stack to ask
        api = read_assembly(folder, environment).api
    account = Account.of_region(api.region)
    running = read_release(account, api.name)
    releases.settle(running)
    write(f"Kept releases of {environment}:\n" + "".join(f"  {release}\n" for release in releases.kept()))
    target = _choose(releases, running, start)
    with target.unpack() as folder:
        assembly = read_assembly(folder, environment)
        if assembly.release not in (None, target.commit):
            raise ReleaseFailed("kept", f"{target.file} holds the release {assembly.release}: somebody has renamed it.")
        _check(check_back.CHECKS, assembly, account)
        triggers = read_triggers(account, api.name)
        if not _ask(assembly, account, running, triggers, yes=yes):
            return 1
        # The other stacks stay: they hold what is stored, and a later form of them has all that these functions use.
        if not deploy(folder, [api.name], triggers):
            now = read_release(account, api.name)
            raise ReleaseFailed("deploy", f"{environment} runs {now}. Mend what CloudFormation names above, and try again.")
    releases.return_to(target)
    write(f"{target.commit} is deployed again.\n")
    return _try(assembly, account, target.commit if assembly.release else None)


def _endpoint(url: str) -> Endpoint:
    """Return the gateway at ``url`` with the token that tries it, if there is one. The message of a failure does not show it."""
    try:
        return Endpoint.resolve(url, None, _USER, os.environ)
    except ValueError as error:
        raise ReleaseFailed("token", str(error)) from None


def _commit() -> str:
    """Return the commit to release. A kept assembly is named for it, so no file may differ."""
    checkout = read_checkout()
    if checkout.commit == UNKNOWN:
        raise ReleaseFailed(
            "checkout", f"{ROOT} is not a checkout of git, so the release would have no name. Clone the repository."
        )
    if checkout.changed:
        more = f" and {len(checkout.changed) - _SHOWN_FILES} more" if len(checkout.changed) > _SHOWN_FILES else ""
        files = ", ".join(checkout.changed[:_SHOWN_FILES])
        raise ReleaseFailed("checkout", f"Files differ from commit {checkout.commit}: {files}{more}. Commit or remove them.")
    return checkout.commit


def _choose(releases: Releases, running: str | None, start: str | None) -> Release:
    if start is None:
        target = releases.before(running or "")
        if target is None:
            raise ReleaseFailed("kept", f"No release before the running one, {running}, is kept. Name one: --to COMMIT")
        return target
    found = releases.find(start)
    if len(found) != 1:
        problem = f"{len(found)} kept releases begin with {start}" if found else f"no kept release begins with {start}"
        raise ReleaseFailed("kept", f"{problem}. Name one of the list above.")
    return found[0]


def _check(checks: Sequence[Check], assembly: Assembly, account: Account) -> None:
    write(f"Checking {assembly.environment} in {assembly.region}, account {account.number} ...\n")
    if check.report([*run_checks(checks, assembly, account)]):
        raise ReleaseFailed("check", "Nothing was deployed. Mend the errors above and try again.")


def _ask(assembly: Assembly, account: Account, running: str | None, triggers: Triggers, *, yes: bool) -> bool:
    """Say what would be changed, and return True if the operator agrees."""
    write(f"This deploys {assembly.release} as {assembly.environment} into account {account.number}, {assembly.region}.\n")
    write(f"It runs {running or 'no release with a name'} now.\n")
    if triggers.watched:
        write(f"CloudFormation undoes it if {' or '.join(triggers.watched)} is raised within {WATCHED_MINUTES} minutes.\n")
    else:
        write("No alarm watches it: CloudFormation undoes it only if the deployment itself fails.\n")
    if triggers.raised:
        write(f"These are raised already, so they do not watch it: {', '.join(triggers.raised)}.\n")
    write("Then a smoke test pays for four answers of models.\n")
    return yes or is_confirmed()


def _try(assembly: Assembly, account: Account, commit: str | None) -> int:
    """Run the smoke test, say how to go back, and return the exit status."""
    url = read_url(account, assembly.api.name)
    back = f"To go back: .venv/bin/python -m operate release back --env {assembly.environment}\n"
    endpoint = _endpoint(url)
    if endpoint.token is None:
        write(f"Not tried, without SPASS_TOKEN: .venv/bin/python -m operate smoke --url {url}\n{back}")
        return 0
    status = asyncio.run(smoke.run(endpoint, release=commit))
    write(back if status == 0 else f"The step 'smoke' failed, and the release is deployed. {back}")
    return status
