from spass.agents.in_process import driver as driver
from spass.calls.process_router import aclose as aclose
from spass.calls.process_router import complete as complete
from spass.calls.process_router import embed as embed
from spass.calls.process_router import reset_usage as reset_usage
from spass.calls.process_router import usage as usage
from spass.core.errors import NoBackendAvailable as NoBackendAvailable
from spass.llm.errors import BackendError as BackendError
