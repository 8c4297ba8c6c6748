"""Run mini-swe-agent, which executes shell commands until it submits, with its own LiteLLM model class."""

import os
import tempfile

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

with tempfile.TemporaryDirectory() as folder:
    model = LitellmModel(
        model_name=f"openai/{os.environ['CHAT_MODEL']}",
        model_kwargs={"max_retries": 0},
        cost_tracking="ignore_errors",
        set_cache_control="default_end",
        format_error_template="Call bash with 'echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat answer.txt'.",
    )
    agent = DefaultAgent(
        model,
        LocalEnvironment(cwd=folder),
        system_template="You run commands.",
        instance_template="{{ task }}",
        step_limit=6,
    )
    result = agent.run("Call bash with 'echo 42 > answer.txt'.")

assert result == {"exit_status": "Submitted", "submission": "42\n"}, result
assert agent.n_calls == 3, agent.n_calls
