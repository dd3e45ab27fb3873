"""What a person imports from `bertkit`: frozen in `public_api.txt`, typed, late; and the functions that train.

`python tests/test_public_api.py` writes the file anew.
"""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bertkit

SNAPSHOT = Path(__file__).parent / "public_api.txt"
ROOT = Path(bertkit.__file__).parent
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
MODULE = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])")  # of a type: a name may move


def snapshot() -> str:
    """A line for each public name; for a class its fields and public methods."""
    lines = []
    for name in bertkit.__all__:
        value = getattr(bertkit, name)
        if inspect.isclass(value):
            known = [base for base in value.__bases__ if base is not object and base not in internal_bases(value)]
            lines += [f"class {name}({', '.join(base.__name__ for base in known)})"]
            lines += [f"    {each}" for each in sorted({each for kind in own(value) for each in members(kind)})]
        else:
            lines += [f"{name}{inspect.signature(value)}" if callable(value) else name]
    return MODULE.sub("", ADDRESS.sub("", "\n".join(lines))).replace("'", "") + "\n"


def internal_bases(kind: type) -> list[type]:
    """The bases of a class that are bertkit's and not public: what they define counts as the class's own."""
    bases = [base for base in kind.__mro__[1:] if base.__module__.startswith("bertkit.")]
    return [base for base in bases if base.__name__ not in bertkit.__all__]


def own(kind: type) -> list[type]:
    return [kind, *internal_bases(kind)]


def members(kind: type):
    yield from (f"{name}: field" for name in getattr(kind, "__dataclass_fields__", ()) if not name.startswith("_"))
    for name, value in vars(kind).items():
        if name.startswith("_") or name in getattr(kind, "__dataclass_fields__", ()):
            continue
        if inspect.isfunction(value) or isinstance(value, classmethod | staticmethod):
            yield f"{name}{inspect.signature(getattr(kind, name))}"
        elif isinstance(value, property) or type(value).__name__ == "cached_property":
            yield f"{name}: property"


def test_the_api_is_as_it_was_promised():
    assert snapshot() == SNAPSHOT.read_text(encoding="utf-8"), f"if it is meant, run: python {__file__}"


def test_every_name_is_there_and_listed():
    assert bertkit.__all__ == sorted(bertkit.__all__)
    assert dir(bertkit) == bertkit.__all__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bertkit.nothing


def test_the_typed_program_has_every_method():
    program = (Path(__file__).parent / "typed_calls.py").read_text(encoding="utf-8")
    for kind in (bertkit.Bert, bertkit.Classifier, bertkit.Client, bertkit.AsyncClient, bertkit.BertClient):
        methods = [name for name, value in vars(kind).items() if not name.startswith("_") and callable(value)]
        missing = [name for name in methods if f".{name}(" not in program and name != "close"]
        assert not missing, kind


def test_no_public_name_is_a_module_too():
    modules = {path.stem for path in ROOT.glob("*.py")} | {path.name for path in ROOT.iterdir() if path.is_dir()}
    assert not modules & set(bertkit.__all__)


def test_listing_the_names_imports_nothing_heavy():
    code = "import bertkit, sys; dir(bertkit); bertkit.BertkitError; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "pyarrow"} & set(loaded)


if __name__ == "__main__":
    SNAPSHOT.write_text(snapshot(), encoding="utf-8")
