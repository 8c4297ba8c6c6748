"""All attacks."""

from typing import Final

from tests.unit.sandbox.attacks.files import FILES
from tests.unit.sandbox.attacks.kernel import KERNEL
from tests.unit.sandbox.attacks.network import NETWORK
from tests.unit.sandbox.attacks.processes import PROCESSES
from tests.unit.sandbox.attacks.protocol import PROTOCOL
from tests.unit.sandbox.attacks.resources import RESOURCES

ATTACKS: Final = (*NETWORK, *FILES, *PROCESSES, *KERNEL, *RESOURCES, *PROTOCOL)
