"""`python -m local.validate` (`make validate`): the operator's files, read as a deployed function reads them.

A function that cannot read them answers nothing at all, and a deployment does not notice. So look before it.
"""

import sys

from spass.tenancy.yaml_source import ConfigError
from spass.web.services import Services


def main() -> int:
    services = Services()
    try:
        config = services.config
        agents = services.agents.list().agents
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    for notice in config.notices:
        print(notice)
    if not config.tenants:
        print(f"{services.settings.config}: there are no tenants yet, so every request will be refused with 401")
    print(f"{services.settings.config} and {len(agents)} agents in {services.settings.agents}/ are right.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
