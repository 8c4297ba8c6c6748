"""The runbooks of the page of operations, and the commands of the page about the first deployment."""

import re
from pathlib import Path
from typing import Final

_DOCS: Final = Path(__file__).parents[1] / "docs"
PAGE: Final = (_DOCS / "operations.md").read_text(encoding="utf-8")
_SECTION: Final = PAGE.split("## Runbooks\n", 1)[1].split("\n## ", 1)[0]

RUNBOOKS: Final = re.findall(r"(?ms)^### (\w+)\n(.*?)(?=^### |\Z)", _SECTION)
"""The name of each alarm, with the text of its runbook."""

COMMANDS: Final = list(dict.fromkeys(re.findall(r"```bash\n(.*?)```", "".join(text for _, text in RUNBOOKS), re.DOTALL)))
"""The commands of the runbooks, each once."""

FIRST_DEPLOYMENT: Final = re.findall(
    r"```bash\n(aws (?!logs ).*?)```", (_DOCS / "first-deployment.md").read_text(encoding="utf-8"), re.DOTALL
)
"""The commands of the first deployment that call AWS, without the query of logs: no emulator knows the word SOURCE."""
