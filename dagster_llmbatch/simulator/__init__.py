"""A local server that speaks the providers' wire protocols, with a clock and faults. Needs the extra `simulator`."""

import importlib.util

_missing = [name for name in ("starlette", "uvicorn", "python_multipart") if importlib.util.find_spec(name) is None]
if _missing:
    raise ImportError(f"The simulator needs {_missing}: pip install 'dagster-llmbatch[simulator]'.")
