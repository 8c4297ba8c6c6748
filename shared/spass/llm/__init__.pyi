from spass.llm.agent_driver import driver as driver
from spass.llm.errors import BackendError as BackendError
from spass.llm.errors import NoBackendAvailable as NoBackendAvailable
from spass.llm.router import aclose as aclose
from spass.llm.router import complete as complete
from spass.llm.router import embed as embed
from spass.llm.router import reset_usage as reset_usage
from spass.llm.router import usage as usage
