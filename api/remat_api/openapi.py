"""python -m remat_api.openapi: prints the API's description, which is committed as docs/openapi.json."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from remat_api.app import create_app
from remat_api.settings import Settings


def document() -> str:
    """The description as committed."""
    app = create_app(Settings(data_dir=Path(tempfile.gettempdir()), workers=1))
    return json.dumps(app.openapi(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
